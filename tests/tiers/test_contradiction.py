"""HCFL++: conflicts of prototypes, groups that contradict each other, and what is split, merged or moved for it."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.core.cluster_log import FIRST, LEAN, OUTSIDE, SECOND, split_weights
from hcfl.errors import InputError
from hcfl.tiers import ConflictDistance, Decision, Participants, Prototypes, SplitOnContradiction
from hcfl.tiers.adaptation import principal_halves
from hcfl.tiers.conflict import Directions, contradictions, dissents

ROTATED = {0: [0, 1, 2, 3, 4], 1: [1, 2, 0, 3, 4], 2: [2, 0, 1, 3, 4]}
"""What each of three concepts calls the five things that there are."""


def directions(units, held=None) -> Directions:
    units = torch.tensor(units)
    return Directions(units, torch.ones(units.shape[:2], dtype=torch.bool) if held is None else torch.tensor(held))


def federation(concepts, seed=0, noise=0.0, cameras=0.0, held=None, members=None, features=32) -> Participants:
    """Clients whose prototypes are the things that they name, moved by noise and by a camera of each client's own."""
    generator = torch.Generator().manual_seed(seed)
    clients, classes = len(concepts), 5
    things = torch.randn(classes, features, generator=generator)
    means = torch.stack([torch.stack([things[ROTATED[k].index(c)] for c in range(classes)]) for k in concepts])
    means = means + cameras * torch.randn(clients, 1, features, generator=generator)
    means = means + noise * torch.randn(clients, classes, features, generator=generator)
    counts = torch.full((clients, classes), 10) if held is None else 10 * torch.tensor(held)
    prototypes = Prototypes(means, counts, means.mean(dim=1))
    own = torch.tensor(members or [0] * clients)
    return Participants(tuple(3 * i + 1 for i in range(clients)), own, torch.ones(clients), prototypes)


def decide(seen: Participants, rho: float = 0.4):
    clusters = int(seen.members.max()) + 1
    distance = ConflictDistance().between(seen)
    return SplitOnContradiction(rho).decide(seen, distance, torch.ones(clusters, dtype=torch.bool))


def test_a_conflict_is_how_much_nearer_another_class_is_than_the_same():
    mine = directions([[[1.0, 0.0], [0.0, 1.0]]])
    theirs = directions([[[0.6, 0.8], [0.8, 0.6]]])
    # My class 0: cosine .6 with theirs, .8 with their class 1. My class 1: .6 and .8.
    assert_close(mine.conflicts(theirs), torch.tensor([[[0.2, 0.2]]]))
    assert_close(mine.conflicts(mine), torch.tensor([[[-1.0, -1.0]]]))


def test_classes_that_one_of_both_does_not_hold_say_nothing():
    mine = directions([[[1.0, 0.0], [0.0, 1.0]]], [[True, False]])
    theirs = directions([[[0.0, 1.0], [1.0, 0.0]]])
    assert mine.conflicts(theirs).tolist() == [[[1.0, -torch.inf]]]
    # They hold nothing else that my class 0 could be.
    assert theirs.conflicts(mine).tolist() == [[[-torch.inf, -torch.inf]]]


def test_the_distance_sums_conflicts_of_both_views_and_agreement_counts_nothing():
    # Centred, clients 0 and 2 are [±1, 0]; client 1 has swapped them: each class conflicts by 1 − (−1) = 2.
    means = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]], [[-1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [-1.0, 0.0]]])
    prototypes = Prototypes(means, torch.ones(3, 2), means.mean(dim=1))
    seen = Participants((0, 1, 2), torch.zeros(3, dtype=torch.long), torch.ones(3), prototypes)
    assert_close(ConflictDistance().between(seen), torch.tensor([[0.0, 4.0, 0.0], [4.0, 0.0, 4.0], [0.0, 4.0, 0.0]]))


def test_many_clients_are_compared_in_parts_that_fit_memory(monkeypatch):
    seen = federation([0, 1, 2] * 5, noise=0.5)
    whole = ConflictDistance().between(seen)
    monkeypatch.setattr("hcfl.tiers.conflict.CHUNK", 15 * 25 * 2)
    assert_close(ConflictDistance().between(seen), whole)


@given(st.integers(0, 10**6), st.floats(0, 1))
def test_distances_are_symmetric_not_negative_and_zero_to_oneself(seed, noise):
    distance = ConflictDistance().between(federation([0, 1, 1, 2, 0], seed, noise, cameras=noise))
    assert_close(distance, distance.T)
    assert (distance >= 0).all()
    assert (distance.diagonal() == 0).all()


