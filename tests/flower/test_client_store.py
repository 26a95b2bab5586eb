"""A client's states on its own disk: a round that is played again starts where it started before."""

from dataclasses import replace

import pytest
import torch

from hcfl.core.state import ClientState
from hcfl.errors import InputError
from hcfl.flower.client_store import ClientStore, StateLostError
from hcfl.models.ensemble import Ensemble
from hcfl.runs import state_file
from hcfl.tiers import Weights
from values import same


def state(round_: int) -> ClientState:
    return ClientState(round_, (0, round_), Weights(torch.tensor([0.25, 0.75]), torch.rand(5, 2)))


@pytest.fixture
def store(tmp_path) -> ClientStore:
    return ClientStore(tmp_path, "an experiment", "ward 3")


def test_what_is_kept_is_found(store):
    kept = state(4)
    store.save(kept, 0)
    assert same(store.load(4), kept)
    assert store.load(0) is None


def test_a_round_played_again_starts_where_it_started(store):
    one, two, again = state(1), state(2), state(2)
    store.save(one, 0)
    store.save(two, 1)
    assert same(store.load(1), one)  # the server asks for round 2 once more: it knows of round 1 only
    store.save(again, 1)
    assert same(store.load(2), again)


def test_two_states_are_kept_and_always_the_one_the_server_knows(store):
    store.save(state(1), 0)
    for lost in (2, 3, 4, 5):  # replies that never arrived
        store.save(state(lost), 1)
        assert store.rounds() == [1, lost]
    store.save(state(6), 5)
    assert store.rounds() == [5, 6]


def test_clients_and_experiments_are_apart(store, tmp_path):
    store.save(state(1), 0)
    with pytest.raises(StateLostError, match=r"client 'ward 4' after round 1: is not in .*\(rounds that are: none"):
        replace(store, client="ward 4").load(1)
    with pytest.raises(StateLostError):
        replace(store, experiment="another").load(1)
    assert replace(store).load(1) is not None


@pytest.mark.parametrize("name", ["..", "../../etc", "/etc/passwd", "a/b", ".", "ü", "a b", "%2e%2e"])
def test_no_name_leads_elsewhere(tmp_path, name):
    for store in (ClientStore(tmp_path / "in", name, "c"), ClientStore(tmp_path / "in", "e", name)):
        store.save(state(1), 0)
        assert store.load(1).round == 1
        assert store.folder.resolve().is_relative_to(tmp_path / "in")
        assert len(store.folder.resolve().relative_to(tmp_path / "in").parts) == 2


def test_a_state_that_is_gone_is_said(store):
    store.save(state(7), 0)
    with pytest.raises(StateLostError, match=r"after round 3: is not in .*client-ward%203 \(rounds that are: 7\)"):
        store.load(3)


@pytest.mark.parametrize("length", [0, 5, 200, -1])
def test_a_damaged_state_is_said(store, length):
    store.save(state(1), 0)
    path = store.folder / "round-1.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=r"^state of client 'ward 3' after round 1 \(.*\): is damaged"):
        store.load(1)


def test_somebody_elses_state_is_refused(store, tmp_path):
    other = replace(store, client="ward 4")
    other.save(state(1), 0)
    store.save(state(1), 0)
    (other.folder / "round-1.safetensors").replace(store.folder / "round-1.safetensors")
    with pytest.raises(InputError, match="belongs to client 'ward 4' of 'an experiment' after round 1"):
        store.load(1)


def test_a_write_that_stops_half_way_changes_nothing(store, monkeypatch):
    one = state(1)
    store.save(one, 0)

    def stops(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(state_file, "save_file", stops)
    with pytest.raises(KeyboardInterrupt):
        store.save(state(2), 1)
    monkeypatch.undo()
    assert store.rounds() == [1]
    assert same(store.load(1), one)
    store.save(state(2), 1)
    assert store.rounds() == [1, 2]


def test_the_initial_model_is_kept(store):
    with pytest.raises(StateLostError, match="initial model of client 'ward 3': is not in"):
        store.load_anchor()
    anchor = Ensemble({"0.weight": torch.rand(1, 2)}, {"weight": torch.rand(1, 2)}, "split")
    store.save_anchor(anchor)
    assert same(store.load_anchor(), anchor)


def test_only_the_owner_can_read(store):
    store.save(state(1), 0)
    assert store.folder.stat().st_mode & 0o077 == 0
