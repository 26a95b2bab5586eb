"""How weights follow splits and removals."""

from functools import reduce

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.core.cluster_log import (
    FIRST,
    OUTSIDE,
    SECOND,
    Merge,
    Move,
    Removal,
    Split,
    clusters_after,
    follow,
    merge_weights,
    missed_split,
    origins,
    placed_by,
    remove_weights,
    split_weights,
)
from hcfl.tiers import Weights

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


def test_a_uniform_split_forgets_every_client_s_weights_and_halves_its_samples():
    assert_close(split_weights(WEIGHTS, 0, PARTS, "uniform"), torch.full((3, 3), 1 / 3))
    before = Weights(torch.tensor([[0.6, 0.4]]), torch.tensor([[0.8, 0.2], [0.0, 1.0]]))
    changes = [split(rule="uniform"), split(parent=1, child=3, rule="uniform")]
    for client in (0, 1, 7, None):
        after = follow(before, (0, 1), changes, client)
        assert_close(after.client, torch.full((1, 4), 0.25))
        assert_close(after.sample, torch.tensor([[0.4, 0.1, 0.4, 0.1], [0.0, 0.5, 0.0, 0.5]]))


def test_who_leaves_for_a_cluster_of_its_own_leaves_the_others_as_they_are():
    hard = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    parts = torch.tensor([OUTSIDE, SECOND, OUTSIDE])
    assert split_weights(hard, 0, parts, "alone").tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]


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
    weights = follow(Weights(torch.tensor([[0.6, 0.4]])), (0, 1), changes, client=5)
    # (.3, .4, .3) → without cluster 1: (.5, .5) → cluster 2 halved: (.5, .25, .25)
    assert reduce(clusters_after, changes, (0, 1)) == (0, 2, 3)
    assert_close(weights.client, torch.tensor([[0.5, 0.25, 0.25]]))


def test_hard_clients_follow_their_own_part():
    moved = split(first=(5,), second=(9,), rule="move")
    one = Weights(torch.tensor([[1.0, 0.0]]))
    for client, expected in ((5, [1.0, 0.0, 0.0]), (9, [0.0, 0.0, 1.0]), (6, [1.0, 0.0, 0.0]), (None, [1.0, 0.0, 0.0])):
        assert follow(one, (0, 1), [moved], client).client.tolist() == [expected]


def test_a_merge_adds_up_and_drops_the_column():
    weights = torch.tensor([[0.5, 0.2, 0.3], [0.0, 0.0, 1.0]])
    assert_close(merge_weights(weights, into=0, gone=2), torch.tensor([[0.8, 0.2], [1.0, 0.0]]))
    assert_close(merge_weights(weights, into=2, gone=0), torch.tensor([[0.2, 0.8], [0.0, 1.0]]))


def test_a_move_puts_all_weight_of_those_it_names_into_their_new_cluster():
    move = Move(1, clients=(5, 9), to=(7, 4))
    before = Weights(torch.tensor([[0.5, 0.2, 0.3]]), torch.full((2, 3), 1 / 3))
    after = follow(before, (4, 7, 8), [move], client=5)
    assert after.client.tolist() == [[0.0, 1.0, 0.0]]
    assert after.sample.tolist() == [[0.0, 1.0, 0.0]] * 2
    assert follow(before, (4, 7, 8), [move], client=6).client.tolist() == before.client.tolist()
    assert follow(before, (4, 7, 8), [move], client=None).client.tolist() == before.client.tolist()


def test_a_new_cluster_mixes_gaussians_like_its_parent_and_a_merged_one_like_both_together():
    components = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])
    changes = [split(parent=1, child=2), Merge(1, into=2, gone=0, distance=0.1, threshold=0.9)]
    after = follow(Weights(torch.tensor([[0.5, 0.5]]), components=components), (0, 1), changes, client=None)
    # π of clusters 2 and 0: .25·(.2, .8) + .5·(.9, .1) = (.5, .25)
    assert_close(after.components, torch.tensor([[[0.2, 0.8], [2 / 3, 1 / 3]]]))


