"""Tier 4 on hand-computed numbers."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.tiers import (
    FeatureNormDistance,
    ParameterDistance,
    Participants,
    PrincipalAngles,
    PrototypeDistance,
    Prototypes,
    Signs,
    UpdateCosine,
)
from hcfl.tiers.client_segments import Segments
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
    found = prototypes(features, torch.tensor([2, 2, 0]), classes=3, segments=Segments((3,)))
    assert found.class_counts.tolist() == [[1.0, 0.0, 2.0]]
    assert found.class_means[0, 0].tolist() == [0.0, 8.0]
    assert found.class_means[0, 2].tolist() == [2.0, 1.0]
    assert_close(found.mean, torch.tensor([[4 / 3, 10 / 3]]))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 10**6))
def test_prototypes_of_a_group_are_those_of_each_client_alone(sizes, classes, seed):
    generator, segments = torch.Generator().manual_seed(seed), Segments(tuple(sizes))
    features = torch.randn(segments.samples, 3, generator=generator)
    labels = torch.randint(classes, (segments.samples,), generator=generator)
    together = prototypes(features, labels, classes, segments)
    for i, (rows, own) in enumerate(zip(segments.split(features), segments.split(labels), strict=True)):
        alone = prototypes(rows, own, classes, Segments((len(rows),)))
        assert_close(together.class_means[i], alone.class_means[0])
        assert_close(together.class_counts[i], alone.class_counts[0])
        assert_close(together.mean[i], rows.mean(dim=0))
        for label in own.unique():
            assert_close(together.class_means[i, label], rows[own == label].mean(dim=0))


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


def test_nearly_zero_means_are_near_each_other_beside_the_constant():
    means = torch.tensor([[0.1, 0.0], [-0.1, 0.0], [2.0, 0.0]])
    seen = Prototypes(means.unsqueeze(1), torch.ones(3, 1), means)
    some = {"clients": (0, 1, 2), "members": torch.zeros(3), "weights": torch.ones(3), "prototypes": seen}
    alone, beside = (PrototypeDistance("ASCP").between(Participants(**some, constant=one)) for one in (False, True))
    assert_close(alone[0], torch.tensor([0.0, 2.0, 0.0]))  # opposite directions of nearly nothing
    assert_close(beside[0, 1], torch.tensor(1 - 0.99 / 1.01))
    assert_close(beside[0, 2], torch.tensor(1 - 1.2 / math.sqrt(1.01 * 5)))


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


def test_parameter_distance_is_euclidean():
    models = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    found = ParameterDistance().between(participants(models=models))
    assert_close(found, torch.tensor([[0, 5, 1], [5, 0, 18**0.5], [1, 18**0.5, 0]]))
    weighted = ParameterDistance(weighted=True).between(participants((0.5, 0.5, 1.0), models=models))
    assert_close(weighted[0, 1], torch.tensor(1.25))


def test_parameter_distance_sees_small_differences_of_large_models():
    models = torch.full((3, 1000), 1000.0)
    models[1, 0] += 0.5
    assert_close(ParameterDistance().between(participants(models=models))[0], torch.tensor([0.0, 0.5, 0.0]))


def test_feature_norms_are_compared_by_class_relative_to_the_client_s_own_mean():
    # Client 1 is client 0 at twice the scale; client 2 lacks class 0 and its class 1 is relatively short.
    norms = Prototypes(
        class_means=torch.tensor([[[2.0], [4.0]], [[4.0], [8.0]], [[99.0], [1.0]]]),
        class_counts=torch.tensor([[1.0, 1.0], [5.0, 5.0], [0.0, 3.0]]),
        mean=torch.tensor([[2.5], [5.0], [2.0]]),
    )
    found = FeatureNormDistance().between(participants(prototypes=norms))
    assert_close(found, torch.tensor([[0.0, 0.0, 1.1], [0.0, 0.0, 1.1], [1.1, 1.1, 0.0]]))
    third = Prototypes(norms.class_means, torch.ones(3, 2), norms.mean)
    # Profiles (.8, 1.6) and (49.5, .5): differences 48.7 and 1.1
    assert_close(FeatureNormDistance().between(participants(prototypes=third))[0, 2], torch.tensor(48.7))
    mean = FeatureNormDistance(over_classes="mean").between(participants(prototypes=third))
    assert_close(mean[0, 2], torch.tensor((48.7 + 1.1) / 2))


def test_the_mean_difference_of_feature_norms_is_over_shared_classes_only():
    # Profiles (.8, 1.6) and (rubbish, .5): class 1 is all they share.
    norms = Prototypes(
        class_means=torch.tensor([[[2.0], [4.0]], [[2.0], [4.0]], [[99.0], [1.0]]]),
        class_counts=torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 3.0]]),
        mean=torch.tensor([[2.5], [2.5], [2.0]]),
    )
    assert_close(FeatureNormDistance("mean").between(participants(prototypes=norms))[0, 2], torch.tensor(1.1))


def test_what_whole_updates_say_is_not_what_updates_say():
    seen = participants(updates=torch.eye(3), whole_updates=torch.ones(3, 2), signatures=-torch.eye(3)[:, :2])
    assert_close(UpdateCosine(of="whole updates").between(seen), torch.zeros(3, 3), atol=1e-6, rtol=0)
    assert_close(UpdateCosine(of="updates").between(seen), 1 - torch.eye(3))


def test_distances_that_are_not_hcfl_plus_s_or_of_updates_are_unweighted_unless_asked():
    norms = Prototypes(torch.tensor([[[1.0]], [[3.0]], [[1.0]]]), torch.ones(3, 1), torch.ones(3, 1))
    evidence = {"prototypes": norms, "models": torch.eye(3), "signatures": plane(0, 30, 90)}
    for distance in (FeatureNormDistance, ParameterDistance, PrincipalAngles):
        plain, halved = (distance().between(participants((w,) * 3, **evidence)) for w in (1.0, 0.5))
        assert_close(halved, plain)
        assert_close(distance(weighted=True).between(participants((0.5,) * 3, **evidence)), plain / 4)


def test_clients_that_share_no_class_have_feature_norm_distance_0():
    counts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    norms = Prototypes(torch.rand(3, 2, 1) + 1, counts, torch.ones(3, 1))
    assert FeatureNormDistance().between(participants(prototypes=norms))[0, 1] == 0


def plane(*angles) -> torch.Tensor:
    """Orthonormal bases of lines in the plane (x, y), beside the axis z that all share."""
    lines = [[[math.cos(a), 0.0], [math.sin(a), 0.0], [0.0, 1.0]] for a in map(math.radians, angles)]
    return torch.tensor(lines)


@pytest.mark.parametrize(("angle", "expected"), [("smallest", 0.0), ("mean", 15.0), ("sum", 30.0)])
def test_principal_angles_by_hand(angle, expected):
    found = PrincipalAngles(2, angle).between(participants(signatures=plane(0, 30, 120)))
    assert_close(found[0, 1], torch.tensor(expected), atol=1e-2, rtol=0)
    assert_close(found, found.T)
    assert found.diagonal().tolist() == [0.0] * 3
    right = {"smallest": 0.0, "mean": 45.0, "sum": 90.0}[angle]
    assert_close(found[1, 2], torch.tensor(right), atol=1e-2, rtol=0)


def test_principal_angles_do_not_depend_on_the_basis():
    basis = plane(20)[0]
    turned = basis @ torch.tensor([[HALF, HALF], [-HALF, HALF]])
    found = PrincipalAngles(2).between(participants(signatures=torch.stack([basis, turned, -basis])))
    assert_close(found, torch.zeros(3, 3), atol=0.05, rtol=0)


def test_a_signature_spans_where_the_data_lie():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(50, 2, generator=generator) @ torch.tensor([[5.0, 0, 0, 0], [0, 0, 2.0, 0]])
    distance = PrincipalAngles(2)
    assert isinstance(distance, Signs)
    basis = distance.signature(inputs.view(50, 2, 2), torch.zeros(50))
    assert_close(basis.T @ basis, torch.eye(2))
    assert_close(basis.abs()[[1, 3]], torch.zeros(2, 2), atol=1e-5, rtol=0)
    one = distance.signature(inputs[:1].view(1, 2, 2), torch.zeros(1))
    assert one.shape == (4, 2)
    assert one[:, 1].tolist() == [0.0] * 4, "a client of one sample has one direction"


def test_data_of_low_rank_are_compared_in_the_directions_they_have():
    distance, generator = PrincipalAngles(3), torch.Generator().manual_seed(0)
    sample = torch.randn(1, 5, generator=generator)
    copies = [distance.signature(sample.repeat(n, 1), torch.zeros(n)) for n in (1, 4, 7)]
    found = distance.between(participants(signatures=torch.stack(copies)))
    assert_close(found, torch.zeros(3, 3), atol=0.1, rtol=0)
    many = PrincipalAngles(10)
    planes = [many.signature(torch.randn(20, 2, generator=generator), torch.zeros(20)) for _ in range(3)]
    assert_close(many.between(participants(signatures=torch.stack(planes))), torch.zeros(3, 3), atol=0.1, rtol=0)
    wide = torch.stack([torch.eye(3), torch.diag(torch.tensor([1.0, 0, 0])), torch.zeros(3, 3)])
    apart = PrincipalAngles(3, "sum").between(participants(signatures=wide))
    assert_close(apart[0, 1], torch.tensor(0.0), msg="a line in space is at no angle to space")
    assert_close(apart[1, 2], torch.tensor(90.0), msg="no data at all are at a right angle")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: UpdateCosine(of="gradients"),
            "of = 'gradients': must be updates, whole updates, first updates or models",
        ),
        (lambda: FeatureNormDistance("median"), "over_classes = 'median': must be max or mean"),
        (lambda: PrincipalAngles(0), "directions = 0: must be at least 1"),
        (lambda: PrincipalAngles(2, "largest"), "angle = 'largest': must be smallest, mean or sum"),
    ],
)
def test_settings_are_checked(make, words):
    with pytest.raises(InputError, match=words):
        make()
