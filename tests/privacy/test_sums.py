"""Averages from sums are the averages from all updates."""

import pytest
import torch
from torch.testing import assert_close

from hcfl.core import server
from hcfl.core.aggregation import aggregate
from hcfl.core.setting import RoundTask
from hcfl.methods import build
from hcfl.privacy.sums import SHARES, averaged, one_vote_each, summands
from helpers import setting, start

CLIENTS = tuple(range(8))


def parts_of(federation, method):
    """Play one round: what was received, everybody's update, and each one's summands."""
    chosen = setting(federation, method)
    _, ensemble = start(federation, method)
    state = server.begin(method, ensemble, federation.clients, federation.classes)
    message = server.broadcast(method, state, federation.classes)

    def ask(clients):
        return chosen.engine.execute(RoundTask(chosen, message, clients, {}))[0]

    return state, chosen.network, ask(CLIENTS), [ask([client]) for client in CLIENTS]


def total(each):
    return {name: sum(parts[name] for parts in each) for name in each[0]}


@pytest.mark.parametrize("name", ["fedavg", "ifca", "fesem", "fedem", "fedgmm", "fedrc", "fedsoft"])
def test_the_server_concludes_the_same_from_sums(skewed, name):
    method = build(name, independent_start=True) if name == "fesem" else build(name)
    state, network, everybody, single = parts_of(skewed, method)
    sums = total([summands(state.ensemble, update) for update in single])
    together = averaged(state.ensemble, sums, CLIENTS, state.weights, sealed=7)
    for part in ("heads", "extractors"):
        plain, private = (getattr(aggregate(state.ensemble, one), part) for one in (everybody, together))
        assert_close(private, plain, rtol=0, atol=1e-6)
    (after, _), (known, _) = (server.conclude(method, network, state, one) for one in (together, everybody))
    assert_close(server.shares(method, after, 4), server.shares(method, known, 4), rtol=1e-5, atol=1e-6)
    if known.gaussians is not None:
        assert_close(after.gaussians.means, known.gaussians.means)
    assert_close(after.sizes.sum(), known.sizes.sum())
    assert after.weights.equal(state.weights)
    assert (after.members == -1).all()  # nobody told


def test_with_a_shared_extractor_too(skewed):
    from hcfl.methods import choices

    method = choices.override(build("hcfl+(fedrc)", clusters=3), adaptation="fixed", distance="none")
    state, _, everybody, single = parts_of(skewed, method)
    sums = total([summands(state.ensemble, update) for update in single])
    together = averaged(state.ensemble, sums, CLIENTS, state.weights, sealed=7)
    for part in ("heads", "extractors"):
        plain, private = (getattr(aggregate(state.ensemble, one), part) for one in (everybody, together))
        assert_close(private, plain, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["ifca", "fedrc", "fedsoft"])
def test_where_everybody_counts_once_shares_are_bounded_and_sizes_are_not_told(skewed, name):
    method = build(name)
    state, _, _, single = parts_of(skewed, method)
    for update in single:
        parts = summands(state.ensemble, one_vote_each(update))
        assert parts["size"].tolist() == [1]
        for share in SHARES:
            bound = 1 if share == "counts" or name != "fedrc" else 3**0.5  # soft: 1 in every cluster, and public
            assert share not in parts or parts[share].norm() <= bound + 1e-6


def test_mass_and_counts_within_the_noise_say_nothing(skewed):
    method = build("fedrc")
    state, _, _, single = parts_of(skewed, method)
    sums = total([summands(state.ensemble, one_vote_each(update)) for update in single])
    sums = {**sums, "mass": torch.tensor([8.0, 0.5, -3.0]).double(), "counts": sums["counts"] - 100}
    update = averaged(state.ensemble, sums, CLIENTS, state.weights, sealed=7, noise=1.0)
    assert update.mass.diagonal().tolist() == [8, 0, 0]
    after = aggregate(state.ensemble, update)
    for name, head in after.heads.items():
        assert not head[0].equal(state.ensemble.heads[name][0])
        assert head[1:].equal(state.ensemble.heads[name][1:])
    assert update.counts.sum(dim=0).unique().tolist() == [1]
    assert update.finite.all()
