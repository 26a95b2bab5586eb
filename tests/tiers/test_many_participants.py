"""A sample of many participants decides, and the others join the parts that it found."""

import pytest
import torch

from hcfl.tiers import ConflictDistance, PrototypeDistance, SplitAndRemove, SplitOnContradiction
from hcfl.tiers.adaptation.decision import Decision
from hcfl.tiers.distance import measured, shared_classes, without_shared_class
from hcfl.tiers.many_participants import drawn, extended
from hcfl.tiers.participants import Participants, Prototypes


def planted(clients=600, classes=4, features=16, noise=0.1):
    """Clients of two concepts: the second one swaps the first two classes. Even clients have the first concept."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, features, generator=generator)
    swapped = centres[[1, 0, *range(2, classes)]]
    concept = torch.arange(clients) % 2
    means = torch.where(concept.view(-1, 1, 1) == 0, centres, swapped)
    means = means + noise * torch.randn(means.shape, generator=generator)
    prototypes = Prototypes(means, torch.ones(clients, classes), means.mean(dim=1))
    members = torch.zeros(clients, dtype=torch.long)
    return Participants(tuple(range(clients)), members, torch.ones(clients), prototypes, seed=3, round=2)


@pytest.mark.parametrize(
    ("adaptation", "distance"),
    [(SplitAndRemove(0.3), PrototypeDistance("CSCP")), (SplitOnContradiction(), ConflictDistance())],
)
def test_the_planted_groups_are_found_by_a_sample(adaptation, distance):
    everyone = planted()
    sample = drawn(everyone, many=200, sample=100)
    assert len(sample.clients) == 100
    decision = adaptation.decide(sample, measured(distance, sample), torch.tensor([True]))
    (split,) = extended(decision, distance, sample, everyone).splits
    assert sorted((*split.first, *split.second)) == list(range(600))
    assert len({client % 2 for client in split.first}) == 1
    assert len({client % 2 for client in split.second}) == 1


def test_participants_that_are_not_many_are_all_compared():
    everyone = planted(clients=20)
    assert drawn(everyone, many=20, sample=10) is everyone
    assert extended(Decision(), ConflictDistance(), everyone, everyone) == Decision()


def test_the_sample_comes_from_the_seed_and_the_round_and_keeps_rows_together():
    everyone = planted(clients=50)
    one, again = (drawn(everyone, many=20, sample=10) for _ in range(2))
    assert one.clients == again.clients == tuple(sorted(one.clients))
    assert torch.equal(one.prototypes.class_means, everyone.prototypes.class_means[list(one.clients)])


def test_pairs_without_a_shared_class_are_counted_by_patterns():
    counts = torch.tensor([[1, 0, 0], [0, 2, 0], [0, 1, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    prototypes = Prototypes(torch.zeros(6, 3, 2), counts.float(), torch.zeros(6, 2))
    pairs = [(i, j) for i in range(6) for j in range(i) if shared_classes(prototypes)[i, j] == 0]
    assert without_shared_class(prototypes) == len(pairs) / 15
