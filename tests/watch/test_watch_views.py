"""What the page gets of a run: the report's own data, and the state that the run is in."""

import json
import os
import shutil
import socket

import numpy as np
import psutil
import pytest
from watched import planted

import hcfl
from hcfl.report.page.reading import as_data, read
from hcfl.runs.restore import held
from hcfl.watch import detail as details
from hcfl.watch.board import Board, news_of_list, news_of_run
from hcfl.watch.condense import MOST_COLUMNS, MOST_ROWS, condensed
from hcfl.watch.detail import Detail
from hcfl.watch.files import Place
from hcfl.watch.glance import Glance, seconds_left, state_of
from hcfl.watch.process import Player, player

HERE, GONE, ELSEWHERE = Player(1, True, True, 5), Player(1, True, False, None), Player(1, False, False, None)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return hcfl.run("hcfl+(fedrc)", planted(), rounds=5, out=tmp_path_factory.mktemp("watched") / "run").path


@pytest.fixture
def folder(finished, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(finished, tmp_path / "runs" / "run")


def looked(folder):
    detail = Detail(Glance("runs/run", Place(folder.parent, (folder.name,))))
    detail.look()
    return detail


def cut(folder, rounds):
    """Let a folder look like that of a run that has played so many rounds."""
    (folder / "summary.json").unlink()
    for name in ("metrics.jsonl", "events.jsonl", "splits.jsonl"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(one for one in lines if json.loads(one)["round"] <= rounds))


def test_a_finished_run_has_exactly_the_report_s_data(finished):
    shown = looked(finished).data()
    live = shown.pop("live")
    assert shown.pop("condensed") is None
    assert shown.pop("nodes") is None
    assert shown == as_data(read(finished), "hcfl+(fedrc)", 10**9)
    assert (live["state"], live["done"], live["rounds"], live["left"]) == ("finished", 5, 5, None)
    assert live["disk"] == sum(path.stat().st_size for path in finished.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("done", "saved", "by", "quiet", "state"),
    [
        (0, False, HERE, 1, "starting"),
        (3, False, HERE, 9999, "running"),
        (3, False, GONE, 1, "killed"),
        (3, True, None, 1, "stopped"),
        (5, True, None, 1, "finished"),
        (5, False, None, 1, "stopped"),
        (3, False, ELSEWHERE, 30, "running"),
        (3, False, ELSEWHERE, 200, "unknown"),
        (3, False, ELSEWHERE, 200, "running"),
    ],
)
def test_states(done, saved, by, quiet, state):
    usual = 60.0 if state == "running" else 1.0
    assert state_of(done, 5, saved, by, quiet, usual) == state


def test_the_time_left_is_that_of_the_last_rounds():
    assert seconds_left("running", 20, 30, 2.0, 0.5) == 19.5
    assert seconds_left("running", 29, 30, 2.0, 99.0) == 0.0
    assert seconds_left("killed", 20, 30, 2.0, 0.5) is None
    assert seconds_left("running", 0, 30, None, 0.5) is None


def test_the_lock_file_names_its_process(folder):
    place = Place(folder)
    assert player(place) is None
    with held(folder):
        mine = player(place)
        assert (mine.pid, mine.alive) == (os.getpid(), True)
        assert mine.memory > 10**6
        said = json.loads((folder / ".lock").read_text())
        assert said["host"] == socket.gethostname()
    assert player(place) is None
    (folder / ".lock").write_text(json.dumps({**said, "started": psutil.boot_time() - 999}))  # another has its number
    assert player(place) == Player(os.getpid(), True, False, None)
    (folder / ".lock").write_text("")  # of an older version
    assert not player(place).alive


def test_a_run_under_way_shows_what_there_is(folder):
    cut(folder, 3)
    with held(folder):
        detail = looked(folder)
        shown = detail.data()
        assert shown["live"]["state"] == "running"
        assert shown["live"]["commands"] == [("stop after this round", f"kill -INT {os.getpid()}")]
        assert shown["curves"]["round"] == [1, 2, 3]
        assert shown["summary"]["clusters_true"] == 3
        assert shown["clients"]["names"] == [str(number) for number in range(12)]
        before = detail.parts()
        with (folder / "events.jsonl").open("a") as file:
            file.write(json.dumps({"event": "refused", "round": 3, "client": "7", "reason": "<b>NaN</b>"}) + "\n")
        detail.look()
        after = detail.parts()
        changed = {key for key in after if before[key] != after[key]}
        assert changed <= {"events", "live"}
        assert detail.data()["live"]["missing"]["clients"] == [["7", 0, 1, 3, "<b>NaN</b>"]]
    cut_again = looked(folder).data()["live"]
    assert cut_again["state"] == "stopped"
    assert cut_again["commands"][0] == ("resume", f"hcfl resume {folder}")


def test_before_the_first_round_there_is_a_state_and_no_figure(folder):
    cut(folder, 0)
    with held(folder):
        shown = looked(folder).data()
    assert shown["curves"] is None
    assert shown["live"]["state"] == "starting"


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "events.jsonl", "splits.jsonl", "clients.csv"])
def test_damaged_files_are_said_and_nothing_else_happens(folder, name):
    for content in (b"", b"\xff\x00", b'{"round": 1}\n', b"a,b\n1\n", b"[" * 5_000, b"{}"):
        (folder / name).write_bytes(content)
        detail = looked(folder)
        assert isinstance(detail.parts()["live"], str)
        assert isinstance(Board([folder.parent]).cards()["runs/run"], dict)


