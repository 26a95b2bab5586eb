"""A run that was interrupted goes on as if it had not been."""

import json

import pytest

from hcfl import run_folder
from hcfl.checkpoint import load
from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.errors import InputError
from hcfl.experiment import execute, prepare
from hcfl.resuming import resume
from helpers import same

SMALL = {"method": "hcfl+(fedrc)", "clients": 5, "rounds": 4, "epochs": 1, "participation": 0.7}


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C."""


def stop_after(rounds):
    def on_round(record):
        if record.round == rounds:
            raise Interrupted

    return on_round


def without_seconds(path):
    return [{**row, "seconds": 0, "seconds_by_phase": 0} for row in run_folder.rows(path, "metrics.jsonl")]


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_it_ends_as_if_it_had_not_been_interrupted(tmp_path, engine):
    config = from_flat(engine=engine, **SMALL)
    execute(prepare(config), tmp_path / "whole")
    with pytest.raises(Interrupted):
        execute(prepare(config), tmp_path / "run", stop_after(2))
    assert len(without_seconds(tmp_path / "run")) == 2
    seen = []
    run = resume(tmp_path / "run", lambda record: seen.append(record.round))
    assert seen == [3, 4]
    assert without_seconds(tmp_path / "run") == without_seconds(tmp_path / "whole")
    for name in ("events.jsonl", "splits.jsonl", "clients.csv", "classes.csv"):
        assert (tmp_path / "run" / name).read_text() == (tmp_path / "whole" / name).read_text()
    one, two = (load(tmp_path / name / "checkpoint")[0].server.ensemble for name in ("run", "whole"))
    same(one.heads, two.heads)
    same(one.extractors, two.extractors)
    assert {**run.summary, "seconds_per_round": 0} == {
        **json.loads((tmp_path / "whole" / "summary.json").read_text()),
        "seconds_per_round": 0,
    }


def test_what_was_written_after_the_checkpoint_is_taken_back(tmp_path):
    config = from_flat(**SMALL)
    with pytest.raises(Interrupted):
        execute(prepare(config), tmp_path / "run", stop_after(2))
    row = run_folder.rows(tmp_path / "run", "metrics.jsonl")[-1]
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**row, "round": 3}) + "\n" + '{"round": 4, "parti')
    with (tmp_path / "run" / "splits.jsonl").open("a") as file:
        file.write(json.dumps({"round": 3, "cluster": 0, "new_cluster": 1}) + "\n")
    resume(tmp_path / "run")
    assert {"round": 3, "cluster": 0, "new_cluster": 1} not in run_folder.rows(tmp_path / "run", "splits.jsonl")
    assert [row["round"] for row in run_folder.rows(tmp_path / "run", "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_run_that_is_complete_stays_as_it_is(tmp_path):
    whole = execute(prepare(replace_rounds(2)), tmp_path / "run")
    again = resume(tmp_path / "run")
    assert again.summary == whole.summary


def replace_rounds(number):
    return from_flat(**{**SMALL, "rounds": number})


def test_the_command_goes_on_and_shows_the_result(tmp_path, capsys):
    with pytest.raises(Interrupted):
        execute(prepare(from_flat(**SMALL)), tmp_path / "run", stop_after(2))
    assert main(["resume", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "round 3/4" in said
    assert "round 2/4" not in said
    assert (tmp_path / "run" / "run.png").exists()


def test_a_folder_without_a_run_is_said(tmp_path, capsys):
    assert main(["resume", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
    run_folder.create(tmp_path / "run", replace_rounds(2))
    with pytest.raises(InputError, match=r"checkpoint .*: cannot be read"):
        resume(tmp_path / "run")


def test_a_checkpoint_is_written_every_few_rounds(tmp_path):
    seen = []

    def look(record):
        there = (tmp_path / "run" / run_folder.CHECKPOINT).exists()
        seen.append(load(tmp_path / "run" / run_folder.CHECKPOINT)[0].server.round if there else None)

    config = from_flat(method="fedavg", clients=3, rounds=5, checkpoint_every=2)
    execute(prepare(config), tmp_path / "run", look)
    assert seen == [None, 2, 2, 4, 4]
