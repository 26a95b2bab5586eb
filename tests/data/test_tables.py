"""Tables with named columns: how they become numbers, what is refused with which sentence, and that arrays agree."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import hcfl
from hcfl.cli import main
from hcfl.config import DataConfig
from hcfl.data.readers import available_memory
from hcfl.data.sources import read
from hcfl.data.tables import Schema, fit, join
from hcfl.errors import InputError
from hcfl.launch import execute
from hcfl.runs.prepare import prepare


def patients(rows=120, seed=0):
    """Three hospitals with every kind of column; where blood pressure is missing, sickness is a little more common."""
    draw = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "age": draw.integers(20, 90, rows).astype(str),
            "pressure": [f"{value:.1f}" for value in draw.normal(120, 15, rows)],
            "smoker": draw.choice(["yes", "no"], rows),
            "ward": draw.choice(["A", "B", "C"], rows),
            "visit": pd.date_range("2023-01-01", periods=rows).strftime("%Y-%m-%d"),
            "hospital": np.array(["north", "south", "west"])[np.arange(rows) % 3],
        }
    )
    table.loc[draw.random(rows) < 0.2, "pressure"] = "NA"
    table["outcome"] = np.where(table.age.astype(float) > 55, "sick", "well")
    return table


def written(folder, table, name="patients.csv"):
    path = folder / name
    table.to_csv(path, index=False)
    return path


def read_csv(path, **settings):
    return read(DataConfig.model_validate({"source": str(path), "label": "outcome", **settings}))


def test_each_kind_of_column_becomes_the_numbers_that_one_can_compute_by_hand(tmp_path):
    text = (
        "age,colour,ok,day,site,outcome\n"
        "10,red,yes,1970-01-01,a,1\n"
        "20,blue,no,1970-01-03,a,0\n"
        "NA,?,yes,1970-01-02,b,1\n"
        "40,red,no,1970-01-05 12:00,b,0\n"
    )
    (tmp_path / "t.csv").write_text(text)
    samples = read_csv(tmp_path / "t.csv", client="site")
    schema = samples.schema
    assert [column.kind for column in schema.columns] == ["number", "category", "boolean", "date"]
    assert schema.outputs[:6] == ("age", "age: missing", "colour=blue", "colour=red", "colour: missing", "ok")
    assert samples.x[:, :6].tolist() == [
        [10, 0, 0, 1, 0, 1],
        [20, 0, 1, 0, 0, 0],
        [20, 1, 0, 0, 1, 1],  # the median of 10, 20 and 40
        [40, 0, 0, 1, 0, 0],
    ]
    assert samples.x[:, 6].tolist() == [0, 2, 1, 4.5]
    assert samples.x[1, 7] == pytest.approx(np.sin(2 * np.pi * 2 / 365.2425))
    assert samples.y.tolist() == [1, 0, 1, 0]
    assert samples.client.tolist() == ["a", "a", "b", "b"]
    assert "column 'age': 25% of the values are missing; they take the median" in samples.notes[0]


def test_a_schema_applies_to_other_rows_and_tells_what_it_does_not_know():
    schema = fit(patients(), "outcome", ["age", "ward"], "table")
    encoded = schema.encode(pd.DataFrame({"ward": ["A", "Z", None], "age": [30, None, 50]}))
    assert encoded.answers is None
    assert encoded.x[:, 1:].tolist() == [[1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert encoded.x[1, 0] == schema.columns[0].fill
    assert "1 missing values are taken to be" in encoded.notes[0]
    assert "1 rows have a category that the schema does not know" in encoded.notes[2]
    with pytest.raises(InputError, match="has the label 'gone', but the classes are sick, well"):
        schema.encode(pd.DataFrame({"ward": ["A"], "age": [1], "outcome": ["gone"]}))


def test_a_schema_survives_its_file(tmp_path):
    schema = read_csv(written(tmp_path, patients()), client="hospital").schema
    (tmp_path / "s.json").write_text(schema.to_json())
    assert Schema.load(tmp_path / "s.json") == schema
    for text in ("{}", "[", '{"columns": [], "label": {"name": "a", "classes": ["0", "1"]}, "rows": 1}', "7"):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(InputError, match=r"schema_file = .*: is not a schema"):
            Schema.load(tmp_path / "s.json")


def test_schemas_of_clients_are_joined():
    table = patients()
    parts = [fit(part, "outcome", ["age", "ward"], "table") for _, part in table[table.ward != "C"].groupby("hospital")]
    other = fit(table[table.ward == "C"], "outcome", ["age", "ward"], "table")
    joined = join([*parts, other])
    assert joined.columns[1].categories == ("A", "B", "C")
    assert joined.rows == len(table)
    weighted = sum(part.rows * part.columns[0].fill for part in (*parts, other)) / len(table)
    assert joined.columns[0].fill == pytest.approx(weighted)
    with pytest.raises(InputError, match=r"different columns \(age\)"):
        join([parts[0], fit(table, "outcome", ["ward"], "table")])
    with pytest.raises(InputError, match="is a category in one schema and a number in another"):
        join([parts[0], fit(table.assign(ward="1"), "outcome", ["age", "ward"], "table")])


def test_a_folder_has_one_file_for_each_client(tmp_path):
    table = patients()
    folder = tmp_path / "sites"
    folder.mkdir()
    for hospital, part in table.groupby("hospital"):
        written(folder, part.drop(columns="hospital"), f"{hospital}.csv")
    whole = read_csv(written(tmp_path, table), client="hospital")
    parts = read_csv(folder)
    assert sorted(set(parts.client.tolist())) == ["north", "south", "west"]
    assert parts.schema.columns == whole.schema.columns
    order = np.argsort(whole.client, kind="stable")
    assert (parts.x == whole.x[order]).all()


def test_parquet_and_data_frames_are_read_as_csv_files_are(tmp_path):
    table = patients()
    expected = read_csv(written(tmp_path, table), client="hospital")
    typed = table.assign(
        age=table.age.astype(int),
        pressure=pd.to_numeric(table.pressure, errors="coerce"),
        smoker=table.smoker == "yes",
        visit=pd.to_datetime(table.visit),
        ward=table.ward.astype("category"),
    )
    typed.to_parquet(tmp_path / "p.parquet")
    parquet = read_csv(tmp_path / "p.parquet", client="hospital")
    assert parquet.schema == expected.schema
    assert (parquet.x == expected.x).all()
    frame = hcfl.Federation.from_frame(typed, label="outcome", client="hospital")
    assert frame.client_names == ("north", "south", "west")
    assert (frame.x.numpy() == expected.x).all()


def test_with_a_time_column_the_last_rows_are_held_out(tmp_path):
    federation = hcfl.Federation.from_frame(
        patients(), label="outcome", client="hospital", time="visit", val_share=0.25
    )
    assert "visit: day" not in federation.schema.outputs
    for train, val in zip(federation.train, federation.val, strict=True):
        assert len(val) == 10
        assert train.max() < val.min()  # rows are in the order of their dates


def test_digits_as_a_csv_file_are_the_same_run_as_digits_as_arrays(tmp_path):
    digits = load_digits()
    x, y = digits.data[:400].astype(np.float32), digits.target[:400]
    np.savez(tmp_path / "digits.npz", x=x, y=y)
    table = pd.DataFrame(x, columns=[f"p{i}" for i in range(64)]).assign(digit=y)
    table.to_csv(tmp_path / "digits.csv", index=False)
    settings = {"clients": 4, "alpha": 1.0, "beta": 0.5, "concepts": 2, "rounds": 2, "epochs": 1}
    of_arrays = hcfl.run("hcfl+(fedrc)", data=tmp_path / "digits.npz", out=tmp_path / "a", **settings)
    of_table = hcfl.run("hcfl+(fedrc)", data=tmp_path / "digits.csv", label="digit", out=tmp_path / "b", **settings)
    for one, other in zip(of_arrays.rows, of_table.rows, strict=True):
        assert {**one, "seconds": 0, "seconds_by_phase": 0} == {**other, "seconds": 0, "seconds_by_phase": 0}


@pytest.fixture(scope="module")
def table_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    path = written(folder, patients())
    command = f"run ifca --data {path} --label outcome --client hospital --drop visit --rounds 2 --out {folder / 'run'}"
    assert main(command.split()) == 0
    return folder / "run"


def test_a_run_keeps_its_schema_and_applies_it_to_new_rows(table_run, tmp_path, capsys):
    run = hcfl.load(table_run)
    assert Schema.load(table_run / "schema.json") == run.federation.schema
    new = patients(rows=30, seed=1)
    by_frame = run.predict(new, cluster=0)
    by_array = run.predict(run.federation.schema.encode(new).x, cluster=0)
    assert (by_frame == by_array).all()
    assert set(by_frame) <= {"sick", "well"}
    found = run.assign(new)
    assert found.evidence == "labels"
    assert run.assign(new.drop(columns="outcome")).evidence != "labels"
    assert main(["assign", str(table_run), "--data", str(written(tmp_path, new.assign(ward="Q")))]) == 0
    assert "30 rows have a category that the schema does not know" in capsys.readouterr().out.replace("\n", " ")


def test_an_exported_model_brings_its_schema(table_run, tmp_path):
    import torch

    run, new = hcfl.load(table_run), patients(rows=8, seed=2)
    model = hcfl.load_model(run.export(tmp_path / "model.safetensors", cluster=0))
    inputs = torch.from_numpy(model.schema.encode(new).x)
    np.testing.assert_allclose(model(inputs).numpy(), run.predict_proba(new, cluster=0), atol=1e-5)


def test_data_shows_the_columns_and_writes_the_schema(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, patients())
    assert main(["data", "patients.csv", "--label", "outcome", "--client", "hospital"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"pressure +number +\d\d\.\d%", shown)
    assert re.search(r"north +40 ", shown)
    for name in ("north", "south"):
        written(tmp_path, patients().query("hospital == @name"), f"{name}.csv")
        assert main(f"data schema {name}.csv --label outcome --drop hospital,visit --out {name}.json".split()) == 0
    assert main(["data", "schema", "north.json", "south.json", "--out", "all.json"]) == 0
    assert json.loads((tmp_path / "all.json").read_text())["rows"] == 80
    assert main(["data", "patients.csv", "other.csv", "--label", "outcome"]) == 2


COLUMNS = "age,ward,hospital,outcome\n"
ROWS = "".join(f"{20 + n},{'AB'[n % 2]},{'ns'[n % 2]},{n % 3 % 2}\n" for n in range(12))
GOOD = COLUMNS + ROWS


def many(cell):
    """Write a good table with a further column, filled by a function of the row."""
    lines = GOOD.splitlines()
    return "\n".join([lines[0] + ",more", *(f"{line},{cell(n)}" for n, line in enumerate(lines[1:]))]) + "\n"


BAD = {
    "no such file": (None, {}, "there is no such file"),
    "an empty file": ("", {}, "is an empty file"),
    "no rows": (COLUMNS, {}, "has a header, but no rows"),
    "no label": (GOOD, {"label": None}, "data.label = null: name the column of .* to predict; it has age, ward"),
    "a wrong label": (
        GOOD,
        {"label": "outcom"},
        "has no column 'outcom', which data.label names; did you mean outcome",
    ),
    "a label in capitals": (GOOD, {"label": "OUTCOME"}, "has no column 'OUTCOME'.*did you mean outcome"),
    "a wrong client": (
        GOOD,
        {"client": "hospitl"},
        "has no column 'hospitl', which data.client names; did you mean hosp",
    ),
    "a wrong feature": (
        GOOD,
        {"features": "age,wrd"},
        "has no column 'wrd', which data.features names; did you mean ward",
    ),
    "a wrong drop": (GOOD, {"drop": "zzz"}, "has no column 'zzz', which data.drop names; it has age, ward"),
    "a wrong time": (GOOD, {"time": "agee"}, "has no column 'agee', which data.time names; did you mean age"),
    "two roles for one column": (
        GOOD,
        {"client": "outcome"},
        "data.client = 'outcome': is the same column as data.label",
    ),
    "the label as a feature": (GOOD, {"features": "age,outcome"}, "is the label, so it cannot be an input"),
    "nothing left": (GOOD, {"client": "hospital", "drop": "age,ward"}, "no column is left as an input"),
    "all missing": (many(lambda n: "NA"), {}, "column 'more': has no values at all; leave it out with --drop more"),
    "a label without values": (many(lambda n: ""), {"label": "more"}, "data.label = 'more': this column has no values"),
    "one class": (many(lambda n: "x"), {"label": "more"}, "has a single class, 'x', but 2 are needed"),
    "too many classes": (many(lambda n: f"id{n}"), {"label": "more"}, "has 12 different values in 12 rows"),
    "columns of the same name": ("a,b,a,outcome\n1,2,3,0\n", {}, "has 2 columns 'a'; each needs a name of its own"),
    "a column without a name": ("a,,outcome\n1,2,0\n", {}, "column 2 of 3 has no name"),
    "numbers and text": (many(lambda n: "high" if n == 5 else n), {}, "has numbers and the text 'high' .in 1 rows"),
    "a date that is none": (
        many(lambda n: f"2024-02-{n + 25}"),
        {},
        "'2024-02-30' is not a date; write dates as 2024-03-31",
    ),
    "infinity": (many(lambda n: "inf" if n == 3 else n), {}, "infinite or too large numbers in 1 rows, first in row 4"),
    "a decimal comma": (many(lambda n: f'"{n},5"'), {}, "writes decimals with a comma .0,5.; a point is needed"),
    "a row without a client": (
        many(lambda n: "" if n == 2 else "s"),
        {"client": "more"},
        "is missing in 1 rows, first in",
    ),
    "a client for each row": (many(lambda n: f"c{n}"), {"client": "more"}, "every row has another value"),
    "a time that is text": (many(lambda n: "soon"), {"time": "more"}, "has a category, but dates"),
    "a test column of numbers": (many(lambda n: n), {"test": "more"}, "must be true or false in each row"),
    "a test column that is all true": (many(lambda n: "yes"), {"test": "more"}, "marks 12 of 12 rows"),
    "dates of another form": (
        many(lambda n: f"{1 + n % 28:02d}.03.2024"),
        {},
        "has dates such as 01.03.2024; write them",
    ),
    "an open quotation mark": (GOOD + '1,"x,n,0\n', {}, "a quotation mark in row .* has no end"),
    "a longer row": (GOOD + "1,2,3,4,5,6\n", {}, "has rows of different lengths"),
    "Latin-1": ((GOOD + "1,é,n,0\n").encode("latin-1"), {}, "is not UTF-8 text .byte 0xe9.; save it as UTF-8"),
    "zero bytes": ("\0\0\0\0", {}, "is not a text file"),
    "true groups without clients": (GOOD, {"truth": "ward"}, "data.truth = 'ward': needs data.client"),
    "images asked for": (GOOD, {"kind": "image"}, "data.kind = image: .* is a table, its rows are vectors"),
    "a schema that is none": (
        GOOD,
        {"schema_file": "nowhere.json"},
        "data.schema_file = 'nowhere.json': cannot be read",
    ),
}


def test_there_are_at_least_thirty_bad_tables():
    assert len(BAD) >= 30


@pytest.mark.parametrize("case", BAD)
def test_a_bad_table_is_refused_with_one_sentence(case, tmp_path):
    text, settings, words = BAD[case]
    path = tmp_path / "bad.csv"
    if text is not None:
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(InputError, match=words) as caught:
        read_csv(path, **settings)
    assert "\n" not in str(caught.value)


def test_a_million_categories_are_refused(tmp_path):
    table = pd.DataFrame({"patient": [f"p{n}" for n in range(10**6)], "outcome": np.arange(10**6) % 2})
    with pytest.raises(InputError, match="has 1000000 different texts, in nearly every row another one"):
        hcfl.Federation.from_frame(table, label="outcome")


def test_a_file_larger_than_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "large.csv"
    with path.open("wb") as file:
        file.truncate(2 << 30)
    monkeypatch.setattr(available_memory, "free_memory", lambda: 10**10)
    with pytest.raises(InputError, match=r"would take 17.2 GB of memory, but 10 GB are free"):
        read_csv(path)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    (tmp_path / "p.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(InputError, match="cannot be read as parquet"):
        read_csv(tmp_path / "p.parquet")


def test_a_constant_column_is_told(tmp_path):
    (tmp_path / "t.csv").write_text(many(lambda n: 7))
    assert "column 'more': has a single value, so it tells the model nothing" in read_csv(tmp_path / "t.csv").notes


def test_settings_of_tables_are_refused_elsewhere():
    with pytest.raises(InputError, match=r"data.label = 'digit': is a setting of tables, but digits is none"):
        read(DataConfig(label="digit"))


def test_a_schema_file_encodes_as_it_says(tmp_path):
    path, table = written(tmp_path, patients()), patients()
    schema = fit(table, "outcome", ["age", "smoker"], "table")
    (tmp_path / "schema.json").write_text(schema.to_json())
    samples = read_csv(path, client="hospital", schema_file=str(tmp_path / "schema.json"))
    assert samples.x.shape == (120, 2)
    with pytest.raises(InputError, match=r"data.drop = age: the schema says which columns are inputs"):
        read_csv(path, schema_file=str(tmp_path / "schema.json"), drop="age")


def test_a_run_of_a_table_resumes(tmp_path):
    from hcfl.config import from_flat
    from hcfl.launch import resume

    settings = {"method": "fedem", "label": "outcome", "client": "hospital", "clusters": 2, "rounds": 3, "epochs": 1}
    path = written(tmp_path, patients())
    stop_after_one = iter([True]).__next__
    execute(prepare(from_flat(data=str(path), **settings)), tmp_path / "a", should_stop=stop_after_one)
    resumed = resume(tmp_path / "a")
    whole = execute(prepare(from_flat(data=str(path), **settings)), tmp_path / "b")
    assert [row["objective"] for row in resumed.rows] == [row["objective"] for row in whole.rows]
