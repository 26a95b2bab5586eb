"""Tier 2 on hand-computed numbers and invariants."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.tiers import (
    Assigned,
    ByLabelDistribution,
    EStepInputs,
    FuzzyCMeans,
    HardByLoss,
    HardByParameters,
    SampleWiseEM,
    SettlesAfterTraining,
    Single,
    SoftCounts,
    SoftEM,
    Weights,
)
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.formulation import objective
from hcfl.tiers.weighting import hellinger, one_hot, uniform

LIKELIHOOD = torch.tensor([[0.8, 0.2], [0.3, 0.6]])
LOG_L = LIKELIHOOD.log()

WEIGHTINGS = [
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
weightings = st.sampled_from(WEIGHTINGS)


def seen(log_likelihood: torch.Tensor, **changes) -> EStepInputs:
    """One client whose labels say nothing."""
    samples, clusters = log_likelihood.shape
    return EStepInputs(log_likelihood, Segments((samples,)), torch.ones(1, 1), torch.ones(clusters, 1), **changes)


def one(*weights: float) -> Weights:
    """One client's weights."""
    return Weights(torch.tensor([weights]))


def log_likelihoods(samples: int, clusters: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(samples, clusters, generator=torch.Generator().manual_seed(seed))


def test_soft_em_by_hand():
    # ω = (.5, .5): γ_0 = (.8, .2), γ_1 = (1/3, 2/3), ω' = mean
    weights, gamma = SoftEM().e_step(one(0.5, 0.5), seen(LOG_L))
    assert_close(gamma, torch.tensor([[0.8, 0.2], [1 / 3, 2 / 3]]))
    assert_close(weights.client, torch.tensor([[(0.8 + 1 / 3) / 2, (0.2 + 2 / 3) / 2]]))


def test_soft_em_uses_the_prior_in_numerator_and_denominator():
    # ω = (.25, .75): γ_0 ∝ (.2, .15), γ_1 ∝ (.075, .45)
    _, gamma = SoftEM().e_step(one(0.25, 0.75), seen(LOG_L))
    assert_close(gamma, torch.tensor([[4 / 7, 3 / 7], [1 / 7, 6 / 7]]))


def test_sample_wise_em_by_hand():
    before = Weights(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.5, 0.5], [0.9, 0.1]]))
    after, gamma = SampleWiseEM(mu=0.4).e_step(before, seen(LOG_L))
    # (3) from ω_ij: γ_0 ∝ (.4, .1), γ_1 ∝ (.27, .06)
    assert_close(gamma, torch.tensor([[0.8, 0.2], [9 / 11, 2 / 11]]))
    # (4) from ω̃: γ̃_0 = (4/7, 3/7), γ̃_1 = (1/7, 6/7)
    client = torch.tensor([[5 / 14, 9 / 14]])
    assert_close(after.client, client)
    # (5) ω = μ̃·γ + (1 − μ̃)·ω̃
    assert_close(after.sample, 0.4 * gamma + 0.6 * client)


def test_hard_by_loss_takes_the_lowest_mean_loss():
    # mean log-likelihoods: (log .8 + log .3)/2 > (log .2 + log .6)/2
    known = seen(LOG_L, first=torch.tensor([False]))
    weights, gamma = HardByLoss().e_step(one(0.0, 1.0), known)
    assert weights.client.tolist() == [[1.0, 0.0]]
    assert gamma.tolist() == [[1.0, 0.0], [1.0, 0.0]]
    assert HardByLoss().e_step(one(0.5, 0.5), seen(LOG_L))[0].client.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("weighting", [HardByLoss(), ByLabelDistribution(), HardByParameters(), Assigned()])
def test_a_client_that_begins_in_a_given_group_trains_its_model_first(weighting):
    alike = torch.zeros(2, 2)  # all groups begin with the same model
    assert weighting.e_step(one(0.0, 1.0), seen(alike))[0].client.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("weighting", [SoftCounts(period=1), FuzzyCMeans(), SoftEM()])
def test_soft_weights_of_a_given_group_stay_while_all_models_are_alike(weighting):
    weights, _ = weighting.e_step(one(0.1, 0.9), seen(torch.zeros(2, 2)))
    assert_close(weights.client, torch.tensor([[0.1, 0.9]]))


def test_equally_near_centres_move_no_client():
    alike = torch.tensor([[0.5, 0.5]])
    assert HardByParameters().settle(one(0.0, 1.0), alike).client.tolist() == [[0.0, 1.0]]
    assert_close(FuzzyCMeans().settle(one(0.1, 0.9), alike).client, torch.tensor([[0.1, 0.9]]))


