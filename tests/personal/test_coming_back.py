"""What clients set aside comes back into training, once they have noted what their candidates gain on it."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from test_personal import played, prepared
from torch.testing import assert_close

import hcfl
from hcfl.config import FaultsConfig, from_flat
from hcfl.core import rounds, server
from hcfl.core.client import begin_step
from hcfl.core.local_plan import train
from hcfl.core.state import ClientState
from hcfl.data import Federation
from hcfl.engines import Batched, Sequential
from hcfl.engines.faulty import with_faults
from hcfl.engines.poisoned import poisoners
from hcfl.engines.workers import Workers
from hcfl.launch import execute, resume
from hcfl.methods import build
from hcfl.personal.inner_split import Gains, held_of, number_aside, set_aside
from hcfl.personal.stacking import common_weights, own_weights
from hcfl.runs import checkpoint
from hcfl.runs.prepare import prepare
from hcfl.tiers import Weights
from hcfl.tiers.client_segments import Segments
from helpers import blobs, setting, start
from interrupting import assert_same_end

ALL, APART = [84, 8, 63, 63, 97], [67, 6, 50, 50, 78]
"""How many training samples each client has, and how many without those that it sets aside."""


@pytest.fixture(scope="module")
def shifted():
    """Five clients of different sizes; the last one labels everything differently."""
    x, y = blobs(classes=3, per_class=150, seed=3)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    client = np.repeat([0, 1, 2, 3, 4], [120, 12, 90, 90, 138])
    y = np.where(client == 4, (y + 1) % 3, y)
    return Federation.from_arrays(x, y, client=client, val_share=0.3)


def history(federation, name, number, kind, after, **changes):
    """The state after each round."""
    chosen, begun = prepared(federation, name, kind, after, **changes)
    return [state for state, _ in rounds.play(chosen, begun, number)]


def test_groups_learn_from_a_part_of_the_samples_first_and_from_all_of_them_later(shifted):
    assert shifted.train_sizes.tolist() == ALL
    first, second, third, _ = history(shifted, "hcfl+(fedrc)", 4, "prior", after=2)
    assert first.server.sizes.tolist() == second.server.sizes.tolist() == APART
    assert third.server.sizes.tolist() == ALL
    assert_close(third.server.counts.sum(dim=(1, 2)), torch.tensor(ALL, dtype=torch.float32))
    _, (plain, _) = played(set_aside(shifted), "hcfl+(fedrc)", 2)
    for name, tensor in plain.server.ensemble.heads.items():
        assert_close(tensor, second.server.ensemble.heads[name], rtol=0, atol=0)


def test_a_client_notes_what_the_prior_gains_by_hand(shifted):
    """log p(y|x) + s·(log π_i − log ⅓), normalised, less log p(y|x): summed over what the client set aside."""
    before, after = history(shifted, "fedavg", 2, "prior", after=1)
    network = setting(shifted, build("fedavg")).network
    for client, rows in enumerate(shifted.train):
        held = len(rows) - number_aside(len(rows))
        kept, aside = rows[:held], rows[held:]
        counts = np.bincount(shifted.y[kept], minlength=3)
        offsets = np.log((counts + 1) / (counts.sum() + 3)) - np.log(1 / 3)
        with torch.no_grad():
            features = network.embed(before.server.ensemble.extractor(0), shifted.inputs(aside)[:])
            logits = network.logits(before.server.ensemble.heads, features)[:, 0].double().numpy()
        own, labels = np.arange(len(aside)), shifted.y[aside].numpy()

        def score(shown, own=own, labels=labels):
            probabilities = np.exp(shown) / np.exp(shown).sum(axis=1, keepdims=True)
            return np.log(np.maximum(probabilities[own, labels], 0.02))

        gains = np.stack([score(logits + strength * offsets) - score(logits) for strength in (0.5, 1.0)], axis=1)
        noted = after.clients[client].noted
        assert noted["samples"].tolist() == [len(aside)]
        np.testing.assert_allclose(noted["each"], gains, rtol=1e-4, atol=1e-5)
        assert not before.clients[client].noted


@pytest.mark.parametrize("name", ["fedavg", "hcfl+(fedem)", "fedrep", "local"])
def test_parts_are_chosen_by_what_was_noted_once(shifted, name):
    *_, second, third, fourth = history(shifted, name, 4, "head", after=2)
    for client in range(5):
        one, two = third.clients[client].noted, fourth.clients[client].noted
        assert all(torch.equal(one[key], two[key]) for key in one), "a client notes once"
    gains = Gains.join([Gains(**fourth.clients[client].noted) for client in range(5)])
    weights = own_weights(gains, common_weights(gains))
    for client, mine in enumerate(weights):
        part = fourth.personal[client]
        assert_close(part.weights, mine[[0, *(1 + torch.nonzero(mine[1:]).flatten()).tolist()]].float())
        shares = {"prior": float(mine[1:3].sum()), "head": float(mine[3:].sum())}
        assert part.kind == (max(shares, key=lambda name: shares[name]) if mine[0] < 1 else "none")
    # The same gains are measured at the end of the choosing round itself: nobody has trained since.
    _, (measured, _) = played(shifted, name, 2, "head")
    assert measured.scores.kinds == fourth.scores.kinds
    assert not any(state.noted for state in second.clients.values())


def test_notes_decide_and_not_what_the_last_models_gain(shifted):
    """With other notes, clients mix otherwise: by hand, two of them half of the prior, and one a head."""
    chosen, (state, _) = played(shifted, "fedavg", 3, "head", after=2)
    wanted, clients = {0: 1, 1: 0, 2: 3, 3: 1, 4: 0}, dict(state.clients)
    for client, column in wanted.items():
        each = torch.full((50, 8), -3.0)
        if column:
            each[:, column - 1] = 3.0
        noted = {"samples": torch.tensor([50.0], dtype=torch.float64), "each": each}
        clients[client] = replace(clients[client], noted=noted)
    scores, parts = chosen.personal.measure(chosen, state.server, clients, state.scores)
    assert [scores.kinds[client] for client in (0, 2, 3)] == ["prior", "head", "prior"]
    for client, column in wanted.items():
        own = float(parts[client].weights[1:].sum())
        assert (own > 0.7) if column else (own < 0.3)
    assert parts[2].weight is not None


def test_heads_and_whole_models_have_the_weights_that_notes_give_them(shifted):
    """By hand, twelve samples of the first client speak for the prior, and 38 for its own model of 64 epochs."""
    chosen, (state, _) = played(shifted, "fedavg", 2, "auto", after=1)
    each = torch.zeros(50, 12)
    each[:12, 1], each[12:, 10] = 3.0, 3.0
    noted = {"samples": torch.tensor([50.0], dtype=torch.float64), "each": each}
    clients = {client: replace(known, noted=noted) for client, known in state.clients.items()}
    _, parts = chosen.personal.measure(chosen, state.server, clients, state.scores)
    part = parts[0]
    assert part.kind == "fine-tune"
    assert_close(part.weights[1:], torch.tensor([0.24, 0.76]), rtol=0, atol=0.05)
    assert (part.bias.shape[0], part.own.clusters) == (1, 1)
    assert part.weight is None


def test_who_does_not_take_part_in_the_choosing_round_notes_later_or_at_the_end(shifted):
    states = history(shifted, "hcfl+(fedem)", 5, "head", after=2, participation=0.4)
    noted = {client for client, state in states[-1].clients.items() if state.noted}
    late = {client for client, round_ in enumerate(states[-1].server.last_seen.tolist()) if round_ > 2}
    assert noted == late
    assert late != set(range(5)), "with this seed, a client never takes part again"
    assert {len(state.clients) for state in states} != {5}
    for before, after in pairwise(states[1:]):
        fresh = [one for one in after.clients if after.clients[one].noted and not _noted(before, one)]
        assert all(after.server.last_seen[client] == after.server.round for client in fresh)
    assert len(states[-1].scores.kinds) == 5
    sizes, seen = states[-1].server.sizes.tolist(), states[-1].server.last_seen.tolist()
    for client in range(5):
        assert sizes[client] == (ALL[client] if seen[client] > 2 else APART[client] if seen[client] else 0)


def _noted(state, client):
    return client in state.clients and bool(state.clients[client].noted)


@pytest.mark.parametrize(("name", "kind"), [("hcfl+(fedem)", "auto"), ("fedper", "head"), ("hcfl+(fedrc)", "mixture")])
def test_engines_agree(shifted, name, kind):
    one, two, three = (
        history(shifted, name, 3, kind, after=1, participation=0.8, engine=engine, trainer=trainer)[-1]
        for engine, trainer in ((Sequential(), train), (Batched(), Batched().train), (Sequential(Workers(2)), train))
    )
    assert one.scores.kinds == two.scores.kinds == three.scores.kinds
    assert_close(one.scores.personal, two.scores.personal, rtol=0, atol=1)
    for client, state in one.clients.items():
        for key, table in state.noted.items():
            assert_close(table, two.clients[client].noted[key], rtol=1e-3, atol=1e-3)
            assert torch.equal(table, three.clients[client].noted[key])


def test_samples_that_come_back_begin_with_their_clients_weights():
    method, federation = build("hcfl+(fedem)", clusters=3), blobs_of_one()
    chosen, clusters = setting(federation, method), 3
    state = server.begin(method, start(federation, method)[1], 1, 4)
    client = torch.softmax(torch.arange(float(clusters)), dim=0).unsqueeze(0)
    sample = torch.softmax(torch.arange(3.0 * clusters).view(3, clusters).flip(1), dim=1)
    known = ClientState(0, state.clusters, Weights(client, sample))
    sent = server.broadcast(method, state, 4)
    found = begin_step(chosen, sent, 0, known, Segments((5,)))
    assert torch.equal(found.sample[:3], sample)
    assert torch.equal(found.sample[3:], client.expand(2, -1))
    assert torch.equal(begin_step(chosen, sent, 0, known, Segments((3,))).sample, sample)


def blobs_of_one():
    x, y = blobs(per_class=5)
    return Federation.from_arrays(x, y, client=np.zeros(len(y), dtype=int))


def test_sample_wise_weights_grow_with_the_samples(shifted):
    *_, second, third = history(shifted, "hcfl+(fedem)", 3, "prior", after=2)
    assert [len(second.clients[client].weights.sample) for client in range(5)] == APART
    assert [len(third.clients[client].weights.sample) for client in range(5)] == ALL


def test_attackers_train_on_what_others_train_on(shifted):
    method, faults = build("fedavg"), "flip=0.4,disguise=0.2"
    engine = with_faults(Sequential(), from_flat(faults=faults, seed=0), shifted, method)
    assert {len(found) for found in poisoners(FaultsConfig(flip=0.4, disguise=0.2), 5, 0).values()} == {1, 2}
    first, second = history(shifted, "fedavg", 2, "prior", after=1, engine=engine)
    assert (first.server.sizes.tolist(), second.server.sizes.tolist()) == (APART, ALL)


SMALL = {"clients": 5, "samples": 400, "rounds": 5, "epochs": 1, "participation": 0.7}


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_run_that_is_interrupted_ends_as_if_it_had_not_been(tmp_path, at):
    config = from_flat(method="hcfl+(fedem)", engine="sequential", personal="head", personal_every=2, **SMALL)
    execute(prepare(config), tmp_path / "whole")
    seen = []

    def stop():
        seen.append(1)
        return len(seen) == at

    execute(prepare(config), tmp_path / "run", should_stop=stop)
    resume(tmp_path / "run")
    assert_same_end(tmp_path / "run", tmp_path / "whole")
    assert (tmp_path / "run" / "clients.csv").read_text() == (tmp_path / "whole" / "clients.csv").read_text()
    one, two = (checkpoint.load(tmp_path / run / "checkpoint")[0] for run in ("run", "whole"))
    assert any(state.noted for state in two.clients.values())
    for client, state in two.clients.items():
        assert all(torch.equal(table, one.clients[client].noted[key]) for key, table in state.noted.items())


def test_the_choosing_round_is_half_of_the_rounds_unless_it_is_given(tmp_path):
    run = hcfl.run("fedavg", personal="prior", out=tmp_path / "run", **SMALL)
    assert run.config.personal.after == 3
    assert prepare(from_flat(method="fedavg", **SMALL)).config.personal.after is None
    given = prepare(from_flat(method="fedavg", personal="prior", personal_after=5, **SMALL))
    assert given.config.personal.after == 5
    with pytest.raises(hcfl.InputError, match=r"personal\.after = 6: must be at most training\.rounds = 5"):
        prepare(from_flat(method="fedavg", personal="prior", personal_after=6, **SMALL))
    with pytest.raises(hcfl.InputError, match=r"personal\.after = 0"):
        from_flat(method="fedavg", personal="prior", personal_after=0)


def test_in_private_runs_nothing_is_set_aside():
    private = from_flat(method="fedavg", personal="prior", privacy="central-dp", **SMALL)
    found = prepare(private).setting
    assert found.personal is None
    assert (
        found.at(1).federation.train_sizes.sum()
        == prepare(from_flat(method="fedavg", **SMALL)).setting.federation.train_sizes.sum()
    )


def test_a_run_that_an_older_version_began_goes_on_as_it_began(tmp_path):
    """It knew no choosing round: what was set aside never came back."""
    stopped = from_flat(
        method="fedavg", engine="sequential", personal="head", personal_after=4, **SMALL | {"rounds": 4}
    )
    execute(prepare(stopped), tmp_path / "run", should_stop=lambda: True)
    file = tmp_path / "run" / "config.yaml"
    text = file.read_text()
    assert "  after: 4\n" in text
    file.write_text(text.replace("  after: 4\n", "").replace("rounds: 4\n", "rounds: 5\n"))
    resume(tmp_path / "run")
    file.write_text(text.replace("  after: 4\n", "  after: 5\n").replace("rounds: 4\n", "rounds: 5\n"))
    longer = from_flat(method="fedavg", engine="sequential", personal="head", personal_after=5, **SMALL)
    execute(prepare(longer), tmp_path / "whole")
    assert_same_end(tmp_path / "run", tmp_path / "whole")
    # A choosing round that is over cannot be changed any more.
    execute(prepare(longer.updated("personal", after=2)), tmp_path / "other")
    file = tmp_path / "other" / "config.yaml"
    file.write_text(file.read_text().replace("  after: 2\n", "  after: 5\n"))
    with pytest.raises(hcfl.InputError, match=r"personal\.after = 2 in the checkpoint, 5 in config\.yaml"):
        resume(tmp_path / "other")


def test_which_samples_a_client_sets_aside_follows_from_their_number():
    held = held_of(Segments((5, 1, 0, 300)))
    assert held.tolist() == [False] * 4 + [True] + [False] + [False] * 250 + [True] * 50