def test_client_0_follows_its_own_part_like_everybody():
    moved = split(first=(5,), second=(0,), rule="move")
    assert follow(Weights(torch.tensor([[1.0, 0.0]])), (0, 1), [moved], client=0).client.tolist() == [[0.0, 0.0, 1.0]]


def test_placed_are_both_parts_of_a_split_and_whoever_moves():
    changes = [
        split(first=(0, 3), second=(1,)),
        Removal(2, 1),
        Move(3, clients=(6,), to=(0,)),
        Merge(4, 0, 2, 0.1, 0.9),
    ]
    assert placed_by(changes) == {0, 1, 3, 6}


def test_who_missed_the_split_of_its_cluster_has_missed_it_until_a_decision_names_it():
    own, ids = Weights(torch.tensor([[0.0, 1.0]])), (5, 8)
    missed = split(parent=8, child=9, first=(0,), second=(1,), rule="move")
    assert missed_split(own, ids, [missed], client=7)
    assert not missed_split(own, ids, [missed], client=1)
    assert not missed_split(own, ids, [split(parent=5, child=9, rule="move")], client=7), "not its cluster"
    elsewhere = split(parent=5, child=10, first=(2,), second=(3,), rule="move")
    assert missed_split(own, ids, [missed, elsewhere], client=7)
    assert not missed_split(own, ids, [missed, split(parent=8, child=10, second=(7,), rule="move")], client=7)
    assert not missed_split(own, ids, [missed, Move(2, clients=(7,), to=(9,))], client=7)
    assert missed_split(own, ids, [missed, Move(2, clients=(6,), to=(9,))], client=7)
    assert not missed_split(own, ids, [split(parent=8, child=9, rule="halve")], client=7), "soft weights follow by rule"
    alone = split(parent=8, child=10, first=(), second=(7,), rule="alone")
    assert not missed_split(own, ids, [missed, alone], client=7), "it was given a cluster of its own"
    assert not missed_split(own, ids, [alone], client=6), "its cluster is not split for the others"
    assert missed_split(own, ids, [missed, alone], client=6)


HISTORY = st.lists(st.tuples(st.sampled_from(["split", "remove", "merge", "move"]), st.integers(0, 10)), max_size=8)


@given(HISTORY, st.integers(0, 10**6))
def test_weights_stay_distributions_through_any_history(history, seed):
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(6, 3, generator=generator).softmax(dim=1)
    before = Weights(table[:1], table[1:], torch.rand(1, 3, 4, generator=generator).softmax(dim=2))
    clusters, born, changes = (0, 1, 2), 3, []
    for kind, choice in history:
        cluster = clusters[choice % len(clusters)]
        other = clusters[(choice + 1) % len(clusters)]
        if kind == "split":
            rule = ("halve", "lean", "one-hot", "uniform")[choice % 4]
            changes.append(split(parent=cluster, child=born, rule=rule))
            born += 1
        elif kind == "move":
            changes.append(Move(1, (0,), (cluster,)))
        elif len(clusters) > 1:
            changes.append(Removal(1, cluster) if kind == "remove" else Merge(1, other, cluster, 0.0, 1.0))
        else:
            continue
        clusters = clusters_after(clusters, changes[-1])
    after = follow(before, (0, 1, 2), changes, client=0)
    assert after.client.shape == (1, len(clusters))
    assert after.sample.shape == (5, len(clusters))
    assert after.components.shape == (1, len(clusters), 4)
    for rows in (after.client, after.sample, after.components[0]):
        assert_close(rows.sum(dim=1), torch.ones(len(rows)))


def test_columns_come_from_the_parent_or_from_what_took_them_in():
    split = Split(1, parent=4, child=7, first=(0,), second=(1,), rule="halve", maximum=1.0, mean=0.0, threshold=0.3)
    assert origins((3, 4), [split]) == [0, 1, 1]
    assert origins((3, 4), [split, Removal(2, 3)]) == [1, 1]
    assert origins((3, 4), [split, Merge(2, into=7, gone=3, distance=0.1, threshold=0.2)]) == [1, 1]
    assert origins((3, 4), []) == [0, 1]