def test_hard_by_parameters_starts_by_loss_then_keeps_then_settles():
    weighting = HardByParameters()
    assert isinstance(weighting, SettlesAfterTraining)
    first, _ = weighting.e_step(weighting.start(torch.full((1, 2), 0.5), Segments((2,))), seen(LOG_L))
    assert first.client.tolist() == [[1.0, 0.0]]
    kept, _ = weighting.e_step(one(0.0, 1.0), seen(LOG_L))
    assert kept.client.tolist() == [[0.0, 1.0]]
    assert weighting.settle(kept, torch.tensor([[0.5, 0.7]])).client.tolist() == [[1.0, 0.0]]


def test_single_puts_everything_into_the_only_cluster():
    weights, gamma = Single().e_step(Single().start(torch.ones(1, 1), Segments((3,))), seen(torch.randn(3, 1)))
    assert weights.client.tolist() == [[1.0]]
    assert gamma.tolist() == [[1.0]] * 3
    assert not isinstance(Single(), SettlesAfterTraining)


@given(weightings, st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**6))
def test_weights_and_responsibilities_are_distributions(weighting, clusters, samples, seed):
    weights = weighting.start(uniform(clusters)[None], Segments((samples,)))
    for step in range(3):
        weights, gamma = weighting.e_step(weights, seen(log_likelihoods(samples, clusters, seed + step)))
        rows = [gamma, weights.client, *([] if weights.sample is None else [weights.sample])]
        for row in rows:
            assert (row >= 0).all()
            assert_close(row.sum(dim=1), torch.ones(len(row)))
        if weighting.hard:
            assert sorted(weights.client[0].tolist()) == [0.0] * (clusters - 1) + [1.0]


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 10**6))
def test_sample_wise_em_with_mu_0_is_client_wise_soft_em(clusters, samples, seed):
    sample_wise, client_wise = SampleWiseEM(0.0), SoftEM()
    a, b = (each.start(uniform(clusters)[None], Segments((samples,))) for each in (sample_wise, client_wise))
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
    segments = Segments((samples,))
    weights = weighting.start(uniform(clusters)[None], segments)
    newcomer = weights.client.double()
    before = objective(log_l, newcomer, segments)
    for _ in range(8):
        weights, _ = weighting.e_step(weights, seen(log_l))
        newcomer = weighting.newcomer(newcomer, seen(log_l))
        after = objective(log_l, weights.client, segments)
        assert after >= before - 1e-9 * abs(before)
        assert_close(objective(log_l, newcomer, segments), after)
        before = after


@pytest.mark.parametrize("weighting", [Assigned(), HardByLoss(), HardByParameters()])
def test_a_newcomer_of_a_hard_method_chooses_by_loss(weighting):
    assert weighting.newcomer(torch.tensor([[0.0, 1.0]]), seen(LOG_L)).tolist() == [[1.0, 0.0]]


def test_assigned_clients_stay_where_they_are_and_choose_by_loss_only_when_nobody_placed_them():
    stays, gamma = Assigned().e_step(one(0.0, 1.0), seen(LOG_L))
    assert stays.client.tolist() == [[0.0, 1.0]]
    assert gamma.tolist() == [[0.0, 1.0]] * 2
    chooses, _ = Assigned().e_step(one(0.5, 0.5), seen(LOG_L))
    assert chooses.client.tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("weighting", [Assigned(), HardByParameters()])
def test_a_client_that_has_no_cluster_takes_the_lowest_loss_not_the_first_column(weighting):
    placed, _ = weighting.e_step(one(0.5, 0.5), seen(LOG_L.flip(1)))
    assert placed.client.tolist() == [[0.0, 1.0]]


def test_soft_counts_by_hand():
    # Best clusters of four samples: 0, 0, 1, 0; cluster 2 is nobody's and gets the floor.
    log_l = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.35, 0.25]]).log()
    weights, gamma = SoftCounts(period=2, floor=1e-4).e_step(Weights(uniform(3)[None]), seen(log_l))
    assert gamma.argmax(dim=1).tolist() == [0, 0, 1, 0]
    assert gamma.sum(dim=1).tolist() == [1.0] * 4
    assert_close(weights.client, torch.tensor([[0.75, 0.25, 1e-4]]) / 1.0001)


