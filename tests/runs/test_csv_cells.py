"""Text that a spreadsheet would take for a formula is neutralised in every CSV; numbers stay as they are."""

import csv

import numpy as np
import pytest

import hcfl
from hcfl.report import page
from hcfl.runs.csv_cells import plain, safe


@pytest.mark.parametrize("text", ["=1+1", "+1+cmd", "-2+3", "@SUM(A1)", "\tx", "\rx", "'quoted"])
def test_formulas_become_text_and_come_back(text):
    assert safe(text) == f"'{text}"
    assert plain(safe(text)) == text


@pytest.mark.parametrize("value", [-1, -1.5, None, True, "", "-1.5", "+3", "-inf", "cat", "a=b", "1e-5"])
def test_numbers_and_other_text_stay(value):
    assert safe(value) is value
    assert plain(str(value)) == str(value)


def test_names_of_clients_classes_and_concepts_are_no_formulas(tmp_path):
    rng = np.random.default_rng(0)
    names = np.array(["=HYPERLINK(1)", "@b", "plain"])
    np.savez(
        tmp_path / "a.npz",
        x=rng.normal(size=(60, 4)),
        y=np.tile(["=x", "@y"], 30),
        client=np.repeat(names, 20),
        concept=np.repeat(["-c", "+d", "=e"], 20),
    )
    run = hcfl.run("fedavg", data=str(tmp_path / "a.npz"), rounds=1, out=tmp_path / "run")
    for name in ("clients.csv", "classes.csv"):
        with (run.path / name).open(newline="") as file:
            rows = list(csv.reader(file))
        assert not [cell for row in rows for cell in row if cell.startswith(("=", "@", "-", "+"))]
        assert [row[0] for row in rows[1:]] == ["'=HYPERLINK(1)", "'@b", "plain"]
    found = page.reading.read(run.path)
    assert [row["client"] for row in found.clients] == names.tolist(), "the page shows names as they are"
    assert found.classes[0] == ["client", "=x", "@y"]


def test_tables_of_many_runs_hold_no_formulas(tmp_path, monkeypatch):
    from pandas import DataFrame

    from hcfl.studies import comparison, reproduce

    frame = DataFrame({"method": ["=a", "fedavg"], "model": ["@m", "mlp"], "gap_mean": [-0.5, float("nan")]})
    monkeypatch.setattr(comparison, "frame_of", lambda lines: frame.set_index(["method", "model"]))
    assert comparison.csv_text([]) == "method,model,gap_mean\n'=a,'@m,-0.5\nfedavg,mlp,\n"
    monkeypatch.setattr(reproduce, "asdict", lambda number: number)
    reproduce.write_csv(tmp_path / "a.csv", [{"row": "=a", "ours": -1.5}, {"row": "b", "ours": None}])
    assert (tmp_path / "a.csv").read_text() == "row,ours\n'=a,-1.5\nb,\n"
