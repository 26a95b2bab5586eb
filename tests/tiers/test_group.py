"""Grouping all clients at once, on hand-computed numbers (FL+HC, PACFL, FedGroup, WeCFL)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers import (
    Decision,
    DecomposedCosineGroups,
    HierarchicalOnce,
    KMeansOnce,
    MoveDecision,
    Participants,
    WeightedKMeans,
)
from hcfl.tiers.adaptation.group import decomposed_cosine, group, k_means

ONE = torch.tensor([True])
TWO = torch.tensor([True, True])


def seen(members, round_=1, unplaced=None, **evidence) -> Participants:
    number = len(members)
    return Participants(
        clients=tuple(range(10, 10 + number)),
        members=torch.tensor(members),
        weights=torch.ones(number),
        unplaced=torch.zeros(number, dtype=torch.bool) if unplaced is None else torch.tensor(unplaced),
        sizes=evidence.pop("sizes", torch.ones(number)),
        round=round_,
        **evidence,
    )


def on_a_line(*positions) -> torch.Tensor:
    points = torch.tensor(positions)
    return (points[:, None] - points[None, :]).abs()


def test_groups_leave_one_after_another_and_the_largest_keeps_the_cluster():
    splits = group(seen([4] * 6), np.array([2, 0, 0, 1, 1, 1]), 0.9, 0.5, 0.1)
    assert [split.parent for split in splits] == [4, 4]
    assert [(split.first, split.second) for split in splits] == [
        ((11, 12, 13, 14, 15), (10,)),
        ((13, 14, 15), (11, 12)),
    ]
    assert {split.rule for split in splits} == {"one-hot"}
    assert (splits[0].maximum, splits[0].mean, splits[0].threshold) == (0.9, 0.5, 0.1)


def test_of_equal_groups_the_one_with_the_first_client_keeps_the_cluster():
    (split,) = group(seen([0] * 4), np.array([1, 0, 0, 1]), 0.9, 0.5, 0.1)
    assert (split.first, split.second) == ((10, 13), (11, 12))
    assert group(seen([0] * 3), np.zeros(3, dtype=np.int64), 0.9, 0.5, 0.1) == ()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_every_client_ends_in_exactly_one_group(labels):
    splits = group(seen([0] * len(labels)), np.array(labels), 0.9, 0.5, 0.1)
    assert len(splits) == len(set(labels)) - 1
    clusters = dict.fromkeys(range(10, 10 + len(labels)), 0)
    for number, split in enumerate(splits, start=1):
        assert set(split.first) == {c for c, k in clusters.items() if k == 0} - set(split.second)
        clusters |= dict.fromkeys(split.second, number)
    together = {(a, b) for a in clusters for b in clusters if clusters[a] == clusters[b]}
    assert together == {(10 + i, 10 + j) for i, a in enumerate(labels) for j, b in enumerate(labels) if a == b}


def test_hierarchical_once_cuts_at_a_distance_from_its_round_on():
    distance = on_a_line(0.0, 1.0, 5.0, 6.0, 20.0)
    (split,) = HierarchicalOnce(8.0, after=3).decide(seen([0] * 5, 3), distance, ONE).splits
    assert (split.first, split.second) == ((10, 11, 12, 13), (14,))
    assert (split.maximum, split.threshold) == (20.0, 8.0)
    # Average linkage joins {0, 1} and {5, 6} at 5, complete linkage at 6, single linkage at 4.
    groups = {
        linkage: len(HierarchicalOnce(4.5, 3, linkage).decide(seen([0] * 5, 3), distance, ONE).splits) + 1
        for linkage in ("average", "complete", "single")
    }
    assert groups == {"average": 3, "complete": 3, "single": 2}
    assert len(HierarchicalOnce(5.5, 3, "complete").decide(seen([0] * 5, 3), distance, ONE).splits) == 2
    assert len(HierarchicalOnce(5.5, 3, "average").decide(seen([0] * 5, 3), distance, ONE).splits) == 1
    assert HierarchicalOnce(8.0, after=3).decide(seen([0] * 5, 2), distance, ONE).splits == ()
    assert len(HierarchicalOnce(8.0, after=3).decide(seen([0] * 5, 4), distance, ONE).splits) == 1, "while K is 1"
    assert HierarchicalOnce(8.0, after=3).decide(seen([0] * 5, 4), distance, TWO).splits == ()
    assert HierarchicalOnce(8.0).decide(seen([0]), torch.zeros(1, 1), ONE).splits == ()


def test_who_was_not_there_joins_the_nearest_cluster_on_average():
    # Clusters 0 at {0, 2} and 1 at {8}; new are 4 (3 from cluster 0 on average, 4 from 1) and 7.
    distance = on_a_line(0.0, 2.0, 8.0, 4.0, 7.0)
    late = seen([0, 0, 1, 0, 0], round_=5, unplaced=[False, False, False, True, True])
    decision = HierarchicalOnce(10.0).decide(late, distance, TWO)
    assert decision.moves == (MoveDecision(14, 1, with_model=False),)
    assert decision.splits == ()
    nobody = seen([0, 0], unplaced=[True, True])
    assert HierarchicalOnce(10.0).decide(nobody, on_a_line(0.0, 1.0), TWO) == Decision()


def test_who_is_far_from_every_cluster_founds_one():
    # Clusters 0 at {0, 1} and 1 at {9}; new are 30, 31 and 90, all still in cluster 0.
    distance = on_a_line(0.0, 1.0, 9.0, 30.0, 31.0, 90.0)
    late = seen([0, 0, 1, 0, 0, 0], round_=5, unplaced=[False] * 3 + [True] * 3)
    decision = HierarchicalOnce(5.0).decide(late, distance, TWO)
    assert decision.moves == ()
    assert [split.parent for split in decision.splits] == [0, 0]
    assert {split.second for split in decision.splits} == {(13, 14), (15,)}
    assert {split.first for split in decision.splits} == {(10, 11)}, "who stays is averaged without those who leave"


def test_decomposed_cosine_by_hand():
    # Singular directions of (3, 0), (4, 0), (0, 1) are the axes; rows are cosines with them, up to sign.
    profile = decomposed_cosine(torch.tensor([[3.0, 0.0], [4.0, 0.0], [0.0, 1.0]]), 2)
    assert_close(profile.abs(), torch.tensor([[1.0, 0], [1.0, 0], [0, 1.0]]).double())
    assert_close(decomposed_cosine(torch.tensor([[3.0, 4.0]]), 1).abs(), torch.ones(1, 1).double())


def test_fedgroup_groups_by_direction_whatever_the_length_of_an_update():
    angles = (0, 5, 90, 95, 180, 185)
    lengths = (1.0, 50.0, 2.0, 0.1, 3.0, 1.0)
    updates = [
        [n * math.cos(math.radians(a)), n * math.sin(math.radians(a))] for a, n in zip(angles, lengths, strict=True)
    ]
    decision = DecomposedCosineGroups(3).decide(seen([0] * 6, signatures=torch.tensor(updates)), None, ONE)
    assert {split.second for split in decision.splits} | {decision.splits[-1].first} == {(10, 11), (12, 13), (14, 15)}
    # A later client, at 93°, joins the group that moves its way, not the one that is near in length.
    later = torch.tensor([*updates, [50 * math.cos(math.radians(93)), 50 * math.sin(math.radians(93))]])
    members, new = [0, 0, 1, 1, 2, 2, 0], [False] * 6 + [True]
    placed = DecomposedCosineGroups(3).decide(seen(members, 4, new, signatures=later), None, torch.ones(3) > 0)
    assert placed.moves == (MoveDecision(16, 1, with_model=False),)
    assert placed.splits == ()


def test_a_later_client_is_compared_with_the_direction_of_groups_without_itself():
    # Cosines with (10, 0) and (0, 1) are .6 and .8. It does not count in the group it happens to be in, however long.
    updates = torch.tensor([[10.0, 0.0], [0.0, 1.0], [30.0, 40.0]])
    late = seen([0, 1, 0], 4, [False, False, True], signatures=updates)
    assert DecomposedCosineGroups(2).decide(late, None, TWO).moves == (MoveDecision(12, 1, with_model=False),)


def test_with_too_few_clients_there_are_no_groups():
    assert DecomposedCosineGroups(3).decide(seen([0, 0], signatures=torch.eye(2)), None, ONE).splits == ()
    assert k_means(torch.zeros(5, 2), 2) is None
    assert WeightedKMeans(2).decide(seen([0, 0, 0], models=torch.ones(3, 1)), None, ONE).splits == ()


def test_weighted_k_means_founds_groups_then_moves_clients():
    models = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    (split,) = WeightedKMeans(2).decide(seen([0] * 4, models=models), None, ONE).splits
    assert {split.first, split.second} == {(10, 11), (12, 13)}
    stray = seen([0, 0, 1, 0], round_=2, models=models)
    # Centres at (0 + 1 + 11)/3 = 4 and 10: the stray client, at 11, moves; then nobody else.
    assert WeightedKMeans(2).decide(stray, None, TWO).moves == (MoveDecision(13, 1, with_model=True),)


def test_k_means_once_founds_groups_by_trained_parameters_and_then_leaves_them():
    models = torch.tensor([[0.0], [9.0], [0.1], [9.2], [0.2]])
    once = KMeansOnce(2).decide(seen([0] * 5, models=models), None, ONE)
    ((first, second),) = [(split.first, split.second) for split in once.splits]
    assert (first, second) == ((10, 12, 14), (11, 13))
    assert once.moves == ()
    assert KMeansOnce(2).decide(seen([0, 0, 1, 1, 1], models=models), None, TWO) == Decision()
    assert KMeansOnce(3).decide(seen([0] * 2, models=models[:2]), None, ONE) == Decision(), "too few yet"
    assert KMeansOnce(2).decide(seen([0] * 5, models=models, sizes=torch.tensor([1.0, 50, 1, 1, 1])), None, ONE) == once


def test_k_means_is_drawn_from_the_seed_and_the_round():
    drawn = []

    def recorded(points, groups, seed):
        drawn.append((groups, seed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hcfl.tiers.adaptation.group.k_means", recorded)
        for seed, round_ in ((0, 1), (0, 2), (5, 1)):
            KMeansOnce(2).decide(seen([0] * 2, round_=round_, models=torch.zeros(2, 1), seed=seed), None, ONE)
    assert drawn == [(2, rng.derive(seed, "k-means", round_)) for seed, round_ in ((0, 1), (0, 2), (5, 1))]


def test_weights_decide_where_a_centre_lies():
    # Cluster 0 holds 0 and 6, cluster 1 holds 10. Unweighted, its centre is 3: the client at 6 is nearer to it (3 < 4).
    # With 100 samples at 0 the centre is near 0: it moves.
    models = torch.tensor([[0.0], [6.0], [10.0]])
    assert WeightedKMeans(2).decide(seen([0, 0, 1], 2, models=models), None, TWO).moves == ()
    heavy = seen([0, 0, 1], 2, models=models, sizes=torch.tensor([100.0, 1.0, 1.0]))
    assert WeightedKMeans(2).decide(heavy, None, TWO).moves == (MoveDecision(11, 1, with_model=True),)


def test_two_clients_are_enough_for_two_groups():
    (split,) = HierarchicalOnce(8.0).decide(seen([0, 0]), on_a_line(0.0, 9.0), ONE).splits
    assert (split.first, split.second) == ((10,), (11,))


def test_who_is_exactly_at_the_threshold_joins():
    late = seen([0, 1, 0], round_=5, unplaced=[False, False, True])
    decision = HierarchicalOnce(5.0).decide(late, on_a_line(0.0, 20.0, 15.0), TWO)
    assert decision == Decision(moves=(MoveDecision(12, 1, with_model=False),))


def test_who_founds_a_cluster_leaves_its_own_not_the_first():
    # Clusters 0 at {0} and 1 at {9}; the new client, at 30, has chosen cluster 1 by loss.
    late = seen([0, 1, 1], round_=5, unplaced=[False, False, True])
    (split,) = HierarchicalOnce(5.0).decide(late, on_a_line(0.0, 9.0, 30.0), TWO).splits
    assert (split.parent, split.first, split.second) == (1, (11,), (12,))


def test_who_is_settled_stays_even_where_another_cluster_is_nearer():
    # The client at 7 is 4 from cluster 0, {0, 2, 7}, on average, and 1 from cluster 1.
    assert HierarchicalOnce(10.0).decide(seen([0, 0, 0, 1], 5), on_a_line(0.0, 2.0, 7.0, 8.0), TWO) == Decision()


def test_weights_decide_which_groups_are_founded():
    # One sample each: {5, 7} costs 2, {7, 11} costs 8. With 100 at 5 and at 7: 200 and 15.8.
    models = torch.tensor([[5.0], [7.0], [11.0]])
    for sizes, alone in ((torch.ones(3), (12,)), (torch.tensor([100.0, 100.0, 1.0]), (10,))):
        (split,) = WeightedKMeans(2).decide(seen([0] * 3, models=models, sizes=sizes), None, ONE).splits
        assert split.second == alone


def test_weights_count_in_the_first_centres_and_in_all_later_ones():
    # Cluster 0 holds 1, 3 and 9 with nine times the samples: its centre is 85/11 = 7.7, so 9 is nearer to it than to
    # 11. Unweighted it would be 4.3, and the client at 9 would move.
    models, sizes = torch.tensor([[1.0], [3.0], [9.0], [11.0]]), torch.tensor([1.0, 1.0, 9.0, 1.0])
    assert WeightedKMeans(2).decide(seen([0, 0, 0, 1], 2, models=models, sizes=sizes), None, TWO).moves == ()
    alike = seen([0, 0, 0, 1], 2, models=models)
    assert WeightedKMeans(2).decide(alike, None, TWO).moves == (MoveDecision(12, 1, with_model=True),)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HierarchicalOnce(0.0), "threshold = 0.0: must be greater than 0"),
        (lambda: HierarchicalOnce(1.0, after=0), "after = 0: must be at least 1"),
        (lambda: HierarchicalOnce(1.0, linkage="ward"), "linkage = 'ward': must be average, complete or single"),
        (lambda: DecomposedCosineGroups(1), "groups = 1: must be at least 2"),
        (lambda: WeightedKMeans(0), "groups = 0: must be at least 2"),
    ],
)
def test_settings_are_checked(make, words):
    with pytest.raises(InputError, match=words):
        make()