def test_soft_counts_are_counted_every_other_round_and_when_a_client_is_new():
    old, log_l = one(0.1, 0.9), torch.tensor([[0.9, 0.1]]).log()
    weighting = SoftCounts(period=2)
    for round_, first, counted in (
        (1, False, True),
        (2, False, False),
        (3, False, True),
        (4, False, False),
        (4, True, True),
    ):
        now = one(0.5, 0.5) if first else old
        weights, gamma = weighting.e_step(now, seen(log_l, round=round_, first=torch.tensor([first])))
        assert_close(weights.client, torch.tensor([[1.0, 1e-4]]) / 1.0001 if counted else old.client)
        assert gamma.tolist() == [[1.0, 0.0]]
    rounds = [seen(log_l, round=round_, first=torch.tensor([False])) for round_ in range(1, 8)]
    thrice = [not SoftCounts(3).e_step(old, each)[0].client.equal(old.client) for each in rounds]
    assert thrice == [True, False, False, True, False, False, True]
    assert weighting.newcomer(old.client, seen(log_l)).tolist() == [[1.0, 0.0]]


def test_hellinger_by_hand():
    shares = torch.tensor([[0.5, 0.5], [1.0, 0.0], [0.0, 1.0]])
    expected = [(1 - 0.5**0.5) ** 0.5, 0.0, 1.0]
    assert_close(hellinger(torch.tensor([[1.0, 0.0]]), shares), torch.tensor([expected]))


def test_label_distribution_decides_wherever_clusters_differ_in_it():
    log_l = torch.tensor([[0.9, 0.1]]).log()
    mix = torch.tensor([[0.2, 0.8]])
    apart = EStepInputs(log_l, Segments((1,)), mix, torch.tensor([[0.7, 0.3], [0.4, 0.6]]))
    for weights in (
        ByLabelDistribution().e_step(one(0.5, 0.5), apart)[0].client,
        ByLabelDistribution().newcomer(uniform(2)[None], apart),
    ):
        assert weights.tolist() == [[0.0, 1.0]], "its labels are nearer to cluster 1, though 0 has the lower loss"
    alike = EStepInputs(log_l, Segments((1,)), mix, torch.full((2, 2), 0.5))
    assert ByLabelDistribution().e_step(one(0.5, 0.5), alike)[0].client.tolist() == [[1.0, 0.0]]
    worse = replace(alike, log_likelihood=log_l.flip(1))
    assert ByLabelDistribution().e_step(one(0.5, 0.5), worse)[0].client.tolist() == [[0.0, 1.0]]


def test_fuzzy_memberships_by_hand():
    # m = 2: u ∝ 1/d². m = 3: u ∝ 1/d.
    distances = torch.tensor([[1.0, 2.0, 4.0]])
    before = Weights(uniform(3)[None])
    assert_close(FuzzyCMeans(2.0).settle(before, distances).client, torch.tensor([[16.0, 4.0, 1.0]]) / 21)
    assert_close(FuzzyCMeans(3.0).settle(before, distances).client, torch.tensor([[4.0, 2.0, 1.0]]) / 7)
    assert FuzzyCMeans().settle(before, torch.tensor([[0.5, 0.0, 2.0]])).client.tolist() == [[0.0, 1.0, 0.0]]
    sharp = FuzzyCMeans(1 + 1e-5).settle(before, torch.tensor([[2e-3, 1e-3, 1.0]]))
    assert sharp.client.tolist() == [[0.0, 1.0, 0.0]]
    assert_close(FuzzyCMeans().settle(before, torch.zeros(1, 3)).client, uniform(3)[None])


def test_fuzzy_clients_start_at_the_lowest_loss_and_keep_their_memberships():
    weighting, old = FuzzyCMeans(), one(0.3, 0.7)
    new = seen(LOG_L, first=torch.tensor([True]))
    assert weighting.e_step(one(0.5, 0.5), new)[0].client.tolist() == [[1.0, 0.0]]
    kept, gamma = weighting.e_step(old, seen(LOG_L, first=torch.tensor([False])))
    assert kept.client.equal(old.client)
    assert_close(gamma, torch.tensor([[0.3, 0.7]] * 2))


def random_rows(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, columns, generator=generator).softmax(dim=1)


