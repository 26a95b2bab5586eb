"""Tier 3: which cluster splits, where, and which ones go (spec §4)."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from hcfl.tiers import Fixed, Participants, SplitAndRemove
from hcfl.tiers.adaptation import complete_linkage_halves


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
    assert SplitAndRemove(0.41).decide(clients, distance, ALL).split is None
    split = SplitAndRemove(0.39).decide(clients, distance, ALL).split
    assert split is not None
    assert (split.maximum, split.mean, split.threshold) == (pytest.approx(0.8), pytest.approx(0.4), 0.39)
    assert (split.first, split.second) == ((3,), (8,))


def test_a_split_names_client_ids_not_positions():
    # Participants 10, 20, …; cluster 1 holds positions 1, 3, 4, 6 and parts {20, 70} from {40, 50}.
    clients = seen([10, 20, 30, 40, 50, 60, 70], [0, 1, 0, 1, 1, 0, 1])
    distance = torch.zeros(7, 7)
    for i in (1, 6):
        for j in (3, 4):
            distance[i, j] = distance[j, i] = 0.9
    split = SplitAndRemove(0.3).decide(clients, distance, torch.tensor([True, True])).split
    assert split is not None
    assert split.parent == 1
    assert {split.first, split.second} == {(20, 70), (40, 50)}


def test_the_cluster_with_the_largest_distance_splits_and_only_that_one():
    distance = torch.zeros(8, 8)
    distance[:4, :4] = blocks([2, 2], 0.0, 0.7)
    distance[4:, 4:] = blocks([2, 2], 0.0, 0.9)
    decision = SplitAndRemove(0.1).decide(seen(range(8), [0] * 4 + [1] * 4), distance, torch.tensor([True, True]))
    assert decision.split is not None
    assert decision.split.parent == 1
    assert decision.split.first + decision.split.second == (4, 5, 6, 7)


def test_distances_between_clusters_do_not_count():
    distance = blocks([2, 2], 0.0, 1.0)
    decision = SplitAndRemove(0.1).decide(seen(range(4), [0, 0, 1, 1]), distance, torch.tensor([True, True]))
    assert decision.split is None


def test_clusters_that_are_nobody_s_are_removed():
    decision = SplitAndRemove(0.3).decide(seen([0], [1]), torch.zeros(1, 1), torch.tensor([False, True, False]))
    assert decision.remove == (0, 2)
    assert decision.split is None


def test_complete_linkage_separates_two_groups_and_the_larger_keeps_the_cluster():
    assert complete_linkage_halves(blocks([2, 3], 0.1, 0.9)) == [True, True, False, False, False]


@given(st.integers(2, 12), st.integers(0, 10**6))
def test_both_parts_are_non_empty_and_together_everybody(clients, seed):
    distance = torch.rand(clients, clients, generator=torch.Generator().manual_seed(seed))
    distance = (distance + distance.T).fill_diagonal_(0)
    ids = [7 * i + 3 for i in range(clients)]
    split = SplitAndRemove(1e-6).decide(seen(ids, [0] * clients), distance, ALL).split
    assume(split is not None)
    assert split.first
    assert split.second
    assert sorted(split.first + split.second) == ids


def test_even_identical_distances_give_two_parts():
    parts = complete_linkage_halves(blocks([1, 1, 1, 1], 0.0, 0.5))
    assert set(parts) == {True, False}
