"""A run that was interrupted goes on as if it had not been."""

import json
import random
import re
import shutil
from dataclasses import replace

import pytest
import torch

from hcfl.cli import main
from hcfl.config import Config, from_flat
from hcfl.errors import InputError
from hcfl.launch import execute, resume
from hcfl.runs import checkpoint, checksum, restore, save
from hcfl.runs import folder as run_folder
from hcfl.runs.checkpoint import load
from hcfl.runs.prepare import prepare
from interrupting import CHANGING, FLAGS, assert_same_end, begin, without_seconds

SMALL = {"method": "hcfl+(fedrc)", "clients": 5, "rounds": 4, "epochs": 1, "participation": 0.7}


class Interrupted(BaseException):
    """Somebody pressed Ctrl-C."""


def stop_after(rounds):
    def on_round(record):
        if record.round == rounds:
            raise Interrupted

    return on_round


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted, with a checkpoint of every round."""
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(prepare(from_flat(**CHANGING, checkpoint_every=1, checkpoints_kept=6)), path)
    kinds = [(row["event"], row["round"]) for row in run_folder.rows(path, "events.jsonl")]
    assert kinds == [("removal", 2), ("removal", 4), ("split", 5)]
    return path


@pytest.fixture
def interrupted(whole, tmp_path):
    """Return a function that gives the same run as it was after some rounds."""

    def after(rounds, name="run"):
        path = tmp_path / name
        shutil.copytree(whole, path)
        for number in checkpoint.rounds(path / "checkpoint"):
            if number > rounds:
                checkpoint.file_of(path / "checkpoint", number).unlink()
        (path / "summary.json").unlink()
        return path

    return after


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_it_ends_as_if_it_had_not_been_interrupted(tmp_path, engine):
    config = from_flat(engine=engine, **SMALL)
    execute(prepare(config), tmp_path / "whole")
    with pytest.raises(Interrupted):
        execute(prepare(config), tmp_path / "run", stop_after(2))
    assert len(without_seconds(tmp_path / "run")) == 2
    seen = []
    resume(tmp_path / "run", lambda record: seen.append(record.round))
    assert seen == [3, 4]
    assert_same_end(tmp_path / "run", tmp_path / "whole")


def test_with_dropout_too(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    extractor = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))\n"
        "    extractor.feature_dropout = 0.5\n"
        "    return extractor, nn.Linear(16, classes)\n"
    )
    config = from_flat(engine="batched", model=f"{tmp_path / 'net.py'}:build", drop_last=True, **SMALL)
    execute(prepare(config), tmp_path / "whole")
    with pytest.raises(Interrupted):
        execute(prepare(config), tmp_path / "run", stop_after(2))
    resume(tmp_path / "run", allow_code=True)
    assert_same_end(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("rounds", [2, 4])
def test_from_any_round_it_ends_the_same(interrupted, whole, rounds):
    run = interrupted(rounds)
    resume(run)
    assert_same_end(run, whole)


def test_runs_that_are_killed_at_any_moment_end_the_same(tmp_path, whole):
    """Two of them; benchmarks/kills.py kills thirty."""
    moments = random.Random(3)
    for number in range(2):
        run = tmp_path / f"run-{number}"
        flags = [*FLAGS, "--checkpoint-every", "1", "--checkpoints-kept", "6", "--out", str(run)]
        process = begin("run", "hcfl+(fedrc)", *flags, said=tmp_path / "said")
        while not (run / "config.yaml").exists():
            assert process.is_alive()
        process.join(moments.uniform(0, 1.2))
        process.kill()
        process.join()
        resume(run, on_note=lambda note: None)
        assert_same_end(run, whole)


def test_what_was_written_after_the_checkpoint_is_taken_back(interrupted, whole):
    run = interrupted(2)
    (run / "checkpoint" / "round-4.safetensors.unfinished").write_bytes(b"half of it")
    (run / "summary.json.unfinished").write_text("{")
    lines = (whole / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:-7])
    with (run / "splits.jsonl").open("a") as file:
        file.write('{"round": 3, "cluster"')
    resume(run)
    assert_same_end(run, whole)


@pytest.mark.parametrize("logs", [(), run_folder.LOGS])
def test_without_a_checkpoint_it_begins_again_in_the_same_folder(interrupted, whole, logs):
    run = interrupted(0)
    shutil.rmtree(run / "checkpoint")
    for name in logs:
        (run / name).unlink()
    seen = []
    resume(run, lambda record: seen.append(record.round))
    assert seen == [1, 2, 3, 4, 5, 6]
    assert_same_end(run, whole)


def test_an_interruption_in_the_first_round_leaves_a_folder_that_was_there(tmp_path, monkeypatch):
    run = run_folder.create(tmp_path / "run", prepare(from_flat(**SMALL)).config)

    def stop(*parts):
        raise Interrupted

    monkeypatch.setattr("hcfl.core.rounds.play_round", stop)
    with pytest.raises(Interrupted):
        resume(run)
    with pytest.raises(Interrupted):
        execute(prepare(from_flat(**SMALL)), tmp_path / "new")
    assert (run / "config.yaml").exists()
    assert not (tmp_path / "new").exists()


def test_of_a_damaged_checkpoint_the_one_before_it_is_used(interrupted, whole):
    run = interrupted(4)
    newest = run / "checkpoint" / "round-4.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    seen, notes = [], []
    resume(run, lambda record: seen.append(record.round), on_note=notes.append)
    assert seen == [4, 5, 6]
    (note,) = notes
    assert re.fullmatch(r"checkpoint \S+/round-4.safetensors: is damaged \(.*\); the run goes on from round 3", note)
    assert_same_end(run, whole)


def test_without_any_whole_checkpoint_it_begins_again(interrupted, whole):
    run = interrupted(2)
    for path in checkpoint.files(run / "checkpoint"):
        path.write_bytes(b"")
    notes = []
    resume(run, on_note=notes.append)
    assert [note.endswith("the run goes on from the beginning") for note in notes] == [True, True]
    assert_same_end(run, whole)


@pytest.mark.parametrize(("name", "line", "begins"), [("metrics.jsonl", 3, 3), ("events.jsonl", 1, 2)])
def test_of_a_damaged_log_the_rounds_after_it_are_played_again(interrupted, whole, name, line, begins):
    run = interrupted(5)
    lines = (run / name).read_bytes().splitlines(keepends=True)
    lines[line] = b"\xff{" + lines[line]
    (run / name).write_bytes(b"".join(lines))
    seen, notes = [], []
    resume(run, lambda record: seen.append(record.round), on_note=notes.append)
    assert seen[0] == begins
    assert all(f"{name}: is damaged before round" in note for note in notes)
    assert_same_end(run, whole)


def test_a_checkpoint_of_another_version_is_refused_and_nothing_is_touched(interrupted, monkeypatch):
    run = interrupted(2)
    state, scaling = load(run / "checkpoint")
    monkeypatch.setattr(checkpoint, "FORMAT", 4)
    state = replace(state, server=replace(state.server, round=3))
    checkpoint.save(run / "checkpoint", state, scaling, Config.load(run / "config.yaml"))
    monkeypatch.undo()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match=r"round-3\.safetensors: has format 4, this version reads 6 and 5"):
        resume(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_the_only_checkpoint_of_an_older_version_is_not_overlooked(interrupted):
    run = interrupted(1)
    (path,) = checkpoint.files(run / "checkpoint")
    text = path.read_bytes().replace(b'\\"format\\": 6', b'\\"format\\": 4').replace(b"sha256", b"sha255")
    path.unlink()
    (run / "checkpoint" / "state.safetensors").write_bytes(text)
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(InputError, match="has format 4, this version reads 6 and 5"):
        resume(run)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_another_configuration_is_refused_and_the_difference_named(interrupted, whole):
    run = interrupted(2)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("lr: 0.06", "lr: 0.5").replace("seed: 0", "seed: 7"))
    differences = "training.lr = 0.06 in the checkpoint, 0.5 in config.yaml, seed = 0 in the checkpoint, 7 in config"
    with pytest.raises(InputError, match=differences):
        resume(run)
    longer = text.replace("rounds: 6", "rounds: 3").replace("checkpoint_every: 1", "checkpoint_every: 2")
    (run / "config.yaml").write_text(longer)
    resume(run)
    assert without_seconds(run) == without_seconds(whole)[:3]
    (run / "config.yaml").write_text(text)
    resume(run)  # how many rounds there are, and what is kept, may change
    assert_same_end(run, whole)


def test_a_run_that_is_complete_says_so_and_stays_as_it_is(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["resume", str(run)]) == 0
    assert f"run = '{run}': is complete, all its 6 rounds were played" in capsys.readouterr().out
    after = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {name: after[name] for name in before} == before


def test_a_complete_run_whose_models_are_damaged_is_mended(whole, tmp_path):
    import hcfl

    run = tmp_path / "run"
    shutil.copytree(whole, run)
    newest = run / "checkpoint" / "round-6.safetensors"
    newest.write_bytes(newest.read_bytes()[:-3] + b"abc")
    with pytest.raises(InputError, match=r"round-6.* is damaged .*; `hcfl resume .*run` goes on from round-5"):
        hcfl.load(run)
    resume(run, on_note=lambda note: None)
    assert_same_end(run, whole)
    assert hcfl.load(run).summary["rounds"] == 6


def test_the_command_goes_on_and_shows_the_result(interrupted, capsys):
    run = interrupted(3)
    newest = run / "checkpoint" / "round-3.safetensors"
    newest.write_bytes(newest.read_bytes()[1:])
    assert main(["resume", str(run)]) == 0
    said = capsys.readouterr().out
    assert "round 3/6" in said
    assert "round 2/6" not in said
    assert f"Note: checkpoint {newest}: is damaged (" in said
    assert (run / "run.png").exists()


def test_a_folder_without_a_run_is_said(tmp_path, capsys):
    assert main(["resume", str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"run = '.*nothing': has no config.yaml that can be read"):
        resume(tmp_path / "nothing")


def test_two_cannot_play_the_same_run(interrupted):
    run = interrupted(2)
    with restore.held(run), pytest.raises(InputError, match="is under way, another process is playing it"):
        resume(run)


def test_a_checkpoint_is_written_every_few_rounds_and_the_last_few_stay(tmp_path):
    seen = []
    config = from_flat(method="fedavg", clients=3, rounds=7, checkpoint_every=2, checkpoints_kept=2)
    folder = tmp_path / "run" / run_folder.CHECKPOINT
    execute(prepare(config), tmp_path / "run", lambda record: seen.append(checkpoint.rounds(folder)))
    assert seen == [[], [2], [2], [4, 2], [4, 2], [6, 4], [6, 4]]
    assert checkpoint.rounds(folder) == [7, 6]
    assert load(folder)[0].server.round == 7


def test_checkpoints_of_rounds_that_were_taken_back_go(planted, tmp_path):
    from hcfl.methods import build
    from helpers import play

    state, _ = play(planted, build("fedavg"), 1)
    for number in (5, 6, 9, 7):
        later = replace(state, server=replace(state.server, round=number))
        checkpoint.save(tmp_path, later, planted.scaling, Config(checkpoints_kept=3))
    assert checkpoint.rounds(tmp_path) == [7, 6, 5]


def test_unless_told_otherwise_checkpoints_take_a_twentieth_of_the_time(tmp_path):
    assert save.is_due(None, 1, 0.5, 0.0), "the first is written at once, and measured"
    assert not save.is_due(None, 2, 1.0, 0.1)
    assert save.is_due(None, 3, 2.0, 0.1)
    assert [save.is_due(3, number, 0.0, 9.0) for number in (1, 2, 3, 6)] == [False, False, True, True]
    seen = []
    config = from_flat(method="fedavg", clients=3, rounds=1)
    execute(prepare(config), tmp_path / "r", lambda _: seen.append(checkpoint.rounds(tmp_path / "r" / "checkpoint")))
    assert seen == [[1]]


def test_logs_reach_the_disk_before_the_checkpoint(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(run_folder.atomic_file, "flush", lambda path: written.append(path.name))
    monkeypatch.setattr(checkpoint, "save", lambda *parts: written.append("checkpoint"))
    prepared = prepare(from_flat(**SMALL))
    run_folder.save(tmp_path, prepared.config, prepared.setting.federation, prepared.state)
    assert written == [*run_folder.LOGS, "checkpoint"]


def test_every_cut_and_every_flipped_byte_of_a_checkpoint_is_found(whole, tmp_path):
    bytes_ = checkpoint.file_of(whole / "checkpoint", 6).read_bytes()
    path = checkpoint.file_of(tmp_path, 6)
    header = 8 + int.from_bytes(bytes_[:8], "little")
    digest = bytes_.index(b"sha256") - 2
    flips = [
        *range(0, len(bytes_), 1000),
        *range(0, 120),
        *range(digest, digest + 90),
        header - 1,
        header,
        len(bytes_) - 1,
    ]
    cuts = [*range(0, len(bytes_), 1000), len(bytes_) - 1]
    damaged = [bytes_[:cut] for cut in cuts]
    damaged += [bytes_[:at] + bytes([bytes_[at] ^ 1 << at % 8]) + bytes_[at:][1:] for at in flips]
    damaged += [bytes_ + b"\0", bytes_[1000:], b"", b"\xff" * 8 + bytes_[8:]]
    assert len(damaged) > 400
    for text in damaged:
        path.write_bytes(text)
        with pytest.raises(checkpoint.state_file.DamagedError, match=r"^checkpoint \S+: is damaged \("):
            checkpoint.read(path)
    path.write_bytes(bytes_)
    assert checkpoint.read(path).state.server.round == 6
    assert checksum.matches(path)


def test_metrics_of_a_run_are_json_as_they_were(interrupted, whole):
    run = interrupted(3)
    resume(run)
    first = (run / "metrics.jsonl").read_text().splitlines()[:3]
    assert first == (whole / "metrics.jsonl").read_text().splitlines()[:3], "also the seconds they took"
    assert json.loads(first[2])["round"] == 3


def test_an_emptied_log_of_events_is_noticed(interrupted, whole):
    run, notes = interrupted(6), []
    (run / "events.jsonl").write_text("")
    resume(run, on_note=notes.append)
    assert any("events.jsonl: is damaged before round 6, that of the last checkpoint" in note for note in notes)
    assert any("the run goes on from round 1" in note for note in notes), "the first change is of round 2"
    assert not any("is complete" in note for note in notes)
    assert_same_end(run, whole)


def test_a_log_of_events_that_lost_some_lines_is_noticed(interrupted, whole):
    run, notes = interrupted(6), []
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    (run / "events.jsonl").write_text("".join(lines[:-1]))
    resume(run, on_note=notes.append)
    assert any("the run goes on from round 4" in note for note in notes), "the last change is of round 5"
    assert_same_end(run, whole)


def test_models_and_momentum_of_a_checkpoint_go_to_the_device_that_trains(tmp_path):
    """Checkpoints are read on the CPU; `meta` stands for a GPU here, since it holds tensors that are elsewhere."""
    settings = {"clients": 4, "samples": 200, "rounds": 1, "epochs": 1, "keep_momentum": True}
    execute(prepare(from_flat(method="stocfl", **settings)), tmp_path / "run")
    state = load(tmp_path / "run" / "checkpoint")[0].to(torch.device("meta"))
    assert state.device.type == "meta"
    velocities = [known.velocity for known in state.clients.values()]
    models = [part for part in (state.server.ensemble, state.server.anchor, state.server.common) if part is not None]
    for part in (*models, *velocities):
        assert {tensor.device.type for tensor in (*part.extractors.values(), *part.heads.values())} == {"meta"}
    assert state.server.weights.device.type == "cpu"