def group(sizes: list[int], clusters: int, seed: int) -> tuple[Weights, EStepInputs]:
    """Clients of many kinds; every second one is placed and looks at its own cluster only."""
    generator = torch.Generator().manual_seed(seed)
    segments = Segments(tuple(sizes))
    placed = (torch.arange(len(segments)) % 2 == 1)[:, None]
    own = one_hot(torch.randint(clusters, (len(segments),), generator=generator), clusters)
    weights = Weights(
        torch.where(placed, own, random_rows(len(segments), clusters, generator)),
        random_rows(segments.samples, clusters, generator),
        torch.rand(len(segments), clusters, 2, generator=generator).softmax(dim=2),
    )
    log_likelihood = log_likelihoods(segments.samples, clusters, seed)
    log_likelihood[segments.each(placed & (own == 0))] = -torch.inf
    mix = random_rows(len(segments), 3, generator)
    shares = random_rows(clusters, 3, generator) if seed % 2 else torch.full((clusters, 3), 1 / 3)
    first = torch.rand(len(segments), generator=generator) < 0.5
    return weights, EStepInputs(log_likelihood, segments, mix, shares, 1 + seed % 3, first)


def each_alone(seen: EStepInputs) -> list[EStepInputs]:
    """What each client of a group sees alone."""
    logs = seen.segments.split(seen.log_likelihood)
    return [
        replace(seen, log_likelihood=log_l, segments=Segments((len(log_l),)), class_mix=mix[None], first=first[None])
        for log_l, mix, first in zip(logs, seen.class_mix, seen.first, strict=True)
    ]


def assert_same(together: Weights, alone: list[Weights]) -> None:
    joined = Weights.join(alone)
    for part in ("client", "sample", "components"):
        a, b = getattr(together, part), getattr(joined, part)
        assert (a is None) == (b is None), part
        if a is not None:
            assert_close(a, b)


@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@settings(max_examples=40)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 10**6))
def test_a_group_finds_what_each_of_its_clients_finds_alone(weighting, sizes, clusters, seed):
    weights, seen = group(sizes, clusters, seed)
    segments, alone = seen.segments, list(zip(weights.split(seen.segments), each_alone(seen), strict=True))

    assert_same(weighting.start(weights.client, segments), [weighting.start(w.client, s.segments) for w, s in alone])
    after, gamma = weighting.e_step(weights, seen)
    steps = [weighting.e_step(w, s) for w, s in alone]
    assert_same(after, [own for own, _ in steps])
    assert_close(gamma, torch.cat([own for _, own in steps]))
    assert gamma.isfinite().all()
    assert_close(
        weighting.newcomer(weights.client, seen), torch.cat([weighting.newcomer(w.client, s) for w, s in alone])
    )
    if isinstance(weighting, SettlesAfterTraining):
        distances = torch.rand(len(segments), clusters, generator=torch.Generator().manual_seed(seed))
        settled = [weighting.settle(w, d[None]) for (w, _), d in zip(alone, distances, strict=True)]
        assert_same(weighting.settle(weights, distances), settled)


def test_a_group_of_single_has_the_only_cluster():
    weights, gamma = Single().e_step(*group([2, 1, 3], clusters=1, seed=0))
    assert weights.client.tolist() == [[1.0]] * 3
    assert gamma.tolist() == [[1.0]] * 6


def test_clients_of_a_group_differ_in_whether_they_are_new():
    old, log_l = torch.tensor([[0.5, 0.5], [0.3, 0.7]]), torch.cat([LOG_L, LOG_L])
    both = EStepInputs(log_l, Segments((2, 2)), torch.ones(2, 1), torch.ones(2, 1), 2, torch.tensor([True, False]))
    assert_close(FuzzyCMeans().e_step(Weights(old), both)[0].client, torch.tensor([[1.0, 0.0], [0.3, 0.7]]))
    assert_close(SoftCounts().e_step(Weights(old), both)[0].client, torch.tensor([[0.5, 0.5], [0.3, 0.7]]))
    nobody_said = replace(both, first=None)
    assert FuzzyCMeans().e_step(Weights(old[[0, 0]]), nobody_said)[0].client.tolist() == [[1.0, 0.0]] * 2


@pytest.mark.parametrize("parts", [("client",), ("client", "sample"), ("client", "sample", "components")])
def test_a_group_s_weights_come_apart_and_together_again(parts):
    weights, seen = group([2, 1, 3], clusters=2, seed=0)
    weights = Weights(**{part: getattr(weights, part) for part in parts})
    alone = weights.split(seen.segments)
    assert_same(weights, alone)
    for own, size in zip(alone, seen.segments.sizes, strict=True):
        assert own.client.shape == (1, 2)
        assert own.sample is None or own.sample.shape == (size, 2)
        for part in parts:
            kept = getattr(own, part)
            assert kept.untyped_storage().nbytes() == kept.nbytes, "nobody keeps the others' weights alive"


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
