"""The report as a file: what it holds, for folders of every kind, and what is said where there can be none."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_pages import data_of

import hcfl
from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.report import page
from hcfl.report.page import matrices
from hcfl.report.page.reading import rule_of
from hcfl.report.page.write_page import embedded
from hcfl.runs import folder as run_folder
from hcfl.runs.tables import class_rows
from helpers import blobs


@pytest.fixture(scope="module")
def planted_run(tmp_path_factory):
    x, y = blobs()
    federation = Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1)
    return hcfl.run("hcfl+(fedrc)", federation, rounds=5, out=tmp_path_factory.mktemp("runs") / "planted")


@pytest.fixture
def folder(planted_run, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(planted_run.path, tmp_path / "run")


def test_it_holds_what_the_folder_holds(planted_run):
    out = planted_run.report()
    assert out == planted_run.path / "report.html"
    (run,) = data_of(out)["runs"]
    assert run["summary"] == json.loads((planted_run.path / "summary.json").read_text())
    assert run["curves"]["test"] == [row["test"] for row in planted_run.rows]
    last = planted_run.rows[-1]
    assert run["sizes"][-1] == dict(zip(map(str, last["cluster_ids"]), last["cluster_sizes"], strict=True))
    assert sum(sum(part) for part in run["up"].values()) == run["summary"]["bytes_up"]
    assert sum(sum(part) for part in run["down"].values()) == run["summary"]["bytes_down"]
    assert sum(sum(part) for part in run["phases"].values()) == pytest.approx(sum(run["curves"]["seconds"]))
    assert set(run["phases"]) == {"clients", "server", "evaluation"}
    weights = planted_run.state.server.weights.numpy()
    np.testing.assert_allclose(run["clients"]["weights"], weights, atol=6e-4)
    assert run["clients"]["concepts"] == [str(concept) for concept in planted_run.federation.truth.concept]
    assert np.sum(run["classes"]["counts"]) == planted_run.federation.class_table().sum()
    assert run["config"] == (planted_run.path / "config.yaml").read_text()
    assert run["rule"] == "gap"
    assert len(run["splits"]) == sum(row["event"] == "split" for row in run["events"]) > 0


def test_classes_are_counted_by_the_cluster_that_is_a_client_s_own(planted_run):
    counts = np.array(data_of(planted_run.report())["runs"][0]["classes"]["counts"])
    members, table = planted_run.state.server.members.numpy(), planted_run.federation.class_table()
    for column in range(len(counts)):
        np.testing.assert_array_equal(counts[column], table[members == column].sum(axis=0))


def test_nothing_in_it_comes_from_elsewhere(planted_run):
    text = planted_run.report().read_text()
    assert "default-src 'none'" in text
    assert re.findall(r"https?://[^\"'\s)]+", text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(link|iframe|img)\b|@import|\bfetch\(|XMLHttpRequest|\beval\(|innerHTML", text)
    assert len(text) < 200_000


ANYTHING = st.recursive(
    st.text() | st.floats() | st.none() | st.integers(), lambda some: st.lists(some) | st.dictionaries(st.text(), some)
)


@settings(max_examples=40)
@given(ANYTHING)
def test_data_cannot_leave_their_element(data):
    text = embedded(data)
    assert not set("<>&\u2028\u2029") & set(text)
    again = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert again == json.loads(json.dumps(data), parse_constant=lambda name: None)


def test_a_folder_of_an_older_version_says_what_it_has_not(folder):
    (folder / "splits.jsonl").unlink()
    (folder / "classes.csv").unlink()
    rows = run_folder.rows(folder, "metrics.jsonl")
    older = [{key: value for key, value in row.items() if key != "seconds_by_phase"} for row in rows]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in older))
    (run,) = data_of(page.write([folder]))["runs"]
    assert run["phases"] is None
    assert run["classes"] is None
    assert run["splits"] == []


def test_a_run_that_was_killed_shows_the_rounds_it_has(folder, planted_run):
    for name in ("summary.json", "clients.csv", "classes.csv"):
        (folder / name).unlink()
    whole = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join(whole[:3]) + whole[3][:40])
    (run,) = data_of(page.write([folder]))["runs"]
    assert run["summary"]["rounds"] == 3
    assert run["summary"]["test_last"] == planted_run.rows[2]["test"]
    assert run["rounds_wanted"] == 5
    assert run["clients"] is None
    assert not run["ended"]


def test_a_summary_of_an_earlier_round_is_not_taken_for_the_last(folder, planted_run):
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "rounds": 2, "test_last": 0.0}))
    (run,) = data_of(page.write([folder]))["runs"]
    assert run["summary"]["test_last"] == planted_run.summary["test_last"]


def test_where_clients_keep_their_data_no_classes_are_known(planted_run):
    empty = replace(planted_run.federation, y=planted_run.federation.y[:0])
    assert class_rows(empty) == [["client", "0", "1", "2", "3"]]
    assert matrices.classes([{"cluster": "0"}], [["client", "0"]]) is None


def test_distances_beyond_the_room_of_a_page_stay_in_the_folder():
    row = {"round": 1, "cluster": 0, "new_cluster": 1, "clients_compared": 3, "in_first_part": 2, "clients": [1, 2, 3],
           "distances": [[], [0.25], [1.0, float("inf")]]}  # fmt: skip
    first, second = matrices.splits([row, row], 5)
    assert first["values"] == [250, 999, 999]
    assert first["largest"] == 1.0
    assert second["values"] is None


@pytest.mark.parametrize(
    ("method", "adaptation", "rule"),
    [("hcfl+(fesem)", None, "gap"), ("cfl", None, "norms"), ("hcfl-prime(fedem)", None, "norms"),
     ("hcfl++", None, "evidence"), ("hcfl++", "split-on-contradiction", "contradiction"),
     ("icfl", None, "coherence"), ("pacfl", None, "cut"), ("stocfl", None, None),
     ("cfl", "split-and-remove(rho=0.1)", "gap"), ("hcfl+(fedem)", "mine.py:Split", None)],
)  # fmt: skip
def test_what_a_split_s_numbers_mean(method, adaptation, rule):
    assert rule_of(from_flat(method=method, adaptation=adaptation)) == rule


# Several runs


def test_runs_over_the_same_data_are_compared(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, method, seed in (("a", "fedavg", 0), ("b", "ifca", 0), ("c", "fedavg", 1)):
        hcfl.run(method, rounds=1, clients=4, seed=seed, out=tmp_path / name)
    assert main(["report", "a", "b", "c"]) == 0
    assert capsys.readouterr().out == "Report: report.html\n"
    runs = data_of(tmp_path / "report.html")["runs"]
    assert [run["label"] for run in runs] == ["fedavg, seed 0", "ifca", "fedavg, seed 1"]
    hcfl.run("fedavg", rounds=1, clients=5, out=tmp_path / "d")
    assert main(["report", "a", "d"]) == 2
    error = capsys.readouterr().err
    assert error == (
        "hcfl: run = 'd': has data.clients = 5, but 'a' has 4; only runs over the same data can be compared\n"
    )


def test_arrays_of_one_name_that_hold_other_clients_are_refused(tmp_path):
    x, y = blobs(per_class=20)
    for name, clients in (("a", ["ann", "bob"]), ("b", ["ann", "eve"])):
        federation = Federation.from_arrays(x, y, client=np.array(clients)[np.arange(len(y)) % 2])
        hcfl.run("fedavg", federation, rounds=1, out=tmp_path / name)
    with pytest.raises(InputError, match="has other clients than"):
        page.write([tmp_path / "a", tmp_path / "b"], tmp_path / "report.html")


# What is said


def test_bad_input_is_one_sentence(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "folder.html").mkdir()
    run_folder.create(tmp_path / "begun", hcfl.Config())
    wrong = {
        ("nothing",): "run = 'nothing': is not a run folder, it has no config.yaml",
        ("empty",): "run = 'empty': is not a run folder, it has no config.yaml",
        ("begun",): "run = 'begun': has no completed round yet",
        ("run", "--out", "report.pdf"): "out = 'report.pdf': must end in .html",
        ("run", "--out", "folder.html"): "out = 'folder.html': cannot be written (Is a directory)",
        ("run", "--out", "run/summary.json/x.html"): "out = 'run/summary.json/x.html': cannot be written",
    }
    for arguments, sentence in wrong.items():
        assert main(["report", *arguments]) == 2, arguments
        error = capsys.readouterr().err
        assert error.startswith(f"hcfl: {sentence}")
        assert error.count("\n") == 1
    with pytest.raises(SystemExit, match="2"):
        main(["report"])


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "splits.jsonl", "summary.json", "clients.csv"])
@pytest.mark.parametrize("content", ['{"round": 1}\n', "[]\n", "\n", '{"round": "x"}\n', "\x00\n"])
def test_damaged_files_are_said(folder, name, content, capsys):
    (folder / name).write_text(content)
    code = main(["report", str(folder)])
    error = capsys.readouterr().err
    assert code in (0, 2)
    assert (code == 2) == bool(error)
    assert error.count("\n") == code // 2
    if name in ("metrics.jsonl", "summary.json"):
        assert code == 2
