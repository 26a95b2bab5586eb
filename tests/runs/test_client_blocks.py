"""Large blocks of clients' states are files that checkpoints share: here all blocks are large."""

import random
import shutil
from dataclasses import dataclass, replace

import pytest
from test_checkpoint import same_ensemble, same_weights
from test_full_disk import files_of_at_most

from hcfl.config import Config, from_flat
from hcfl.core.state import RunState
from hcfl.errors import InputError, SavingError
from hcfl.launch import execute, resume
from hcfl.methods import build
from hcfl.models.inputs import Scaling
from hcfl.runs import best_round, checkpoint, checksum, client_blocks, state_file
from hcfl.runs.prepare import prepare
from hcfl.runs.state_file import DamagedError
from helpers import play, same
from interrupting import CHANGING, FLAGS, assert_same_end, begin


@pytest.fixture(scope="module", autouse=True)
def all_are_large():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_blocks, "SMALL", 0)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupted, with a checkpoint of every round."""
    path = tmp_path_factory.mktemp("whole") / "run"
    execute(prepare(from_flat(**CHANGING, checkpoint_every=1, checkpoints_kept=6)), path)
    assert len(parts(path)) > 3
    return path


@pytest.fixture
def interrupted(whole, tmp_path):
    """Return a function that gives the same run as it was after some rounds, with the last two checkpoints."""

    def after(rounds):
        path = tmp_path / "run"
        shutil.copytree(whole, path)
        for number in checkpoint.rounds(path / "checkpoint"):
            if number not in (rounds, rounds - 1):
                checkpoint.file_of(path / "checkpoint", number).unlink()
        (path / "summary.json").unlink()
        return path

    return after


def parts(run):
    return sorted((run / "checkpoint").glob("clients-*.safetensors"))


def listed(run, round_):
    folder = run / "checkpoint"
    return {client_blocks.path_of(folder, one) for one in client_blocks._listed(checkpoint.file_of(folder, round_))}


def same_clients(one, two):
    assert one.keys() == two.keys()
    for client, known in one.items():
        other = two[client]
        assert (known.round, known.clusters) == (other.round, other.clusters)
        same_weights(known.weights, other.weights)
        same_ensemble(known.own, other.own)
        same_ensemble(known.velocity, other.velocity)


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "fedgmm", "local"])
def test_what_is_saved_is_what_is_loaded(planted, name, tmp_path):
    state, _ = play(planted, build(name), 3, participation=0.5)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    loaded, _ = checkpoint.load(tmp_path)
    same_clients(loaded.clients, state.clients)
    assert list(tmp_path.glob("clients-*"))


def test_a_block_is_written_once_and_removed_when_nobody_lists_it(tmp_path):
    run, seen, times = tmp_path / "run", {}, {}

    def on_round(record):
        for path in parts(run):
            assert seen.setdefault(path, path.stat().st_mtime_ns) == path.stat().st_mtime_ns
            times[path] = times.get(path, 0) + 1

    settings = {**CHANGING, "clients": 12, "participation": 0.2}
    execute(prepare(from_flat(**settings, checkpoint_every=1, serve="last")), run, on_round)
    assert max(times.values()) >= 3, "two checkpoints are kept, so several list it"
    assert set(parts(run)) < set(seen)
    assert set(parts(run)) == listed(run, 6) | listed(run, 5)
    for path in checkpoint.files(run / "checkpoint"):
        checkpoint.read(path)


def test_runs_that_are_killed_at_any_moment_end_the_same(tmp_path, whole):
    moments = random.Random(5)
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
        assert {path.name for path in parts(run)} == {path.name for path in parts(whole)}


def test_a_kill_between_a_block_and_its_checkpoint_leaves_nothing(interrupted, whole):
    run = interrupted(4)
    for path in listed(whole, 5) - listed(whole, 4):
        shutil.copy(path, run / "checkpoint" / path.name)
    (run / "checkpoint" / f"clients-{'0' * 64}.safetensors.unfinished").write_bytes(b"half")
    resume(run, on_note=lambda note: None)
    assert_same_end(run, whole)


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: text[:-9] + bytes([text[-9] ^ 4]) + text[-8:]])
def test_a_damaged_block_of_the_newest_checkpoint_leads_to_the_one_before(interrupted, whole, damage):
    run, notes, seen = interrupted(4), [], []
    (mine, *_) = sorted(path.name for path in listed(whole, 4) - listed(whole, 3))
    path = run / "checkpoint" / mine
    path.write_bytes(damage(path.read_bytes()))
    resume(run, lambda record: seen.append(record.round), on_note=notes.append)
    assert seen == [4, 5, 6]
    (note,) = notes
    assert f"round-4.safetensors: its part {mine}: is damaged (" in note
    assert note.endswith("; the run goes on from round 3")
    assert_same_end(run, whole)


@pytest.mark.parametrize("what", ["damaged", "gone", "another"])
def test_a_damaged_block_that_both_checkpoints_share_is_said_and_the_run_begins_again(tmp_path, what):
    settings = {**CHANGING, "clients": 24, "participation": 0.1, "epochs": 1, "checkpoint_every": 1}
    execute(prepare(from_flat(**settings)), tmp_path / "whole")
    run, notes, seen = tmp_path / "run", [], []

    def of_both():
        newest, *before = checkpoint.rounds(run / "checkpoint")
        return sorted(listed(run, newest) & listed(run, before[0])) if before else []

    execute(prepare(from_flat(**settings)), run, should_stop=of_both)
    shared = of_both()
    others = sorted(set(parts(run)) - set(shared))
    assert shared
    assert others
    if what == "gone":
        shared[0].unlink()
    else:
        shared[0].write_bytes(others[0].read_bytes() if what == "another" else b"\0" * 100)
    resume(run, lambda record: seen.append(record.round), on_note=notes.append)
    assert seen == [1, 2, 3, 4, 5, 6]
    says = {"damaged": "is damaged", "gone": r"cannot be read \(No such file", "another": r"is damaged \(it is another"}
    assert len(notes) == 2
    for note in notes:
        assert says[what].replace("\\", "") in note
        assert f"its part {shared[0].name}: " in note
    assert_same_end(run, tmp_path / "whole")


def test_a_name_that_leads_elsewhere_is_refused(planted, tmp_path):
    state, _ = play(planted, build("hcfl+(fedrc)"), 1)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    path = checkpoint.file_of(tmp_path, 1)
    (digest,) = client_blocks._listed(path)
    path.write_bytes(path.read_bytes().replace(digest.encode(), b"../" + digest[3:].encode()))
    checksum.write(path)  # as an attacker could
    with pytest.raises(DamagedError, match="is no digest"):
        checkpoint.read(path)
    client_blocks.sweep(tmp_path, [path])
    assert not list(tmp_path.glob("clients-*")), "nobody lists it now"


def test_a_full_disk_leaves_the_last_checkpoint_whole(interrupted, whole, tmp_path):
    run = interrupted(4)
    sizes = {path: path.stat().st_size for path in listed(whole, 5) - listed(whole, 4)}
    with (
        files_of_at_most(min(sizes.values()) - 1),
        pytest.raises(SavingError, match=r"the last checkpoint is .*round-4"),
    ):
        resume(run, on_note=lambda note: None)
    assert not list(run.rglob("*.unfinished"))
    assert checkpoint.read(checkpoint.file_of(run / "checkpoint", 4)).state.server.round == 4
    resume(run, on_note=lambda note: None)
    assert_same_end(run, whole)


def test_the_best_round_shares_blocks_and_keeps_them(planted, tmp_path):
    state, _ = play(planted, build("hcfl+(fedrc)"), 2)
    best_round.write(tmp_path, best_round.Best(-1.0, best_round.servable(state)))
    client_blocks.sweep(tmp_path, [tmp_path / best_round.FILE])
    found = best_round.read(tmp_path)
    assert found.round == 2
    assert found.clients == ()
    same_clients(found.state.clients, best_round.servable(state).clients)
    assert all(known.weights.sample is None for known in found.state.clients.values())


def as_format_5(path, folder):
    """Write a checkpoint as version 5 had it: every client's state in one file."""

    @dataclass(frozen=True)
    class Checkpoint:
        state: RunState
        scaling: Scaling
        config: str

    found = checkpoint.read(path)
    state = replace(found.state, clients=dict(found.state.clients))
    state_file.write(folder / path.name, Checkpoint(state, found.scaling, found.config), 5)


def test_a_run_of_format_5_goes_on(interrupted, whole, tmp_path):
    run = interrupted(4)
    for path in checkpoint.files(run / "checkpoint"):
        as_format_5(path, run / "checkpoint")
    for path in parts(run):
        path.unlink()
    (run / "checkpoint" / best_round.FILE).unlink(missing_ok=True)
    resume(run, on_note=lambda note: pytest.fail(note))
    one, two = (checkpoint.load(path / "checkpoint")[0] for path in (run, whole))
    same(one.server.ensemble.heads, two.server.ensemble.heads)
    same_clients(one.clients, two.clients)
    assert (run / "clients.csv").read_bytes() == (whole / "clients.csv").read_bytes()


def test_a_block_of_another_format_is_refused(planted, tmp_path, monkeypatch):
    state, _ = play(planted, build("hcfl+(fedrc)"), 1)
    monkeypatch.setattr(client_blocks, "FORMAT", 99)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    monkeypatch.undo()
    with pytest.raises(InputError, match="has format 99, this version reads 1"):
        checkpoint.load(tmp_path)
