"""Clients with files of their own: what they have in common is settled first; who does not fit is refused."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from fake_grid import FakeGrid, _a_run  # noqa: F401
from same import same_run
from sklearn.datasets import load_digits

import hcfl
from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.engines.flower import records
from hcfl.engines.flower.messages import Measured
from hcfl.errors import InputError
from hcfl.flower import client_app, server_app
from hcfl.flower.run_settings import read
from hcfl.launch import execute
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import prepare
from helpers import tiny_language_model

NAMES = ("north", "south", "west")
COUNTRIES = {"north": "a", "south": "a", "west": "b"}
SETTINGS = {"method": "hcfl+(fedrc)", "rounds": 4, "rho": 0.1, "batch": 16, "epochs": 1, "model": "mlp"}


def write(folder, names=NAMES, dtype=np.uint8):
    """Write a file for each client, the last of whom labels otherwise, and one with all of them."""
    digits = load_digits()
    chosen = np.random.default_rng(0).permutation(len(digits.target))[: 100 * len(names)]
    x, y, client = digits.images[chosen].astype(dtype), digits.target[chosen], np.arange(len(chosen)) % len(names)
    y[client == len(names) - 1] = (y[client == len(names) - 1] + 1) % 10
    for number, name in enumerate(names):
        np.savez(folder / f"{name}.npz", x=x[client == number], y=y[client == number])
    np.savez(folder / "all.npz", x=x, y=y, client=np.array(names)[client])


def node(folder, name, claimed=None):
    config = {"name": claimed or name, "data": str(folder / f"{name}.npz"), "state": str(folder / "states" / name)}
    return (name, config)


def grid_of(folder, names=NAMES):
    return FakeGrid({100 + number: node(folder, name) for number, name in enumerate(names)})


def told(out, names=NAMES, **more):
    given = {"names": ", ".join(names), "out": str(out), "timeout": 2.0, "wait": 3.0, **SETTINGS, **more}
    return read({key.replace("_", "-"): value for key, value in given.items()})


def pooled(folder, out, **more):
    execute(prepare(from_flat(**{**SETTINGS, **more}, data=str(folder / "all.npz"), engine="sequential")), out)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_clients_with_their_own_files_are_what_one_file_with_all_of_them_is(tmp_path, dtype):
    write(tmp_path, dtype=dtype)
    server_app.play(grid_of(tmp_path), told(tmp_path / "run"))
    pooled(tmp_path, tmp_path / "pooled")
    same_run(tmp_path / "run", tmp_path / "pooled")
    table = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in table[1:]] == [[name, "90"] for name in NAMES]


def test_samples_that_clients_set_aside_come_back(tmp_path):
    """Files are not refused because the client trains on more of their samples than before."""
    write(tmp_path)
    personal = {"personal": "head", "personal_after": 2}
    server_app.play(grid_of(tmp_path), told(tmp_path / "run", **personal, measure="rounds"))
    pooled(tmp_path, tmp_path / "pooled", **personal)
    same_run(tmp_path / "run", tmp_path / "pooled")
    table = (tmp_path / "run" / "clients.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in table[1:]] == [[name, "90"] for name in NAMES]
    rows = run_folder.rows(tmp_path / "run", "metrics.jsonl")
    assert [row["participants"] for row in rows] == [3] * 4
    assert {row["event"] for row in run_folder.rows(tmp_path / "run", "events.jsonl")}.isdisjoint({"refused", "absent"})
    summaries = [json.loads((tmp_path / run / "summary.json").read_text()) for run in ("run", "pooled")]
    assert summaries[0]["val_personal_last"] == pytest.approx(summaries[1]["val_personal_last"])


def test_clients_with_their_own_tables_encode_them_by_the_schema_of_the_run(tmp_path):
    draw = np.random.default_rng(0)
    table = pd.DataFrame({"age": draw.integers(20, 90, 240), "ward": draw.choice(["A", "B"], 240)})
    table["site"] = np.array(NAMES)[np.arange(240) % 3]
    table.loc[(table.site == "west") & (table.ward == "A"), "ward"] = "C"  # a category that only one client has
    table["outcome"] = np.where((table.age > 55) == (table.site != "west"), "sick", "well")
    table["country"] = table.site.map(COUNTRIES)
    table.to_csv(tmp_path / "all.csv", index=False)
    nodes = {}
    for number, name in enumerate(NAMES):
        part = table[table.site == name].drop(columns="site")
        part["country"] = COUNTRIES[name]
        part.to_csv(tmp_path / f"{name}.csv", index=False)
        config = {"name": name, "data": str(tmp_path / f"{name}.csv"), "state": str(tmp_path / "states" / name)}
        nodes[100 + number] = (name, config)
    schema = tmp_path / "schema.json"
    files = [str(tmp_path / f"{name}.csv") for name in NAMES]
    assert main(["data", "schema", *files, "--label", "outcome", "--drop", "country", "--out", str(schema)]) == 0
    server_app.play(FakeGrid(nodes), told(tmp_path / "run", schema_file=str(schema), groups="country"))
    whole = from_flat(
        **SETTINGS,
        data=str(tmp_path / "all.csv"),
        label="outcome",
        client="site",
        schema_file=str(schema),
        groups="country",
        engine="sequential",
    )
    execute(prepare(whole), tmp_path / "pooled")
    same_run(tmp_path / "run", tmp_path / "pooled")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["groups_given"] == 2
    assert hcfl.load(tmp_path / "run").federation.schema == hcfl.Schema.load(schema)
    with pytest.raises(InputError, match="is a table, so the run needs schema-file"):
        server_app.play(FakeGrid(nodes), told(tmp_path / "other", timeout=0.1, wait=0.2))


def test_clients_with_their_own_texts_read_them_by_the_tokenizer_of_the_schema(tmp_path):
    pytest.importorskip("transformers")
    model = tiny_language_model(tmp_path / "tiny")
    said = ["a good day", "a bad night", "very good", "very bad"] * 30
    table = pd.DataFrame({"review": said, "site": np.array(NAMES)[np.arange(120) // 4 % 3]})
    table["mood"] = np.where(table.review.str.contains("bad"), "down", "up")
    table.to_csv(tmp_path / "all.csv", index=False)
    nodes, files = {}, []
    for number, name in enumerate(NAMES):
        files.append(str(tmp_path / f"{name}.csv"))
        table[table.site == name].drop(columns="site").to_csv(files[-1], index=False)
        config = {"name": name, "data": files[-1], "state": str(tmp_path / "states" / name)}
        nodes[100 + number] = (name, config)
    schema, texts = tmp_path / "schema.json", {"text": "review", "text_length": 3}
    reads = ["--text", "review", "--text-length", "3", "--tokenizer", model]
    assert main(["data", "schema", *files, "--label", "mood", *reads, "--out", str(schema)]) == 0
    trained = {"method": "ifca", "clusters": 2, "model": model, "train": "heads", "rounds": 2, "rho": None}
    server_app.play(FakeGrid(nodes), told(tmp_path / "run", schema_file=str(schema), **texts, **trained))
    settings = {**SETTINGS, **trained, **texts, "label": "mood", "client": "site", "data": str(tmp_path / "all.csv")}
    execute(prepare(from_flat(**settings, schema_file=str(schema), engine="sequential")), tmp_path / "pooled")
    same_run(tmp_path / "run", tmp_path / "pooled")


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_run_stops_by_what_clients_say_of_their_held_out_samples(tmp_path, task):
    draw = np.random.default_rng(0)  # nothing to learn: it overfits
    table = pd.DataFrame(draw.normal(size=(60, 5)).astype(np.float32), columns=list("abcde"))
    table["y"] = draw.choice(["no", "yes"], 60) if task == "classification" else draw.normal(size=60)
    table["site"] = np.array(NAMES)[np.arange(60) % 3]
    table.to_csv(tmp_path / "all.csv", index=False)
    nodes, files = {}, []
    for number, name in enumerate(NAMES):
        files.append(str(tmp_path / f"{name}.csv"))
        table[table.site == name].drop(columns="site").to_csv(files[-1], index=False)
        config = {"name": name, "data": files[-1], "state": str(tmp_path / "states" / name)}
        nodes[100 + number] = (name, config)
    schema = str(tmp_path / "schema.json")
    assert main(["data", "schema", *files, "--label", "y", "--out", schema]) == 0
    given = {"method": "fedavg", "rounds": 40, "patience": 3, "lr": 0.1, "epochs": 3, "val_share": 0.2, "model": "mlp"}
    given |= {"schema_file": schema, "batch": 16, "rho": None}
    server_app.play(FakeGrid(nodes), told(tmp_path / "run", **given))
    pool = from_flat(**given, data=str(tmp_path / "all.csv"), label="y", client="site", engine="sequential")
    pooled = execute(prepare(pool), tmp_path / "pooled")
    run = hcfl.load(tmp_path / "run")
    told_by_them = [row["received_likelihood"] for row in run.rows]
    later = told_by_them[1:]  # of the models that the round before ended with
    assert later == pytest.approx([row["likelihood"] for row in pooled.rows][: len(later)], rel=1e-4)
    assert len(run.rows) == told_by_them.index(max(told_by_them)) + 1 + 3 < 40
    assert run.summary["stopped_early"] is True


def test_a_client_that_comes_late_takes_part_from_then_on(tmp_path):
    write(tmp_path)
    grid = grid_of(tmp_path)
    late = grid.nodes.pop(102)

    def arrives(message, reply):
        grid.nodes[102] = late
        return reply

    grid.before[100] = [None, arrives]
    server_app.play(grid, told(tmp_path / "run"))
    rows = run_folder.rows(tmp_path / "run", "metrics.jsonl")
    assert [row["participants"] for row in rows] == [2, 2, 3, 3]
    absent = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "absent"]
    assert [(row["round"], row["client"], row["reason"]) for row in absent] == [
        (1, "west", "is not connected"),
        (2, "west", "is not connected"),
    ]


def test_a_node_that_comes_back_under_another_number_is_the_same_client(tmp_path):
    write(tmp_path)
    grid = grid_of(tmp_path)

    def moves(message, reply):
        grid.nodes[999] = grid.nodes.pop(101)
        return reply

    grid.before[102] = [None, moves]
    server_app.play(grid, told(tmp_path / "run"))
    pooled(tmp_path, tmp_path / "pooled")
    same_run(tmp_path / "run", tmp_path / "pooled")


def test_nobody_can_be_another_client(tmp_path, capsys):
    write(tmp_path)
    grid = grid_of(tmp_path)
    grid.nodes[102] = node(tmp_path, "west", claimed="north")
    server_app.play(grid, told(tmp_path / "run"))
    assert "Refused: west (says that it is 'north', but its key is that of 'west'" in capsys.readouterr().out
    assert {row["participants"] for row in run_folder.rows(tmp_path / "run", "metrics.jsonl")} == {2}


def test_who_is_not_asked_for_does_not_take_part(tmp_path, capsys):
    write(tmp_path)
    server_app.play(grid_of(tmp_path), told(tmp_path / "run", names=("north", "south")))
    assert "Refused: west ('west' is not among the clients of this run" in capsys.readouterr().out


def test_a_client_of_another_shape_than_most_is_refused_before_the_run_begins(tmp_path):
    write(tmp_path)
    with np.load(tmp_path / "south.npz") as old:
        np.savez(tmp_path / "south.npz", x=old["x"][:, :4, :4], y=old["y"])
    server_app.play(grid_of(tmp_path), told(tmp_path / "run"))
    (refused,) = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "refused"]
    assert refused["client"] == "south"
    assert refused["reason"] == "has inputs of shape (4, 4, 1), but most have (8, 8, 1)"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda x, y: {"x": x[:, :4, :4], "y": y},
            r"has inputs of shape \(4, 4, 1\), but the federation's are \(8, 8, 1\)",
        ),
        (lambda x, y: {"x": x, "y": y + 5}, "has the class 10, which the federation does not have"),
        (lambda x, y: {"x": x}, "has no array 'y'"),
        (lambda x, y: {"x": x, "y": y, "client": y}, "has 'client', but a client's own file has x and y only"),
    ],
)
def test_a_late_client_that_does_not_fit_is_refused(tmp_path, change, reason):
    write(tmp_path)
    grid = grid_of(tmp_path)
    late = grid.nodes.pop(102)
    with np.load(tmp_path / "west.npz") as old:
        np.savez(tmp_path / "west.npz", **change(old["x"], old["y"]))

    def arrives(message, reply):
        grid.nodes[102] = late
        return reply

    grid.before[100] = [arrives]
    server_app.play(grid, told(tmp_path / "run"))
    assert {row["participants"] for row in run_folder.rows(tmp_path / "run", "metrics.jsonl")} == {2}
    (refused,) = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "refused"]
    assert refused["client"] == "west"
    assert re.search(reason, refused["reason"])


def test_a_file_that_changes_during_a_run_is_noticed(tmp_path):
    write(tmp_path)
    grid = grid_of(tmp_path)

    def changes(message, reply):
        with np.load(tmp_path / "west.npz") as old:
            shorter = {name: old[name][:50] for name in ("x", "y")}
        np.savez(tmp_path / "west.npz", **shorter)
        client_app._prepared.cache_clear()
        return reply

    grid.before[102] = [changes]
    server_app.play(grid, told(tmp_path / "run"))
    absent = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "absent"]
    assert [row["round"] for row in absent] == [2, 3, 4]
    assert absent[0]["reason"] == "data: has 45 samples for training, but had 90 when this run began"


def test_without_enough_clients_nothing_begins(tmp_path):
    write(tmp_path)
    grid = grid_of(tmp_path)
    del grid.nodes[100], grid.nodes[101]
    with pytest.raises(
        InputError, match=r"wait = 3: 2 clients are needed to begin, but 1 of 3 came \(missing: north, south\)"
    ):
        server_app.play(grid, told(tmp_path / "run"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"quorum": 1.5}, "quorum = 1.5: must be above 0 and at most 1"),
        ({"quorum": 0}, "quorum = 0: must be a number above 0"),
        ({"timeout": "soon"}, "timeout = 'soon': must be a number above 0"),
        ({"wait": True}, "wait = True: must be a number above 0"),
        ({"names": ("a", "b", "a")}, "two clients have the same name"),
        ({"settings": "lr"}, "settings = 'lr': must look like lr=0.05"),
        ({"settings": "lrr=1"}, "lrr = '1': there is no such setting; did you mean lr"),
        ({"settings": "lr=fast"}, "training.lr = 'fast': should be a valid number"),
    ],
)
def test_what_is_wrong_with_a_runs_settings_is_one_sentence(tmp_path, given, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        told(tmp_path / "run", **given)


def test_a_run_that_goes_on_can_have_more_clients(tmp_path):
    write(tmp_path, (*NAMES, "zenith"))
    server_app.play(grid_of(tmp_path), told(tmp_path / "run", rounds=2))
    text = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "run" / "config.yaml").write_text(text.replace("rounds: 2", "rounds: 4"))
    more = (*NAMES, "zenith")
    server_app.play(grid_of(tmp_path, more), told(tmp_path / "run", names=more, resume=str(tmp_path / "run")))
    rows = run_folder.rows(tmp_path / "run", "metrics.jsonl")
    assert [row["participants"] for row in rows] == [3, 3, 4, 4]
    assert (tmp_path / "run" / "clients.csv").read_text().count("zenith") == 1
    with pytest.raises(
        InputError, match="names = north, zenith: a run that goes on keeps its clients, and their order"
    ):
        server_app.play(
            grid_of(tmp_path), told(tmp_path / "run", names=("north", "zenith"), resume=str(tmp_path / "run"))
        )


@pytest.mark.parametrize("loss", [None, "laplace"])
def test_clients_make_personal_parts_of_numbers_on_their_own_machines(tmp_path, loss):
    """With the same sums as in one process; the variance that a client found of a part is not told."""
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(180, 3)).astype(np.float32), columns=list("abc"))
    number = np.arange(180) % 3
    table["y"] = np.array([2.0, -2.0, 0.5])[number] * table.a + number + 0.3 * draw.normal(size=180)
    table["site"] = np.array(NAMES)[number]
    table.to_csv(tmp_path / "all.csv", index=False)
    nodes, files = {}, []
    for place, name in enumerate(NAMES):
        files.append(str(tmp_path / f"{name}.csv"))
        table[table.site == name].drop(columns="site").to_csv(files[-1], index=False)
        nodes[100 + place] = (name, {"name": name, "data": files[-1], "state": str(tmp_path / "states" / name)})
    schema = str(tmp_path / "schema.json")
    assert main(["data", "schema", *files, "--label", "y", "--out", schema]) == 0
    (tmp_path / "mine.py").write_text("def laplace(outputs, answers):\n    return -(outputs[:, 0] - answers).abs()\n")
    given = {"method": "fedavg", "rounds": 2, "epochs": 1, "val_share": 0.2, "schema_file": schema, "rho": None}
    given |= (
        {"personal": "head"} if loss is None else {"personal": "fine-tune", "loss": f"{tmp_path / 'mine.py'}:{loss}"}
    )
    grid = FakeGrid(nodes)
    server_app.play(grid, told(tmp_path / "run", **given))
    pool = from_flat(**given, data=str(tmp_path / "all.csv"), label="y", client="site", engine="sequential")
    pooled = execute(prepare(pool), tmp_path / "pooled")
    there, here = json.loads((tmp_path / "run" / run_folder.SUMMARY).read_text()), pooled.summary
    assert there["val_personal_last"] == pytest.approx(here["val_personal_last"], abs=1e-4)
    assert there["val_personal_last"] > there["val_last"] + 0.1
    sent = [records.unpack(Measured, one.content) for one in grid.answered if one.metadata.message_type == "evaluate"]
    assert any(one.gains is not None for one in sent)
    assert all(one.gains is None or one.gains.errors is None for one in sent)