def test_logs_are_bounded(folder, monkeypatch):
    detail = looked(folder)
    for number in range(3 * details.MOST_MISSING):
        detail.events.add({"event": "absent", "round": number, "client": number % 70, "reason": "x" * 9999})
    missing = detail.data()["live"]["missing"]
    assert (missing["absent"], len(missing["clients"]), missing["others"]) == (1500, details.LISTED, 20)
    assert len(detail.events.missing) == details.MOST_MISSING
    assert max(len(row["reason"]) for row in detail.events.missing) == details.LONGEST_NAME


def test_ten_thousand_clients_are_summarised():
    generator = np.random.default_rng(0)
    own = generator.integers(0, 400, 10_000)
    clients = {
        "names": [f"client {number}" for number in range(10_000)],
        "samples": [3] * 10_000,
        "concepts": [str(number % 3) for number in own],
        "own": [str(number) for number in own],
        "corruptions": None,
        "clusters": [str(number) for number in range(400)],
        "weights": np.eye(400)[own].tolist(),
    }
    few, _, note = condensed(clients, None)
    assert note == {"clients": 10_000, "rows": len(few["names"]), "clusters": 400, "columns": MOST_COLUMNS}
    assert MOST_ROWS < len(few["names"]) <= 2 * MOST_ROWS  # each row is of one cluster only, and there are 400
    assert sum(few["samples"][:10]) <= 30_000
    assert {len(row) for row in few["weights"]} == {MOST_COLUMNS}
    for name, row in zip(few["own"], few["weights"], strict=True):
        wanted = [float(name == cluster) for cluster in few["clusters"]]
        assert row == wanted
    small = {**clients, **{key: clients[key][:50] for key in ("names", "samples", "concepts", "own")}}
    small |= {"clusters": clients["clusters"][:2], "weights": [[0.25, 0.75]] * 50, "own": ["1"] * 50}
    assert condensed(small, None) == (small, None, None)


def test_the_list_knows_a_configuration_in_any_form(folder):
    config = hcfl.config.from_flat(method="fedavg", rounds=7, seed=4, data="a " * 90 + "'b'")
    other = {"method": {"name": "fedavg"}, "data": {"source": config.data.source}, "seed": 4, "training": {"rounds": 7}}
    for text in (config.to_yaml(), json.dumps(other)):
        (folder / "config.yaml").write_text(text)
        about = looked(folder).glance.about
        assert about == {"method": "fedavg", "data": config.data.source, "seed": 4, "rounds": 7}


def test_only_what_changed_is_sent(folder):
    board, sent = Board([folder.parent]), {}
    first = json.loads(news_of_run(board, "runs/run", sent).split("data: ")[1])
    assert first["id"] == "runs/run"
    assert {"curves", "splits", "config", "live"} <= first["parts"].keys()
    assert news_of_run(board, "runs/run", sent) is None
    assert news_of_run(board, "runs/../run", {}).startswith("event: gone")
    cards = {}
    assert json.loads(news_of_list(board, cards).split("data: ")[1])["changed"][0]["state"] == "finished"
    assert news_of_list(board, cards) is None
