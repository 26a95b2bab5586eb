"""What clients train, and where it counts (spec §6)."""

import pytest
import torch
from torch.testing import assert_close

from hcfl.ensemble import Ensemble, blend, embed, initialise, mix
from hcfl.errors import InputError
from hcfl.local import ClusterModels, Given, Job, OwnModel, Plan, train
from hcfl.models import MODELS
from hcfl.tiers import Weights
from hcfl.training import LocalData, LocalSGD

FULL = Ensemble({"e": torch.tensor([[1.0], [2.0]])}, {"h": torch.tensor([[10.0], [20.0]])}, "full")
SPLIT = Ensemble({"e": torch.tensor([[1.0]])}, FULL.heads, "split")
GAMMA = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
WEIGHTS = Weights(torch.tensor([0.25, 0.75]))


def test_a_mixture_is_a_weighted_sum_and_counters_stay_whole():
    assert_close(blend(FULL, WEIGHTS.client).extractors["e"], torch.tensor([[1.75]]))
    assert_close(blend(SPLIT, WEIGHTS.client).heads["h"], torch.tensor([[17.5]]))
    assert blend(SPLIT, WEIGHTS.client).extractors is SPLIT.extractors
    counters = mix(WEIGHTS.client.unsqueeze(0), torch.tensor([10, 3]))
    assert counters.tolist() == [5]
    assert counters.dtype == torch.int64


def test_soft_clients_train_all_clusters_and_each_model_counts_in_its_own():
    plan = ClusterModels().plan(Given(FULL, WEIGHTS, GAMMA, False, None, None))
    assert plan.start.heads["h"].tolist() == plan.anchor.heads["h"].tolist() == [[10.0], [20.0]]
    assert plan.started.tolist() == torch.eye(2).tolist()
    assert_close(plan.gamma, GAMMA)
    assert ClusterModels().mass(WEIGHTS.client, hard=False).tolist() == torch.eye(2).tolist()


def test_hard_clients_train_their_own_and_it_counts_where_they_are_afterwards():
    plan = ClusterModels().plan(Given(FULL, WEIGHTS, GAMMA, True, None, None))
    assert plan.start.heads["h"].tolist() == [[20.0]]
    assert plan.started.tolist() == [[0.0, 1.0]]
    assert_close(plan.gamma, GAMMA[:, [1]])
    assert ClusterModels().mass(torch.tensor([1.0, 0.0]), hard=True).tolist() == [[1.0, 0.0]]


def test_the_common_model_is_the_anchor_of_every_trained_one():
    common = Ensemble({"e": torch.tensor([[5.0]])}, {"h": torch.tensor([[7.0]])}, "full")
    plan = ClusterModels(0.5, "global").plan(Given(FULL, WEIGHTS, GAMMA, False, common, None))
    assert plan.anchor.heads["h"].tolist() == [[7.0], [7.0]]
    assert plan.anchor.extractors["e"].tolist() == [[5.0], [5.0]]
    assert ClusterModels(0.5, "global").uses_common
    assert not ClusterModels(0.5).uses_common


def test_an_own_model_starts_from_the_mixture_then_from_where_it_was_left():
    first = OwnModel().plan(Given(FULL, WEIGHTS, GAMMA, False, None, None))
    assert first.start.heads["h"].tolist() == first.anchor.heads["h"].tolist() == [[17.5]]
    assert first.gamma.tolist() == [[1.0], [1.0]]
    assert first.started.tolist() == [[0.25, 0.75]]
    kept = Ensemble({"e": torch.tensor([[0.0]])}, {"h": torch.tensor([[-1.0]])}, "full")
    later = OwnModel().plan(Given(FULL, WEIGHTS, GAMMA, False, None, kept))
    assert later.start is kept
    assert later.anchor.heads["h"].tolist() == [[17.5]]
    assert OwnModel().mass(WEIGHTS.client, hard=False).tolist() == [[0.25, 0.75]]


@pytest.mark.parametrize("topology", ["split", "full"])
def test_every_trained_model_is_pulled_towards_its_own_anchor(topology):
    network, start = initialise(MODELS["mlp"], (4,), 3, topology, 2, seed=0)
    anchor = Ensemble(
        {n: t + 1 for n, t in start.extractors.items()}, {n: t + 2 for n, t in start.heads.items()}, topology
    )
    # γ = 0, so that nothing but λ(θ − anchor) moves anything: one step of .1 · .5 · 1, or 2 for heads.
    plan, data = (
        Plan(start, torch.eye(2), torch.zeros(4, 2), anchor),
        LocalData(torch.ones(4, 4), torch.zeros(4).long(), 3),
    )
    sgd = LocalSGD(lr=0.1, momentum=0.0, weight_decay=0.0, proximal=0.5)
    features = embed(network, start.extractor(0), data.inputs) if topology == "split" else None
    trained = train(network, Job(plan, features, data, [torch.arange(4)], sgd, (0, "test")))
    for name, before in start.extractors.items():
        assert_close(trained.extractors[name], before + 0.05)
    for name, before in start.heads.items():
        assert_close(trained.heads[name], before + 0.1)


def test_settings_are_checked():
    with pytest.raises(InputError, match="proximal = -1: must not be negative"):
        ClusterModels(-1)
    with pytest.raises(InputError, match="proximal = -1: must not be negative"):
        OwnModel(proximal=-1)
    with pytest.raises(InputError, match="towards = 'home': must be received or global"):
        ClusterModels(1.0, "home")
