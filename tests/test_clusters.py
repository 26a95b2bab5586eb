"""How weights follow splits and removals (spec §4, steps 4 and 5)."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.clusters import FIRST, OUTSIDE, SECOND, Removal, Split, follow, remove_weights, split_weights

WEIGHTS = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.2, 0.8]])
PARTS = torch.tensor([FIRST, SECOND, OUTSIDE])


def split(round_=1, parent=0, child=2, first=(0,), second=(1,), rule="halve") -> Split:
    return Split(round_, parent, child, first, second, rule, maximum=0.9, mean=0.2, threshold=0.3)


def test_halving_shares_the_parent_s_mass_on_every_row():
    halved = split_weights(WEIGHTS, 0, PARTS, "halve")
    assert_close(halved, torch.tensor([[0.3, 0.4, 0.3], [0.3, 0.4, 0.3], [0.1, 0.8, 0.1]]))


def test_without_scwu_members_become_one_hot_and_others_are_halved():
    changed = split_weights(WEIGHTS, 0, PARTS, "one-hot")
    assert_close(changed, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.1, 0.8, 0.1]]))


def test_hard_weights_move_the_second_part_only():
    hard = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
    moved = split_weights(hard, 0, PARTS, "move")
    assert_close(moved, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))


def test_removal_renormalises_and_a_row_without_mass_becomes_uniform():
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0]])
    assert_close(remove_weights(weights, 1), torch.tensor([[2 / 3, 1 / 3], [0.5, 0.5]]))


def test_what_was_passed_in_stays_as_it_is():
    before = WEIGHTS.clone()
    split_weights(WEIGHTS, 0, PARTS, "one-hot")
    remove_weights(WEIGHTS, 0)
    assert_close(WEIGHTS, before)


def test_a_client_that_missed_rounds_catches_up_by_ids():
    changes = [
        split(round_=1, parent=0, child=2, first=(5,), second=(9,)),
        Removal(round=2, cluster=1),
        split(round_=3, parent=2, child=3, first=(9,), second=(5,)),
    ]
    weights, clusters = follow(torch.tensor([[0.6, 0.4]]), (0, 1), changes, client=5)
    # (.3, .4, .3) → without cluster 1: (.5, .5) → cluster 2 halved: (.5, .25, .25)
    assert clusters == (0, 2, 3)
    assert_close(weights, torch.tensor([[0.5, 0.25, 0.25]]))


def test_hard_clients_follow_their_own_part():
    moved = split(first=(5,), second=(9,), rule="move")
    one = torch.tensor([[1.0, 0.0]])
    for client, expected in ((5, [1.0, 0.0, 0.0]), (9, [0.0, 0.0, 1.0]), (6, [1.0, 0.0, 0.0]), (None, [1.0, 0.0, 0.0])):
        assert follow(one, (0, 1), [moved], client)[0][0].tolist() == expected


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10)), max_size=8), st.integers(0, 10**6))
def test_weights_stay_distributions_through_any_history(history, seed):
    weights = torch.rand(5, 3, generator=torch.Generator().manual_seed(seed)).softmax(dim=1)
    clusters, born, changes = (0, 1, 2), 3, []
    for is_split, choice in history:
        cluster = clusters[choice % len(clusters)]
        if is_split:
            changes.append(split(parent=cluster, child=born))
            clusters, born = (*clusters, born), born + 1
        elif len(clusters) > 1:
            changes.append(Removal(1, cluster))
            clusters = tuple(k for k in clusters if k != cluster)
    weights, found = follow(weights, (0, 1, 2), changes, client=0)
    assert found == clusters
    assert weights.shape == (5, len(clusters))
    assert_close(weights.sum(dim=1), torch.ones(5))
