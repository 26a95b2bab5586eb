"""Tier 2 on hand-computed numbers and invariants (spec §2 and §3)."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.tiers import (
    Assigned,
    ByLabelDistribution,
    FuzzyCMeans,
    HardByLoss,
    HardByParameters,
    SampleWiseEM,
    Seen,
    SettlesAfterTraining,
    Single,
    SoftCounts,
    SoftEM,
    Weights,
)
from hcfl.tiers.formulation import objective
from hcfl.tiers.weighting import hellinger, uniform

LIKELIHOOD = torch.tensor([[0.8, 0.2], [0.3, 0.6]])
LOG_L = LIKELIHOOD.log()

weightings = st.sampled_from(
    [
        Assigned(),
        HardByLoss(),
        HardByParameters(),
        ByLabelDistribution(),
        SoftEM(),
        SampleWiseEM(0.0),
        SampleWiseEM(0.4),
        SampleWiseEM(1.0),
        SoftCounts(),
        FuzzyCMeans(),
    ]
)


def seen(log_likelihood: torch.Tensor, **changes) -> Seen:
    """Labels that say nothing."""
    clusters = log_likelihood.shape[1]
    return Seen(log_likelihood, torch.ones(1), torch.ones(clusters, 1), **changes)


def log_likelihoods(samples: int, clusters: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(samples, clusters, generator=torch.Generator().manual_seed(seed))


def test_soft_em_by_hand():
    # ω = (.5, .5): γ_0 = (.8, .2), γ_1 = (1/3, 2/3), ω' = mean
    weights, gamma = SoftEM().e_step(Weights(torch.tensor([0.5, 0.5])), seen(LOG_L))
    assert_close(gamma, torch.tensor([[0.8, 0.2], [1 / 3, 2 / 3]]))
    assert_close(weights.client, torch.tensor([(0.8 + 1 / 3) / 2, (0.2 + 2 / 3) / 2]))


def test_soft_em_uses_the_prior_in_numerator_and_denominator():
    # ω = (.25, .75): γ_0 ∝ (.2, .15), γ_1 ∝ (.075, .45)
    _, gamma = SoftEM().e_step(Weights(torch.tensor([0.25, 0.75])), seen(LOG_L))
    assert_close(gamma, torch.tensor([[4 / 7, 3 / 7], [1 / 7, 6 / 7]]))


def test_sample_wise_em_by_hand():
    before = Weights(torch.tensor([0.25, 0.75]), torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    after, gamma = SampleWiseEM(mu=0.4).e_step(before, seen(LOG_L))
    # (3) from ω_ij: γ_0 ∝ (.4, .1), γ_1 ∝ (.27, .06)
    assert_close(gamma, torch.tensor([[0.8, 0.2], [9 / 11, 2 / 11]]))
    # (4) from ω̃: γ̃_0 = (4/7, 3/7), γ̃_1 = (1/7, 6/7)
    client = torch.tensor([5 / 14, 9 / 14])
    assert_close(after.client, client)
    # (5) ω = μ̃·γ + (1 − μ̃)·ω̃
    assert_close(after.sample, 0.4 * gamma + 0.6 * client)


def test_hard_by_loss_takes_the_lowest_mean_loss():
    # mean log-likelihoods: (log .8 + log .3)/2 > (log .2 + log .6)/2
    weights, gamma = HardByLoss().e_step(Weights(torch.tensor([0.0, 1.0])), seen(LOG_L))
    assert weights.client.tolist() == [1.0, 0.0]
    assert gamma.tolist() == [[1.0, 0.0], [1.0, 0.0]]


def test_hard_by_parameters_starts_by_loss_then_keeps_then_settles():
    weighting = HardByParameters()
    assert isinstance(weighting, SettlesAfterTraining)
    first, _ = weighting.e_step(weighting.start(torch.full((2,), 0.5), 2), seen(LOG_L))
    assert first.client.tolist() == [1.0, 0.0]
    kept, _ = weighting.e_step(Weights(torch.tensor([0.0, 1.0])), seen(LOG_L))
    assert kept.client.tolist() == [0.0, 1.0]
    assert weighting.settle(kept, torch.tensor([0.5, 0.7])).client.tolist() == [1.0, 0.0]


def test_single_puts_everything_into_the_only_cluster():
    weights, gamma = Single().e_step(Single().start(torch.ones(1), 3), seen(torch.randn(3, 1)))
    assert weights.client.tolist() == [1.0]
    assert gamma.tolist() == [[1.0]] * 3
    assert not isinstance(Single(), SettlesAfterTraining)


@given(weightings, st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**6))
def test_weights_and_responsibilities_are_distributions(weighting, clusters, samples, seed):
    weights = weighting.start(uniform(clusters), samples)
    for step in range(3):
        weights, gamma = weighting.e_step(weights, seen(log_likelihoods(samples, clusters, seed + step)))
        rows = [gamma, weights.client[None], *([] if weights.sample is None else [weights.sample])]
        for row in rows:
            assert (row >= 0).all()
            assert_close(row.sum(dim=1), torch.ones(len(row)))
        if weighting.hard:
            assert sorted(weights.client.tolist()) == [0.0] * (clusters - 1) + [1.0]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**6))
def test_sample_wise_em_with_mu_0_is_client_wise_soft_em(clusters, samples, seed):
    sample_wise, client_wise = SampleWiseEM(0.0), SoftEM()
    a, b = sample_wise.start(uniform(clusters), samples), client_wise.start(uniform(clusters), samples)
    for step in range(4):
        log_l = log_likelihoods(samples, clusters, seed + step)
        a, gamma_a = sample_wise.e_step(a, seen(log_l))
        b, gamma_b = client_wise.e_step(b, seen(log_l))
        assert_close(gamma_a, gamma_b)
        assert_close(a.client, b.client)


@settings(max_examples=60)
@given(
    st.sampled_from([SoftEM(), SampleWiseEM(0.0), SampleWiseEM(0.4), SampleWiseEM(1.0)]),
    st.integers(2, 6),
    st.integers(1, 12),
    st.integers(0, 10**6),
)
def test_e_steps_never_lower_the_objective(weighting, clusters, samples, seed):
    log_l = log_likelihoods(samples, clusters, seed).double()
    weights = weighting.start(uniform(clusters), samples)
    newcomer = weights.client.double()
    before = objective(log_l, newcomer)
    for _ in range(8):
        weights, _ = weighting.e_step(weights, seen(log_l))
        newcomer = weighting.newcomer(newcomer, seen(log_l))
        after = objective(log_l, weights.client)
        assert after >= before - 1e-9 * abs(before)
        assert_close(objective(log_l, newcomer), after)
        before = after


@pytest.mark.parametrize("weighting", [Assigned(), HardByLoss(), HardByParameters()])
def test_a_newcomer_of_a_hard_method_chooses_by_loss(weighting):
    assert weighting.newcomer(torch.tensor([0.0, 1.0]), seen(LOG_L)).tolist() == [1.0, 0.0]


def test_assigned_clients_stay_where_they_are_and_choose_by_loss_only_when_nobody_placed_them():
    stays, gamma = Assigned().e_step(Weights(torch.tensor([0.0, 1.0])), seen(LOG_L))
    assert stays.client.tolist() == [0.0, 1.0]
    assert gamma.tolist() == [[0.0, 1.0]] * 2
    chooses, _ = Assigned().e_step(Weights(torch.tensor([0.5, 0.5])), seen(LOG_L))
    assert chooses.client.tolist() == [1.0, 0.0]


@pytest.mark.parametrize("weighting", [Assigned(), HardByParameters()])
def test_a_client_that_has_no_cluster_takes_the_lowest_loss_not_the_first_column(weighting):
    placed, _ = weighting.e_step(Weights(torch.tensor([0.5, 0.5])), seen(LOG_L.flip(1)))
    assert placed.client.tolist() == [0.0, 1.0]


def test_soft_counts_by_hand():
    # Best clusters of four samples: 0, 0, 1, 0; cluster 2 is nobody's and gets the floor.
    log_l = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.35, 0.25]]).log()
    weights, gamma = SoftCounts(period=2, floor=1e-4).e_step(Weights(uniform(3)), seen(log_l))
    assert gamma.argmax(dim=1).tolist() == [0, 0, 1, 0]
    assert gamma.sum(dim=1).tolist() == [1.0] * 4
    assert_close(weights.client, torch.tensor([0.75, 0.25, 1e-4]) / 1.0001)


def test_soft_counts_are_counted_every_other_round_and_when_a_client_is_new():
    old, log_l = Weights(torch.tensor([0.1, 0.9])), torch.tensor([[0.9, 0.1]]).log()
    weighting = SoftCounts(period=2)
    for round_, first, counted in (
        (1, False, True),
        (2, False, False),
        (3, False, True),
        (4, False, False),
        (4, True, True),
    ):
        weights, gamma = weighting.e_step(old, seen(log_l, round=round_, first=first))
        assert (weights is not old) == counted, (round_, first)
        assert gamma.tolist() == [[1.0, 0.0]]
    thrice = [SoftCounts(3).e_step(old, seen(log_l, round=r, first=False))[0] is not old for r in range(1, 8)]
    assert thrice == [True, False, False, True, False, False, True]
    assert weighting.newcomer(old.client, seen(log_l)).tolist() == [1.0, 0.0]


def test_hellinger_by_hand():
    shares = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    expected = [(1 - 0.5**0.5) ** 0.5, 0.0, 1.0]
    assert_close(hellinger(torch.tensor([1.0, 0.0]), shares), torch.tensor(expected))


def test_label_distribution_decides_wherever_clusters_differ_in_it():
    log_l = torch.tensor([[0.9, 0.1]]).log()
    apart = Seen(log_l, torch.tensor([0.2, 0.8]), torch.tensor([[0.7, 0.3], [0.4, 0.6]]))
    for weights in (
        ByLabelDistribution().e_step(Weights(uniform(2)), apart)[0].client,
        ByLabelDistribution().newcomer(uniform(2), apart),
    ):
        assert weights.tolist() == [0.0, 1.0], "its labels are nearer to cluster 1, though 0 has the lower loss"
    alike = Seen(log_l, torch.tensor([0.2, 0.8]), torch.full((2, 2), 0.5))
    assert ByLabelDistribution().e_step(Weights(uniform(2)), alike)[0].client.tolist() == [1.0, 0.0]
    worse = Seen(log_l.flip(1), alike.class_mix, alike.class_shares)
    assert ByLabelDistribution().e_step(Weights(uniform(2)), worse)[0].client.tolist() == [0.0, 1.0]


def test_fuzzy_memberships_by_hand():
    # m = 2: u ∝ 1/d². m = 3: u ∝ 1/d.
    distances = torch.tensor([1.0, 2.0, 4.0])
    before = Weights(uniform(3))
    assert_close(FuzzyCMeans(2.0).settle(before, distances).client, torch.tensor([16.0, 4.0, 1.0]) / 21)
    assert_close(FuzzyCMeans(3.0).settle(before, distances).client, torch.tensor([4.0, 2.0, 1.0]) / 7)
    assert FuzzyCMeans().settle(before, torch.tensor([0.5, 0.0, 2.0])).client.tolist() == [0.0, 1.0, 0.0]
    assert FuzzyCMeans(1 + 1e-5).settle(before, torch.tensor([2e-3, 1e-3, 1.0])).client.tolist() == [0.0, 1.0, 0.0]
    assert_close(FuzzyCMeans().settle(before, torch.zeros(3)).client, uniform(3))


def test_fuzzy_clients_start_at_the_lowest_loss_and_keep_their_memberships():
    weighting, old = FuzzyCMeans(), Weights(torch.tensor([0.3, 0.7]))
    assert weighting.e_step(old, seen(LOG_L, first=True))[0].client.tolist() == [1.0, 0.0]
    kept, gamma = weighting.e_step(old, seen(LOG_L, first=False))
    assert kept is old
    assert_close(gamma, torch.tensor([[0.3, 0.7]] * 2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SoftCounts(0), "period = 0: must be at least 1"),
        (lambda: SoftCounts(2, 0.0), "floor = 0.0: must lie between 0 and 1"),
        (lambda: FuzzyCMeans(1.0), "fuzzifier = 1.0: must be greater than 1 and at most 10"),
    ],
)
def test_settings_are_checked(make, words):
    with pytest.raises(InputError, match=words):
        make()
