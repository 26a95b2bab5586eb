"""What clients train, and where it counts."""

import pytest
import torch
from torch.testing import assert_close

from hcfl import rng
from hcfl.core import sgd as training
from hcfl.core.local_plan import Job, train
from hcfl.core.sgd import Batches
from hcfl.data.local_data import LocalData
from hcfl.errors import InputError
from hcfl.methods.local_models import ClusterModels, OwnHead, OwnModel, Plan, PlanInputs
from hcfl.models import MODELS
from hcfl.models.ensemble import Copies, Ensemble, blends, embed, initialise, mix
from hcfl.tiers import Weights
from hcfl.tiers.client_segments import Segments
from helpers import local_sgd

FULL = Ensemble({"e": torch.tensor([[1.0], [2.0]])}, {"h": torch.tensor([[10.0], [20.0]])}, "full")
SPLIT = Ensemble({"e": torch.tensor([[1.0]])}, FULL.heads, "split")
GAMMA = torch.tensor([[0.9, 0.1], [0.3, 0.7]])
WEIGHTS = Weights(torch.tensor([[0.25, 0.75]]))


def given(hard=False, common=None, own=(None,)) -> PlanInputs:
    """What one client of two samples plans from."""
    return PlanInputs(FULL, Segments((2,)), WEIGHTS, GAMMA, hard, common, own)


def test_a_mixture_is_a_weighted_sum_and_counters_stay_whole():
    assert_close(blends(FULL, WEIGHTS.client).extractors["e"], torch.tensor([[[1.75]]]))
    assert_close(blends(SPLIT, WEIGHTS.client).heads["h"], torch.tensor([[[17.5]]]))
    shared = blends(SPLIT, WEIGHTS.client).extractors["e"]
    assert shared.tolist() == [[[1.0]]]
    assert shared.data_ptr() == SPLIT.extractors["e"].data_ptr(), "a shared extractor is not copied"
    counters = mix(WEIGHTS.client, torch.tensor([10, 3]))
    assert counters.tolist() == [5]
    assert counters.dtype == torch.int64


def test_models_that_were_stacked_are_stacked_again_without_copying():
    copies = blends(FULL, torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]))
    each = copies.each()
    assert [one.heads["h"].tolist() for one in each] == [copies.of(row).heads["h"].tolist() for row in range(3)]
    again = Copies.stack(each)
    assert again.extractors["e"].tolist() == copies.extractors["e"].tolist()
    assert again.extractors["e"].data_ptr() == copies.extractors["e"].data_ptr()
    other = Copies.stack([each[2], each[0], each[1]])
    assert other.heads["h"].flatten().tolist() == [20.0, 10.0, 15.0]


def test_soft_clients_train_all_clusters_and_each_model_counts_in_its_own():
    plan = ClusterModels().plan(given())
    assert plan.start.heads["h"].tolist() == plan.anchor.heads["h"].tolist() == [[[10.0], [20.0]]]
    assert plan.started.tolist() == [torch.eye(2).tolist()]
    assert plan.received
    assert_close(plan.gamma, GAMMA)
    assert ClusterModels().mass(WEIGHTS.client, hard=False).tolist() == [torch.eye(2).tolist()]
    by_weight = ClusterModels(by_weight=True).mass(WEIGHTS.client, hard=False)
    assert by_weight.tolist() == [torch.diag(WEIGHTS.client[0]).tolist()]


def test_hard_clients_train_their_own_and_it_counts_where_they_are_afterwards():
    plan = ClusterModels().plan(given(hard=True))
    assert plan.start.heads["h"].tolist() == [[[20.0]]]
    assert plan.started.tolist() == [[[0.0, 1.0]]]
    assert_close(plan.gamma, GAMMA[:, [1]])
    assert ClusterModels().mass(torch.tensor([[1.0, 0.0]]), hard=True).tolist() == [[[1.0, 0.0]]]


def test_the_common_model_is_the_anchor_of_every_trained_one():
    common = Ensemble({"e": torch.tensor([[5.0]])}, {"h": torch.tensor([[7.0]])}, "full")
    plan = ClusterModels(0.5, "global").plan(given(common=common))
    assert plan.anchor.heads["h"].tolist() == [[[7.0], [7.0]]]
    assert plan.anchor.extractors["e"].tolist() == [[[5.0], [5.0]]]
    assert ClusterModels(0.5, "global").uses_global_model
    assert not ClusterModels(0.5).uses_global_model


def test_an_own_model_starts_from_the_mixture_then_from_where_it_was_left():
    first = OwnModel().plan(given())
    assert first.start.heads["h"].tolist() == first.anchor.heads["h"].tolist() == [[[17.5]]]
    assert first.gamma.tolist() == [[1.0], [1.0]]
    assert first.started.tolist() == [[[0.25, 0.75]]]
    assert first.received
    kept = Ensemble({"e": torch.tensor([[0.0]])}, {"h": torch.tensor([[-1.0]])}, "full")
    later = OwnModel().plan(given(own=(kept,)))
    assert later.start.heads["h"].tolist() == [[[-1.0]]]
    assert later.start.extractors["e"].tolist() == [[[0.0]]]
    assert later.anchor.heads["h"].tolist() == [[[17.5]]]
    assert not later.received
    assert OwnModel().mass(WEIGHTS.client, hard=False).tolist() == [[[0.25, 0.75]]]