def test_another_camera_is_no_conflict_another_meaning_is():
    cameras = ConflictDistance().between(federation([0] * 6, cameras=0.5))
    assert cameras.max() == 0
    concepts = ConflictDistance().between(federation([0, 0, 0, 1, 1, 1]))
    assert concepts[:3, 3:].min() > 1
    assert concepts[:3, :3].max() == concepts[3:, 3:].max() == 0


def test_what_all_features_have_in_common_does_not_count():
    seen = federation([0, 0, 1, 1, 2], noise=0.3)
    moved = Prototypes(seen.prototypes.class_means + 5, seen.prototypes.class_counts, seen.prototypes.mean + 5)
    distance = ConflictDistance().between(replace(seen, prototypes=moved))
    assert_close(distance, ConflictDistance().between(seen), atol=1e-4, rtol=1e-4)


def test_groups_contradict_by_the_second_largest_conflict_that_both_see():
    # The groups agree about class 2; A calls 0 what B calls 1, and the other way round.
    one, two, three = torch.eye(3)
    a, b = torch.stack([one, two, three]), torch.stack([two, one, three])
    seen = Directions(torch.stack([a, a, b, b]), torch.ones(4, 3, dtype=torch.bool))
    groups = torch.tensor([[True, True, False, False], [False, False, True, True]])
    assert_close(contradictions(seen, groups), torch.tensor([[-1.0, 1.0], [1.0, -1.0]]))
    # One class alone that looks like another is no relabelling.
    half = Directions(torch.stack([a, a, *[torch.stack([two, two, three])] * 2]), seen.held)
    # What A sees: 0, 0, −1; what B sees: 1, −1, −1. The smaller ones are 0, −1, −1.
    assert contradictions(half, groups)[0, 1] == -1


def test_a_single_client_is_no_group():
    seen = Directions.of(federation([0, 0, 1]).prototypes)
    assert contradictions(seen, torch.tensor([[True, True, False], [False, False, True]]))[0, 1] == -torch.inf


def test_one_client_of_a_group_can_speak_for_a_class():
    held = [[True] * 5, [False, False, True, True, True], [True] * 5, [False, False, True, True, True]]
    seen = Directions.of(federation([0, 0, 1, 1], held=held).prototypes)
    assert contradictions(seen, torch.tensor([[True, True, False, False], [False, False, True, True]]))[0, 1] > 0.5


