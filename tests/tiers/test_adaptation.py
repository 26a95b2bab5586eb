"""Tier 3: which cluster splits, where, and which ones go."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hcfl.errors import InputError
from hcfl.tiers import Fixed, Participants, SplitAndRemove, SplitBySpectrum, SplitWhenStationary, UpdateCosine
from hcfl.tiers.adaptation import complete_linkage_halves, two_means_halves


def seen(clients, members) -> Participants:
    return Participants(tuple(clients), torch.tensor(members), torch.ones(len(clients)))


def blocks(sizes, inside: float, between: float) -> torch.Tensor:
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    distance = torch.where(group[:, None] == group[None, :], inside, between)
    return distance.fill_diagonal_(0)


ALL = torch.tensor([True])


def test_fixed_never_changes_anything():
    assert Fixed().decide(seen([0, 1], [0, 0]), torch.ones(2, 2), torch.tensor([True, False])) == Fixed().decide(
        seen([], []), None, ALL
    )


def test_threshold_is_max_minus_mean_over_the_whole_matrix():
    # Two clients at distance .8: mean with the diagonal .4, so max − mean = .4.
    distance = torch.tensor([[0.0, 0.8], [0.8, 0.0]])
    clients = seen([3, 8], [0, 0])
    assert SplitAndRemove(0.41).decide(clients, distance, ALL).splits == ()
    (split,) = SplitAndRemove(0.39).decide(clients, distance, ALL).splits
    assert (split.maximum, split.mean, split.threshold) == (pytest.approx(0.8), pytest.approx(0.4), 0.39)
    assert (split.first, split.second) == ((3,), (8,))


def test_a_split_names_client_ids_not_positions():
    # Participants 10, 20, …; cluster 1 holds positions 1, 3, 4, 6 and parts {20, 70} from {40, 50}.
    clients = seen([10, 20, 30, 40, 50, 60, 70], [0, 1, 0, 1, 1, 0, 1])
    distance = torch.zeros(7, 7)
    for i in (1, 6):
        for j in (3, 4):
            distance[i, j] = distance[j, i] = 0.9
    (split,) = SplitAndRemove(0.3).decide(clients, distance, torch.tensor([True, True])).splits
    assert split.parent == 1
    assert {split.first, split.second} == {(20, 70), (40, 50)}


def test_the_cluster_with_the_largest_distance_splits_and_only_that_one():
    distance = torch.zeros(8, 8)
    distance[:4, :4] = blocks([2, 2], 0.0, 0.7)
    distance[4:, 4:] = blocks([2, 2], 0.0, 0.9)
    decision = SplitAndRemove(0.1).decide(seen(range(8), [0] * 4 + [1] * 4), distance, torch.tensor([True, True]))
    (split,) = decision.splits
    assert split.parent == 1
    assert split.first + split.second == (4, 5, 6, 7)


def test_distances_between_clusters_do_not_count():
    distance = blocks([2, 2], 0.0, 1.0)
    decision = SplitAndRemove(0.1).decide(seen(range(4), [0, 0, 1, 1]), distance, torch.tensor([True, True]))
    assert decision.splits == ()


def test_clusters_that_are_nobody_s_are_removed():
    decision = SplitAndRemove(0.3).decide(seen([0], [1]), torch.zeros(1, 1), torch.tensor([False, True, False]))
    assert decision.remove == (0, 2)
    assert decision.splits == ()


def test_complete_linkage_separates_two_groups_and_the_larger_keeps_the_cluster():
    assert complete_linkage_halves(blocks([2, 3], 0.1, 0.9)) == [True, True, False, False, False]


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_both_parts_are_non_empty_and_together_everybody(clients, seed):
    distance = torch.rand(clients, clients, generator=torch.Generator().manual_seed(seed))
    distance = (distance + distance.T).fill_diagonal_(0)
    ids = [7 * i + 3 for i in range(clients)]
    splits = SplitAndRemove(1e-6).decide(seen(ids, [0] * clients), distance, ALL).splits
    assume(splits)
    (split,) = splits
    assert split.first
    assert split.second
    assert sorted(split.first + split.second) == ids


def test_even_identical_distances_give_two_parts():
    parts = complete_linkage_halves(blocks([1, 1, 1, 1], 0.0, 0.5))
    assert set(parts) == {True, False}


def pulling(updates, clients=None, members=None, round_=1) -> tuple[Participants, torch.Tensor]:
    """Participants with these updates, and the cosine distance between them."""
    updates = torch.tensor(updates)
    count = len(updates)
    participants = Participants(
        clients=tuple(clients or range(count)),
        members=torch.tensor(members or [0] * count),
        weights=torch.ones(count),
        whole_updates=updates,
        round=round_,
    )
    return participants, UpdateCosine(weighted=False, of="whole updates").between(participants)


TWO_WAYS = [[2.0, 0.0], [2.0, 0.1], [-2.0, 0.0], [-2.0, 0.1]]


def test_cfl_splits_a_cluster_that_stands_still_while_its_clients_pull():
    clients, distance = pulling(TWO_WAYS, clients=[3, 5, 8, 9])
    (split,) = SplitWhenStationary(0.4, 1.6).decide(clients, distance, ALL).splits
    assert {split.first, split.second} == {(3, 5), (8, 9)}
    # ‖mean‖ = .05; the longest is √(4 + .01)
    assert (split.mean, split.maximum, split.threshold) == (pytest.approx(0.05), pytest.approx(4.01**0.5), 1.6)
    assert split.rule == "one-hot"


@pytest.mark.parametrize(
    ("updates", "tol1", "tol2"),
    [
        (TWO_WAYS, 0.04, 1.6),  # the cluster still moves
        (TWO_WAYS, 0.4, 2.01),  # nobody pulls hard enough
        ([[2.0, 0.0], [-2.0, 0.0]], 0.4, 1.6),  # two clients are too few
    ],
)
def test_cfl_needs_all_three_conditions(updates, tol1, tol2):
    clients, distance = pulling(updates)
    assert SplitWhenStationary(tol1, tol2).decide(clients, distance, ALL).splits == ()


def test_cfl_looks_at_every_cluster_by_itself():
    clients, distance = pulling(TWO_WAYS * 2, members=[0] * 4 + [1] * 4)
    splits = SplitWhenStationary(0.4, 1.6).decide(clients, distance, torch.tensor([True, True])).splits
    assert [split.parent for split in splits] == [0, 1]


def test_cfl_s_public_bugs_are_switches():
    # Each update has norm √8·1 = 2.83 but no coordinate above 1.
    updates = [[1.0] * 8, [1.0] * 8, [-1.0] * 8, [-1.0] * 8]
    clients, distance = pulling(updates, clients=[3, 5, 8, 9])
    assert SplitWhenStationary(0.4, 1.6).decide(clients, distance, ALL).splits
    assert not SplitWhenStationary(0.4, 1.6, max_coordinate=True).decide(clients, distance, ALL).splits
    decision = SplitWhenStationary(0.4, 1.6, lost_ids=True).decide(clients, distance, ALL)
    (split,) = decision.splits
    assert {split.first, split.second} == {(0, 1), (2, 3)}, "positions instead of ids"
    assert decision.lost_ids
    assert not SplitWhenStationary(0.4, 1.6).decide(clients, distance, ALL).lost_ids


def test_with_lost_ids_a_cluster_is_whoever_its_list_has():
    updates = [*TWO_WAYS, [0.0, 0.0], [0.0, 0.0]]
    clients, distance = pulling(updates, members=[0, 0, 1, 1, 0, 0])
    listed = torch.tensor([[False, False, True]] * 4 + [[True, False, False]] * 2)
    rule = SplitWhenStationary(0.4, 1.6, lost_ids=True)
    assert rule.decide(clients, distance, ALL).splits == (), "by members, no cluster has converged"
    (split,) = rule.decide(replace(clients, listed=listed), distance, ALL).splits
    assert (split.parent, sorted(split.first + split.second)) == (2, [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("settings", "rule"), [({}, "halve"), ({"uniform": True}, "uniform"), ({"scwu": False}, "one-hot")]
)
def test_what_a_split_of_hcfl_plus_does_to_weights_is_a_setting(settings, rule):
    distance = torch.tensor([[0.0, 0.9], [0.9, 0.0]])
    pair = Participants(clients=(4, 6), members=torch.zeros(2, dtype=torch.long), weights=torch.ones(2))
    (split,) = SplitAndRemove(0.3, **settings).decide(pair, distance, ALL).splits
    assert split.rule == rule
    with pytest.raises(InputError, match="uniform = True: must be False with scwu = False"):
        SplitAndRemove(0.3, scwu=False, uniform=True)


def test_icfl_threshold_by_hand():
    # ε₂ = ln(.15)/(1 − ln 4) = 4.9105; α*(t) = 1 − (e/4)^(t/ε₂)
    rule = SplitBySpectrum(alpha0=0.85)
    assert rule.threshold(1) == 0
    assert rule.threshold(11) == pytest.approx(1 - 0.6795705 ** (10 / 4.911028), abs=1e-3)
    assert SplitBySpectrum(alpha0=0.85, from_start=True).threshold(1) == pytest.approx(0.85)
    assert SplitBySpectrum(alpha0=0.98, from_start=True).threshold(1) == pytest.approx(0.98)
    # From the start, every round multiplies what is left, .15, by e/4.
    assert SplitBySpectrum(alpha0=0.85, from_start=True).threshold(3) == pytest.approx(1 - 0.15 * 0.6795705**2)


def test_icfl_splits_when_the_leading_singular_value_is_too_small():
    # Two orthogonal pairs: A is block-diagonal with σ = (2, 2, 0, 0), so α_G = 2/4.
    updates = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    clients, distance = pulling(updates, clients=[3, 5, 8, 9], round_=1)
    strict, loose = SplitBySpectrum(alpha0=0.51, from_start=True), SplitBySpectrum(alpha0=0.49, from_start=True)
    (split,) = strict.decide(clients, distance, ALL).splits
    assert {split.first, split.second} == {(3, 5), (8, 9)}
    assert split.maximum == pytest.approx(0.5)
    assert loose.decide(clients, distance, ALL).splits == ()


def test_icfl_never_splits_a_cluster_of_one_or_a_coherent_one():
    clients, distance = pulling([[1.0, 0.0]], round_=500)
    assert SplitBySpectrum().decide(clients, distance, ALL).splits == ()
    clients, distance = pulling([[1.0, 0.0]] * 4)
    assert SplitBySpectrum(from_start=True).decide(clients, distance, ALL).splits == ()


def test_icfl_cannot_tell_two_opposite_groups_from_one():
    # A = [[1, −1], [−1, 1]] in blocks has σ₁ = n: the criterion itself is blind to the sign.
    clients, distance = pulling([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    assert SplitBySpectrum(alpha0=0.99, from_start=True).decide(clients, distance, ALL).splits == ()


def test_two_means_cut_at_the_gap():
    assert two_means_halves(torch.tensor([[0.0], [5.0], [0.1], [5.1], [0.2]])) == [False, True, False, True, False]


def test_a_cluster_splits_also_when_the_threshold_is_met_exactly():
    # max − mean = 1/2 − 1/4
    distance = torch.tensor([[0.0, 0.5], [0.5, 0.0]])
    assert len(SplitAndRemove(0.25).decide(seen([3, 8], [0, 0]), distance, ALL).splits) == 1


def test_the_largest_distance_decides_not_the_largest_margin():
    # Cluster 0: max .8, mean .4. Cluster 1: max .7, mean .2625, so its margin is larger.
    distance = torch.zeros(6, 6)
    distance[:2, :2] = blocks([1, 1], 0.0, 0.8)
    distance[2:, 2:] = blocks([1, 3], 0.0, 0.7)
    (split,) = SplitAndRemove(0.1).decide(seen(range(6), [0] * 2 + [1] * 4), distance, torch.tensor([True] * 2)).splits
    assert split.parent == 0


def test_scwu_says_whether_weights_are_halved():
    distance, clients = torch.tensor([[0.0, 0.8], [0.8, 0.0]]), seen([3, 8], [0, 0])
    assert SplitAndRemove(0.1).decide(clients, distance, ALL).splits[0].rule == "halve"
    assert SplitAndRemove(0.1, scwu=False).decide(clients, distance, ALL).splits[0].rule == "one-hot"


def test_the_linkage_is_complete():
    # 0-2 merge first (.2). By their farthest members 3 is nearer to them (.7) than 1 is (.8).
    distance = torch.tensor([[0.0, 0.8, 0.2, 0.6], [0.8, 0.0, 0.4, 0.9], [0.2, 0.4, 0.0, 0.7], [0.6, 0.9, 0.7, 0.0]])
    assert complete_linkage_halves(distance) == [False, True, False, False]


def test_cfl_needs_somebody_beyond_tol2_not_at_it():
    clients, distance = pulling([[2.0], [-2.0], [2.0], [-2.0]])
    assert SplitWhenStationary(0.4, 2.0).decide(clients, distance, ALL).splits == ()


def test_the_largest_coordinate_counts_whatever_its_sign():
    clients, distance = pulling([[-2.0], [1.0], [1.0]])
    assert SplitWhenStationary(0.4, 1.6, max_coordinate=True).decide(clients, distance, ALL).splits


def test_icfl_cuts_where_the_second_singular_vector_does():
    # Two groups at 60°: the leading vector of A is the same for all, only the second has another sign in each.
    one, other = [1.0, 0.0], [0.5, 0.75**0.5]
    clients, distance = pulling([one, other, other, one, other, one], clients=[3, 5, 6, 8, 9, 11])
    (split,) = SplitBySpectrum(alpha0=0.8, from_start=True).decide(clients, distance, ALL).splits
    assert (split.first, split.second) == ((3, 8, 11), (5, 6, 9))
    # α_G = 3/4 of six; what is recorded is 1 − α, like a distance
    assert (split.maximum, split.mean, split.threshold) == (
        pytest.approx(0.25),
        pytest.approx(0.25),
        pytest.approx(0.2),
    )