def test_each_of_a_group_plans_by_its_own_weights_and_its_own_rows_of_gamma():
    weights = Weights(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    gamma = torch.tensor([[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
    plan = ClusterModels().plan(PlanInputs(FULL, Segments((1, 2)), weights, gamma, True))
    assert plan.start.heads["h"].tolist() == plan.anchor.heads["h"].tolist() == [[[20.0]], [[10.0]]]
    assert plan.start.extractors["e"].tolist() == [[[2.0]], [[1.0]]]
    assert plan.started.tolist() == [[[0.0, 1.0]], [[1.0, 0.0]]]
    assert_close(plan.gamma, torch.tensor([[0.9], [0.2], [0.3]]))


def test_in_a_group_only_who_kept_a_model_starts_from_it():
    kept = Ensemble({"e": torch.tensor([[0.0]])}, {"h": torch.tensor([[-1.0]])}, "full")
    weights = Weights(torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    plan = OwnModel().plan(PlanInputs(FULL, Segments((1, 1)), weights, GAMMA, False, None, (kept, None)))
    assert plan.start.heads["h"].tolist() == [[[-1.0]], [[15.0]]]
    assert plan.start.extractors["e"].tolist() == [[[0.0]], [[1.5]]]
    assert plan.anchor.heads["h"].tolist() == [[[17.5]], [[15.0]]]
    assert plan.started.tolist() == [[[0.25, 0.75]], [[0.5, 0.5]]]
    assert not plan.received


@pytest.mark.parametrize(("topology", "order"), [("split", "heads-first"), ("split", "together"), ("full", "together")])
def test_every_trained_model_is_pulled_towards_its_own_anchor(topology, order):
    network, start = initialise(MODELS["mlp"], (4,), 3, topology, 2, seed=0)
    anchor = Ensemble(
        {n: t + 1 for n, t in start.extractors.items()}, {n: t + 2 for n, t in start.heads.items()}, topology
    )
    # γ = 0, so that nothing but λ(θ − anchor) moves anything: one step of .1 · .5 · 1, or 2 for heads.
    plan = Plan(Copies.stack([start]), torch.eye(2).unsqueeze(0), torch.zeros(4, 2), Copies.stack([anchor]))
    data = LocalData.alone(torch.ones(4, 4), torch.zeros(4).long(), 3)
    batches = Batches(torch.arange(4).view(1, 1, 4), torch.tensor([[4]]))
    sgd = local_sgd(lr=0.1, momentum=0.0, weight_decay=0.0, proximal=0.5, order=order)
    features = embed(network, start.extractor(0), data.inputs) if topology == "split" else None
    trained = train(network, Job(plan, features, data, batches, sgd, [(0, "test")])).models.of(0)
    for name, before in start.extractors.items():
        assert_close(trained.extractors[name], before + 0.05)
    for name, before in start.heads.items():
        assert_close(trained.heads[name], before + 0.1)


@pytest.mark.parametrize(
    ("topology", "order", "phases"),
    [("split", "heads-first", ["heads", "extractor"]), ("split", "together", ["extractor"]), ("full", "together", [])],
)
def test_dropout_takes_each_phase_s_own_key_and_all_models_of_a_client_share_it(topology, order, phases, monkeypatch):
    network, start = initialise(MODELS["mlp"], (4,), 3, topology, 2, seed=0)
    network.extractor.feature_dropout = 0.5
    copies = Copies.stack([start, start])
    data = LocalData(torch.ones(8, 4), torch.zeros(8).long(), 3, Segments((4, 4)))
    plan = Plan(copies, torch.eye(2).expand(2, 2, 2), torch.ones(8, 2), copies)
    batches = Batches(torch.arange(8).view(2, 2, 2), torch.full((2, 2), 2))
    features = embed(network, start.extractor(0), data.inputs) if topology == "split" else None
    asked = []
    monkeypatch.setattr(training, "drop", lambda features, rate, key, step: asked.append((rate, key, step)) or features)
    job = Job(plan, features, data, batches, local_sgd(order=order), [(3, "a", 1, 7), (3, "a", 1, 9)])
    train(network, job)
    each = phases or ["extractor", "extractor"]  # two full models
    assert asked == [
        (0.5, rng.derive(3, "a", 1, client, "dropout", phase), step)
        for client in (7, 9)
        for phase in each
        for step in range(2)
    ]


def test_settings_are_checked():
    with pytest.raises(InputError, match="proximal = -1: must not be negative"):
        ClusterModels(-1)
    with pytest.raises(InputError, match="proximal = -1: must not be negative"):
        OwnModel(proximal=-1)
    with pytest.raises(InputError, match="towards = 'home': must be received or global"):
        ClusterModels(1.0, "home")


def test_an_own_head_goes_on_from_the_last_time_on_the_received_extractor():
    kept = Ensemble({"w": torch.tensor([[9.0]])}, {"w": torch.tensor([[7.0]])}, "split")
    received = Ensemble({"w": torch.tensor([[1.0]])}, {"w": torch.tensor([[2.0]])}, "split")
    weights = Weights(torch.ones(2, 1))
    inputs = PlanInputs(received, Segments((1, 1)), weights, torch.ones(2, 1), True, None, (kept, None))
    plan = OwnHead().plan(inputs)
    assert plan.start.extractors["w"].flatten().tolist() == [1.0, 1.0]
    assert plan.start.heads["w"].flatten().tolist() == [7.0, 2.0]
    assert plan.received
    assert OwnHead().mass(weights.client, hard=True).tolist() == [[[1.0]], [[1.0]]]