def test_who_dissents_is_compared_with_the_others_of_each_group():
    one, two, three = torch.eye(3)
    a, b = torch.stack([one, two, three]), torch.stack([two, one, three])
    seen = Directions(torch.stack([a, a, b, b, b]), torch.ones(5, 3, dtype=torch.bool))
    groups = torch.tensor([[True, True, True, False, False], [False, False, False, True, True]])
    # Classes 0 and 1 conflict by 1 − 0 each, seen from both sides. Client 0's own group without it is a + b: cosines
    # √½ with either name, so neither is nearer; client 2's without it is twice a.
    expected = torch.tensor([[0.0, 2.0], [0.0, 2.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    expected[3:, 0] = 2 * (2 / 5**0.5 - 1 / 5**0.5)  # a + a + b
    assert_close(dissents(seen, groups), expected)


def test_nobody_dissents_about_a_class_that_none_of_the_others_hold():
    # Client 0's class 0 looks like client 1's class 1, but only client 0 has a class 0.
    seen = directions([[[0.6, 0.8], [0.0, 1.0]], [[0.0, 0.0], [0.0, 1.0]]], [[True, True], [False, True]])
    assert dissents(seen, torch.tensor([[True, True]])).tolist() == [[0.0], [0.0]]


@given(st.integers(0, 10**6))
def test_dissent_from_another_client_is_the_distance(seed):
    seen = federation([0, 1, 2, 0], seed, noise=0.5, held=[[True] * 5, [True, False, True, True, False]] * 2)
    found = dissents(Directions.of(seen.prototypes), torch.eye(4, dtype=torch.bool))
    assert_close(found, ConflictDistance().between(seen))


def test_dissent_is_found_in_parts_that_fit_memory(monkeypatch):
    seen, groups = Directions.of(federation([0, 1, 2] * 5, noise=0.5).prototypes), torch.eye(3).bool().repeat(1, 5)
    whole = dissents(seen, groups)
    monkeypatch.setattr("hcfl.tiers.conflict.CHUNK", 3 * 5 * 32 * 4)
    assert_close(dissents(seen, groups), whole)


def test_a_client_that_is_left_alone_joins_the_cluster_that_it_agrees_with():
    # Clients 0 and 4 are alone; client 0 is of the first concept, nobody is of client 4's.
    seen = federation([0, 0, 0, 0, 2, 1, 1, 1], noise=0.1, members=[2, 0, 0, 0, 3, 1, 1, 1])
    (move,) = decide(seen).moves
    assert (move.client, move.to) == (seen.clients[0], 0)
    absent = torch.tensor([2, 0, 0, 0, 3, 1, 1, 1, 2])
    assert decide(replace(seen, everyone=absent)).moves == ()
    # Two that are alone and agree would change places.
    assert decide(federation([2, 2, 1, 1, 1], members=[0, 1, 2, 2, 2])).moves == ()
    # With one shared class nothing can be said.
    held = [[True, False, False, False, False], *[[True] * 5] * 7]
    seen = federation([0, 0, 0, 0, 2, 1, 1, 1], held=held, members=[2, 0, 0, 0, 3, 1, 1, 1])
    assert decide(seen).moves == ()


def test_halves_are_cut_by_the_principal_coordinate():
    distance = torch.tensor([[0.0, 1.0, 0.1, 1.0, 0.1], [1.0, 0.0, 1.0, 0.1, 1.0], [0.1, 1.0, 0.0, 1.0, 0.1]])
    distance = torch.cat([distance, distance[1:2], distance[:1]])
    distance = (distance + distance.T).fill_diagonal_(0)
    assert principal_halves(distance) == [False, True, False, True, False]


def test_one_outlier_is_not_split_off():
    # The paper's rule peels it off: its distance is the largest there is.
    assert decide(federation([0] * 9 + [1])).splits == ()


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_planted_groups_are_found_one_split_after_another(noise):
    concepts = [0, 1, 2] * 6
    seen = federation(concepts, noise=noise, cameras=0.3)
    (first,) = decide(seen).splits
    assert first.rule == "lean"
    members = [int(client in first.second) for client in seen.clients]
    (second,) = decide(federation(concepts, noise=noise, cameras=0.3, members=members)).splits
    whole = [first.second if second.parent == 0 else first.first, second.first, second.second]
    found = sorted(sorted(concepts[seen.clients.index(client)] for client in part) for part in whole)
    assert found == [[0] * 6, [1] * 6, [2] * 6]
    settled = federation(concepts, noise=noise, cameras=0.3, members=concepts)
    assert decide(settled) == Decision()


def test_clusters_that_do_not_contradict_each_other_merge_into_the_larger():
    concepts = [0, 0, 0, 0, 0, 1, 1, 1, 1]
    decision = decide(federation(concepts, members=[0, 0, 1, 1, 1, 2, 2, 2, 2]))
    assert decision.splits == ()
    (merge,) = decision.merges
    assert (merge.into, merge.gone, merge.threshold) == (1, 0, 0.2)
    assert merge.distance < 0


def test_clusters_without_two_classes_in_common_stay_apart():
    held = [[True, True, False, False, False]] * 3 + [[False, True, True, True, False]] * 3
    assert decide(federation([0] * 6, held=held, members=[0, 0, 0, 1, 1, 1])).merges == ()


def test_who_contradicts_its_cluster_moves_to_the_one_it_agrees_with():
    concepts = [0, 1, 2] * 6
    members = list(concepts)
    members[4], members[9] = 2, 1
    seen = federation(concepts, noise=0.3, cameras=0.3, members=members)
    decision = decide(seen)
    assert decision.splits == decision.merges == ()
    assert [(move.client, move.to) for move in decision.moves] == [(seen.clients[4], 1), (seen.clients[9], 0)]


def test_who_shares_no_disputed_class_stays():
    concepts, held = [0, 1, 2] * 6, [[True] * 5] * 17 + [[False, False, False, True, True]]
    members = [*concepts[:17], 0]
    assert decide(federation(concepts, noise=0.3, held=held, members=members)) == Decision()


def test_what_is_nobody_s_is_removed():
    seen = federation([0] * 4)
    distance = ConflictDistance().between(seen)
    assert SplitOnContradiction().decide(seen, distance, torch.tensor([True, False])).remove == (1,)


def test_rho_must_be_positive():
    with pytest.raises(InputError, match=r"rho = 0: must be greater than 0"):
        SplitOnContradiction(0)


def test_members_lean_to_their_part_and_others_are_halved():
    weights = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5]])
    after = split_weights(weights, 1, torch.tensor([FIRST, SECOND, OUTSIDE]), "lean")
    most, least = 0.5 * LEAN, 0.5 * (1 - LEAN)
    assert_close(after, torch.tensor([[0.5, most, least], [0.5, least, most], [0.5, 0.25, 0.25]]))
