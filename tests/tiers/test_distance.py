"""Tier 4 on hand-computed numbers (spec §4)."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.tiers import Participants, PrototypeDistance, Prototypes, UpdateCosine
from hcfl.tiers.distance import class_distance, cosine_distance, mean_feature_distance, prototypes, without_shared_class

HALF = math.sqrt(0.5)

# Three clients, two classes, two features. Client 2 lacks class 0; its row there is rubbish on purpose.
THREE = Prototypes(
    class_means=torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[1.0, 1.0], [0.0, 1.0]], [[-9.0, 5.0], [3.0, 0.0]]]),
    class_counts=torch.tensor([[4.0, 1.0], [2.0, 3.0], [0.0, 7.0]]),
    mean=torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
)


def participants(weights=(1.0, 1.0, 1.0), **evidence) -> Participants:
    return Participants(clients=(4, 7, 9), members=torch.tensor([0, 0, 0]), weights=torch.tensor(weights), **evidence)


def test_prototypes_are_means_with_counts():
    features = torch.tensor([[1.0, 0.0], [3.0, 2.0], [0.0, 8.0]])
    found = prototypes(features, torch.tensor([2, 2, 0]), classes=3)
    assert found.class_counts.tolist() == [1.0, 0.0, 2.0]
    assert found.class_means[0].tolist() == [0.0, 8.0]
    assert found.class_means[2].tolist() == [2.0, 1.0]
    assert_close(found.mean, torch.tensor([4 / 3, 10 / 3]))


def test_class_distance_is_the_largest_over_shared_classes():
    # 0-1: class 0 is 45° apart, class 1 is the same direction. 0-2 and 1-2 share class 1 only: 90° apart.
    expected = torch.tensor([[0.0, 1 - HALF, 1.0], [1 - HALF, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert_close(class_distance(THREE), expected)


def test_class_distance_can_be_the_mean_over_shared_classes():
    expected = torch.tensor([[0.0, (1 - HALF) / 2, 1.0], [(1 - HALF) / 2, 0.0, 1.0], [1.0, 1.0, 0.0]])
    assert_close(class_distance(THREE, "mean"), expected)


@pytest.mark.parametrize("over_classes", ["max", "mean"])
def test_clients_that_share_no_class_are_at_distance_zero(over_classes):
    apart = Prototypes(torch.randn(2, 2, 3), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.randn(2, 3))
    assert class_distance(apart, over_classes)[0, 1] == 0
    assert without_shared_class(apart) == 1.0


def test_share_of_pairs_without_a_shared_class():
    counts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert without_shared_class(Prototypes(torch.ones(3, 2, 2), counts, torch.ones(3, 2))) == pytest.approx(1 / 3)


def test_mean_feature_distance():
    expected = torch.tensor([[0.0, 1 - HALF, 1.0], [1 - HALF, 0.0, 1 - HALF], [1.0, 1 - HALF, 0.0]])
    assert_close(mean_feature_distance(THREE), expected)


def test_cscp_looks_at_classes_only_and_ascp_at_any_shift():
    # Same class means, different mean features: a label or feature shift that CSCP must not see.
    same = Prototypes(torch.ones(2, 1, 2), torch.ones(2, 1), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    both = Participants((0, 1), torch.tensor([0, 0]), torch.ones(2), same)
    assert PrototypeDistance("CSCP").between(both)[0, 1].item() == pytest.approx(0, abs=1e-6)
    assert PrototypeDistance("ASCP").between(both)[0, 1].item() == pytest.approx(1)
    assert_close(PrototypeDistance("ASCP").between(participants(prototypes=THREE))[0, 2], torch.tensor(1.0))


def test_distances_are_weighed_by_both_clients_weights():
    seen = participants(weights=(0.5, 0.8, 1.0), prototypes=THREE)
    weighted = PrototypeDistance("CSCP").between(seen)
    assert_close(weighted[0, 1], torch.tensor((1 - HALF) * 0.4))
    assert_close(weighted[1, 2], torch.tensor(0.8))
    assert_close(PrototypeDistance("CSCP", weighted=False).between(seen), class_distance(THREE))


def test_update_cosine():
    updates = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]])
    distance = UpdateCosine(weighted=False).between(participants(updates=updates))
    assert_close(distance, torch.tensor([[0.0, 2.0, 1.0], [2.0, 0.0, 1.0], [1.0, 1.0, 0.0]]))


@given(st.integers(2, 7), st.integers(1, 5), st.integers(0, 10**6), st.sampled_from(["ASCP", "CSCP"]))
def test_distances_are_symmetric_and_zero_on_the_diagonal(clients, classes, seed, principle):
    generator = torch.Generator().manual_seed(seed)
    drawn = Prototypes(
        torch.randn(clients, classes, 4, generator=generator),
        torch.randint(0, 3, (clients, classes), generator=generator).float(),
        torch.randn(clients, 4, generator=generator),
    )
    seen = Participants(tuple(range(clients)), torch.zeros(clients), torch.rand(clients, generator=generator), drawn)
    distance = PrototypeDistance(principle).between(seen)
    assert_close(distance, distance.T)
    assert (distance.diagonal() == 0).all()
    assert (distance >= 0).all()


def test_update_cosine_is_weighed_too():
    updates = torch.tensor([[1.0, 0.0], [-2.0, 0.0], [0.0, 3.0]])
    distance = UpdateCosine().between(participants(weights=(0.5, 0.8, 1.0), updates=updates))
    assert_close(distance, torch.tensor([[0.0, 0.8, 0.5], [0.8, 0.0, 0.8], [0.5, 0.8, 0.0]]))


def test_over_classes_reaches_the_class_distance():
    found = PrototypeDistance("CSCP", over_classes="mean").between(participants(prototypes=THREE))
    assert_close(found, class_distance(THREE, "mean"))


def test_rounding_never_makes_a_distance_negative():
    rows = torch.randn(200, 7, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    assert (cosine_distance(rows) >= 0).all()
