"""Merging on hand-computed numbers (StoCFL)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.tiers import MergeSimilar, Participants, UpdateCosine
from hcfl.tiers.adaptation.merge import cosine_of_means, inner_products
from hcfl.tiers.distance import cosine_distance


def seen(members, representations=None) -> Participants:
    signatures = None if representations is None else torch.tensor(representations)
    number = len(members)
    clients = tuple(range(10, 10 + number))
    return Participants(clients, torch.tensor(members), torch.ones(number), signatures=signatures)


def decide(tau, members, representations):
    participants = seen(members, representations)
    distance = UpdateCosine(weighted=False, of="first updates").between(participants)
    return MergeSimilar(tau).decide(participants, distance, torch.ones(max(members) + 1, dtype=torch.bool))


def test_the_cosine_of_means_weighs_representations_by_their_length():
    # Cluster 0 holds (1, 0) and (0, 3): its mean points along (1, 3); cluster 1 along (0, 1).
    participants = seen([0, 0, 1], [[1.0, 0.0], [0.0, 3.0], [0.0, 2.0]])
    inner = inner_products(participants, cosine_distance(participants.signatures))
    assert_close(inner, participants.signatures.double() @ participants.signatures.double().T)
    summed = torch.tensor([[1.0, 1, 0], [0, 0, 1.0]], dtype=torch.double)
    cosine = cosine_of_means(summed @ inner @ summed.T)
    assert float(cosine[0, 1]) == pytest.approx(3 / math.sqrt(10))
    assert float(cosine[0, 0]) == -math.inf


def test_without_representations_of_its_own_a_distance_counts_everybody_alike():
    distance = torch.tensor([[0.0, 0.25], [0.25, 0.0]])
    assert_close(inner_products(seen([0, 1]), distance), torch.tensor([[1.0, 0.75], [0.75, 1.0]]).double())


def test_only_pairs_above_tau_merge_and_the_older_cluster_stays():
    # cos = .8 between clusters 0 and 2, 0 to cluster 5.
    representations = [[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]]
    (merge,) = decide(0.7, [0, 2, 5], representations).merges
    assert (merge.into, merge.gone) == (0, 2)
    assert merge.distance == pytest.approx(0.2)
    assert merge.threshold == pytest.approx(0.3)
    assert decide(0.85, [0, 2, 5], representations).merges == ()


def test_the_largest_merges_first_and_its_mean_decides_what_follows():
    # Angles 0°, 40°, 85°: cos 40° = .77 and cos 45° = .71. The first two merge; their mean stands at 20°, 65° from the
    # third, cos 65° = .42: at τ = .6 it stays alone, although it was near enough to the second by itself.
    representations = [[math.cos(math.radians(a)), math.sin(math.radians(a))] for a in (0, 40, 85)]
    assert [(m.into, m.gone) for m in decide(0.6, [0, 1, 2], representations).merges] == [(0, 1)]
    assert [(m.into, m.gone) for m in decide(0.4, [0, 1, 2], representations).merges] == [(0, 1), (0, 2)]


def test_a_cosine_of_exactly_tau_is_not_above_it():
    assert decide(0.0, [0, 1], [[1.0, 0.0], [0.0, 1.0]]).merges == ()


def test_a_representation_without_length_is_similar_to_nobody():
    assert decide(0.1, [0, 1, 2], [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).merges == ()


def test_clients_of_one_cluster_are_one_representation():
    assert decide(0.9, [3, 3], [[1.0, 0.0], [0.0, 1.0]]).merges == ()


@given(st.integers(2, 9), st.floats(-0.5, 0.9), st.integers(0, 10**6))
def test_afterwards_no_two_clusters_are_more_similar_than_tau(clients, tau, seed):
    generator = torch.Generator().manual_seed(seed)
    representations = torch.randn(clients, 4, generator=generator)
    merges = decide(tau, list(range(clients)), representations.tolist()).merges
    owner = list(range(clients))
    for merge in merges:
        assert merge.into < merge.gone
        owner = [merge.into if cluster == merge.gone else cluster for cluster in owner]
    clusters = sorted(set(owner))
    means = torch.stack([representations[[o == c for o in owner]].mean(dim=0) for c in clusters])
    cosine = 1 - cosine_distance(means)
    assert float(cosine.fill_diagonal_(-1).max()) <= tau + 1e-4
