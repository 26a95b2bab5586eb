"""A checkpoint holds all of a run's state, and nothing that could run code."""

from dataclasses import asdict, replace

import pytest
import torch

from hcfl.config import Config
from hcfl.core import rounds
from hcfl.core.cluster_log import Merge, Move, Removal, Split
from hcfl.errors import InputError
from hcfl.methods import METHODS, build
from hcfl.runs import checkpoint, checksum
from helpers import play, same, setting


def same_ensemble(one, two):
    assert (one is None) == (two is None)
    if one is not None:
        same(one.heads, two.heads)
        same(one.extractors, two.extractors)


def same_weights(one, two):
    for part in ("client", "sample", "components"):
        mine, theirs = getattr(one, part), getattr(two, part)
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)


@pytest.mark.parametrize("name", METHODS)
def test_what_is_saved_is_what_is_loaded(planted, name, tmp_path):
    state, _ = play(planted, build(name), 4, participation=0.7)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    loaded, scaling = checkpoint.load(tmp_path)

    same(loaded.server.ensemble.heads, state.server.ensemble.heads)
    same(loaded.server.ensemble.extractors, state.server.ensemble.extractors)
    assert loaded.server.ensemble.topology == state.server.ensemble.topology
    for field in ("round", "clusters", "born", "changes"):
        assert getattr(loaded.server, field) == getattr(state.server, field)
    for field in ("weights", "members", "sizes", "last_seen"):
        assert torch.equal(getattr(loaded.server, field), getattr(state.server, field))
    assert (loaded.server.counts is None) == (state.server.counts is None)
    assert state.server.counts is None or torch.equal(loaded.server.counts, state.server.counts)
    assert loaded.clients.keys() == state.clients.keys()
    for client, own in state.clients.items():
        other = loaded.clients[client]
        assert (other.round, other.clusters) == (own.round, own.clusters)
        assert torch.equal(other.weights.client, own.weights.client)
        same_weights(other.weights, own.weights)
        same_ensemble(other.own, own.own)
    for field in ("anchor", "common"):
        same_ensemble(getattr(loaded.server, field), getattr(state.server, field))
    same(loaded.server.signatures, state.server.signatures)
    same(loaded.server.memory, state.server.memory)
    assert (loaded.server.gaussians is None) == (state.server.gaussians is None)
    if state.server.gaussians is not None:
        same(asdict(loaded.server.gaussians), asdict(state.server.gaussians))
    for mine, theirs in zip(loaded.newcomers, state.newcomers, strict=True):
        same_weights(mine, theirs)
    assert torch.equal(scaling.mean, planted.scaling.mean)
    assert torch.equal(scaling.std, planted.scaling.std)


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "fedsoft", "fedgmm", "stocfl", "fedgroup"])
def test_playing_on_from_a_checkpoint_equals_never_having_stopped(planted, tmp_path, name):
    method = build(name)
    whole, records = play(planted, method, 8, participation=0.6)
    half, _ = play(planted, method, 4, participation=0.6)
    checkpoint.save(tmp_path, half, planted.scaling, Config())
    resumed, _ = checkpoint.load(tmp_path)
    played = list(rounds.play(setting(planted, method, participation=0.6), resumed, 8))
    same(played[-1][0].server.ensemble.heads, whole.server.ensemble.heads)
    for (_, again), record in zip(played, records[4:], strict=True):
        assert replace(again, seconds=0.0) == replace(record, seconds=0.0)


def test_every_kind_of_change_is_saved(planted, tmp_path):
    state, _ = play(planted, build("fedavg"), 1)
    changes = (
        Split(1, 0, 1, (0, 2), (1,), "halve", 0.9, 0.25, 0.5),
        Merge(2, into=0, gone=1, distance=0.125, threshold=0.5),
        Move(3, clients=(4, 5), to=(0, 0)),
        Removal(4, cluster=7),
    )
    checkpoint.save(tmp_path, replace(state, server=replace(state.server, changes=changes)), planted.scaling, Config())
    assert checkpoint.load(tmp_path)[0].server.changes == changes


def test_another_format_is_refused(planted, tmp_path, monkeypatch):
    state, _ = play(planted, build("fedavg"), 1)
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    monkeypatch.undo()
    with pytest.raises(InputError, match="has format 99, this version reads 6 and 5"):
        checkpoint.load(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        checkpoint.load(tmp_path / "nothing")


def test_a_damaged_checkpoint_is_refused(planted, tmp_path):
    state, _ = play(planted, build("hcfl+(fedrc)"), 1)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    path = checkpoint.file_of(tmp_path, 1)
    whole = path.read_bytes()
    for length in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match="is damaged"):
            checkpoint.load(tmp_path)
    path.write_bytes(whole.replace(b'\\"born\\"', b'\\"gone\\"'))
    with pytest.raises(InputError, match="its bytes are not those that were written"):
        checkpoint.load(tmp_path)
    checksum.write(path)  # as an attacker could
    with pytest.raises(
        InputError, match=r"is damaged \(ValueError: state\.server: has another type or shape than expected"
    ):
        checkpoint.load(tmp_path)


def test_only_one_file_is_written(planted, tmp_path):
    state, _ = play(planted, build("hcfl+(fedrc)"), 1)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    assert [path.name for path in tmp_path.iterdir()] == ["round-1.safetensors"]


def test_inputs_are_scaled_as_in_training_after_loading(planted, tmp_path):
    state, _ = play(planted, build("fedavg"), 1)
    checkpoint.save(tmp_path, state, planted.scaling, Config())
    _, scaling = checkpoint.load(tmp_path)
    assert torch.equal(scaling(planted.x), planted.scaling(planted.x))
