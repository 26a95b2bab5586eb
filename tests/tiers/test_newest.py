"""CLoVE, FLUX, FedGWC, CFL-GP and Auxo: the mathematics of their decisions, on hand-computed numbers."""

from math import exp, sqrt

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.tiers import (
    DensityOnce,
    GrowingCohorts,
    LossVectorGroups,
    Participants,
    SpectralPartition,
    SplitByInteractions,
)
from hcfl.tiers.adaptation.cohorts import compared_sides, followed, rewards
from hcfl.tiers.adaptation.density import bend, dense_groups, nearest
from hcfl.tiers.adaptation.interactions import best_partition, gaussian_rewards, perceived_affinity
from hcfl.tiers.adaptation.loss_vectors import matched
from hcfl.tiers.adaptation.partition import accumulated, profiles, same_names, sketched
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.descriptors import described_distance, descriptors, unlabelled
from hcfl.tiers.participants import probed


def seen(members, everyone=None, **more):
    members = torch.tensor(members)
    clients = tuple(range(len(members)))
    everyone = members if everyone is None else torch.tensor(everyone)
    return Participants(clients, members, torch.ones(len(members)), everyone=everyone, round=1, **more)


# CLoVE


def test_groups_get_the_models_that_cost_them_least_together():
    losses = torch.tensor([[1.0, 2.0], [1.1, 2.1], [1.2, 1.5], [1.3, 1.6]])
    # Both groups like model 0 best. (2.1 + 3.1) < (4.1 + 2.5), so the first group gets it.
    assert matched(losses, np.array([1, 1, 0, 0])).tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("clustering", ["k-means", "agglomerative"])
def test_losses_that_are_alike_put_clients_together_although_another_model_is_better_for_all(clustering):
    losses = torch.tensor([[1.0, 2.0], [1.2, 1.5], [1.1, 2.1], [1.3, 1.6]])
    decision = LossVectorGroups(clustering).decide(seen([0] * 4, reports={"losses": losses}), None, torch.ones(2))
    assert {(move.client, move.to, move.with_model) for move in decision.moves} == {(1, 1, False), (3, 1, False)}
    alike = LossVectorGroups(clustering).decide(seen([0, 1], reports={"losses": losses[[0, 0]]}), None, torch.ones(2))
    assert not alike.moves, "two equal clients are no two groups"


# FLUX


def test_descriptors_are_moments_of_all_samples_and_of_each_class():
    features = torch.tensor([[1.0], [3.0], [5.0], [2.0]])
    found = descriptors(features, torch.tensor([0, 0, 1, 1]), 3, Segments((3, 1)))
    assert found.shape == (2, 4, 3)
    assert_close(found[0], torch.tensor([[3.0, 3.0, sqrt(8 / 3)], [2.0, 2.0, 1.0], [1.0, 5.0, 0.0], [0.0, 0.0, 0.0]]))
    assert_close(found[1, :, 0], torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert_close(unlabelled(found), torch.tensor([[3.0, sqrt(8 / 3)], [2.0, 0.0]]))


def test_the_distance_of_descriptors_is_that_of_gaussians_in_all_samples_and_in_shared_classes():
    one = [[4.0, 0.0, 1.0], [2.0, 0.0, 1.0], [2.0, 0.0, 1.0]]
    two = [[4.0, 3.0, 1.0], [2.0, 3.0, 5.0], [2.0, 0.0, 4.0]]
    other = [[4.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    apart = described_distance(torch.tensor([one, two, other]))
    # W²(x) = 9; of the classes 3² + 4² = 25 and 3² = 9, which count the same: 17.
    assert_close(apart[0, 1], torch.tensor(sqrt(9 + 17)).double())
    assert apart[0, 2] == 0, "they share no class, and their inputs look the same"
    assert_close(apart, apart.T)


def test_density_groups_clients_within_the_bend_and_leaves_outliers_alone():
    places = torch.tensor([[0.0], [1.0], [2.0], [10.0], [11.1], [12.0], [40.0]])
    apart = torch.cdist(places, places)
    assert nearest(apart) == pytest.approx([1, 1, 1, 1.1, 0.9, 0.9, 28], abs=1e-5)
    assert bend(nearest(apart)) == pytest.approx(1.1, abs=1e-5)
    assert dense_groups(apart, 1.2).tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert len(set(dense_groups(torch.zeros(3, 3), 0.0).tolist())) == 1
    assert bend([2.0, 2.0]) == 2.0
    assert bend([float("inf")]) == 0.0


def test_flux_groups_in_its_round_only_and_remembers_what_needs_no_labels():
    features = torch.tensor([0.0, 2.0, 0.1, 2.1, 9.0, 11.0, 9.1, 11.1]).unsqueeze(1)
    sent = descriptors(features, torch.zeros(8, dtype=torch.long), 1, Segments((2,) * 4))
    assert DensityOnce().decide(seen([0] * 4), None, torch.ones(1)).memory is None
    decision = DensityOnce().decide(seen([0] * 4, reports={"descriptors": sent}), None, torch.ones(1))
    assert [(split.first, split.second) for split in decision.splits] == [((0, 1), (2, 3))]
    assert_close(decision.memory["unlabelled"][:, 0], torch.tensor([1.0, 1.1, 10.0, 10.1]))


# FedGWC


def test_rewards_are_gaussian_in_how_far_a_loss_is_from_the_others():
    losses = torch.tensor([[1.0, 2.0], [3.0, 2.0], [2.0, 2.0]])
    # First epoch: mean 2, variance 2/3; in the second all agree.
    far = (exp(-1 / (2 * 2 / 3)) + 1) / 2
    assert_close(gaussian_rewards(losses), torch.tensor([far, far, 1.0]))


def test_the_affinity_leaves_out_what_two_clients_say_of_themselves():
    rewards_ = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.2, 1.0], [0.0, 0.0, 1.0]])
    found = perceived_affinity(rewards_, torch.ones(3, 3), beta=2.0)
    assert_close(found[0, 1], torch.tensor(exp(-2 * 1.0)).double())  # the third client alone: (0 − 1)²
    assert_close(found[0, 2], torch.tensor(exp(-2 * 0.01)).double())  # the second alone: (0.1 − 0)²
    assert_close(found.diagonal(), torch.ones(3).double())


def test_a_partition_has_the_number_of_groups_that_there_are():
    group = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2])
    between = torch.tensor([[0.95, 0.02, 0.1], [0.02, 0.95, 0.05], [0.1, 0.05, 0.95]], dtype=torch.float64)
    affinity = between[group.unsqueeze(0), group.unsqueeze(1)].fill_diagonal_(1)  # alike, two could be as good as three
    labels = best_partition(affinity, 5, seed=0)
    assert len(set(labels)) == 3
    assert all(len(set(labels[group == each])) == 1 for each in range(3))
    assert best_partition(torch.eye(3).double(), 5, seed=0) is None, "too few for two groups of two"


def test_a_cluster_splits_when_its_rewards_have_settled():
    losses = torch.tensor([1.0, 1.01, 0.99, 1.0, 3.0, 3.01]).unsqueeze(1)
    rule, memory, splits = SplitByInteractions(), {}, []
    for _ in range(2):
        found = rule.decide(seen([0] * 6, reports={"training losses": losses}, memory=memory), None, torch.ones(1))
        memory, splits = found.memory, [*splits, *found.splits]
    assert [(split.first, split.second) for split in splits] == [((0, 1, 2, 3), (4, 5))]
    assert not memory["rewards"].any(), "after a split, rewards are relative to other clients"


# CFL-GP


def test_a_profile_is_the_mean_direction_of_each_model():
    one = accumulated(None, torch.tensor([1.0, 0.0]), 0)
    one = accumulated(one, torch.tensor([0.0, 1.0]), 0)
    assert_close(one, torch.tensor([[2.0, 0.5, 0.5]]))
    other = accumulated(accumulated(None, torch.tensor([0.5, -0.5]), 0), torch.tensor([3.0, 4.0]), 1)
    assert_close(profiles([one, other]), torch.tensor([[0.0, 0.5, 0.0, 0.0], [0.0, -0.5, 0.0, 0.0]]))


def test_groups_keep_the_names_of_the_clusters_that_most_of_them_come_from():
    assert same_names(np.array([0, 0, 1, 1, 2]), np.array([2, 2, 0, 1, 1]), 3).tolist() == [2, 2, 0, 0, 1]
    assert [probed(round_, 3, 2) for round_ in (1, 4, 7)] == [0, 1, 0]


def test_sketches_keep_inner_products_and_short_rows_stay():
    rows = torch.randn(3, 5000, generator=torch.Generator().manual_seed(0))
    short = sketched(rows, seed=1, dimensions=2000)
    assert short.shape == (3, 2000)
    assert_close(short @ short.T / 5000, rows @ rows.T / 5000, atol=0.1, rtol=0)
    assert sketched(rows, seed=1, dimensions=5000) is rows


def test_probes_of_opposite_directions_are_groups():
    probes = torch.tensor([[1.0, 0.1], [-1.0, 0.1], [0.9, 0.2], [-0.9, 0.2]])
    found = SpectralPartition(groups=2).decide(seen([0] * 4, reports={"probes": probes}), None, torch.ones(1))
    assert [(split.first, split.second) for split in found.splits] == [((0, 2), (1, 3))]
    assert sorted(found.memory) == ["0", "1", "2", "3"]
    swapped = seen([1, 0, 0, 1], reports={"probes": probes}, memory=found.memory)
    again = SpectralPartition(groups=2).decide(swapped, None, torch.ones(2))
    assert len(again.moves) == 2
    assert all(move.with_model for move in again.moves)


# Auxo


def test_sides_are_compared_by_clients_whose_side_is_known():
    updates = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0], [0.0, 1.0]]).double()
    # Known: clients 0 and 1 on one side, client 2 on the other; client 3 is new.
    found = compared_sides(updates, torch.tensor([2.0, 0.1, -1.0, 0.0]).double())
    assert_close(found, torch.tensor([0.4, 1.0, 2.0 + 1.6, 2.0]).double())


def test_a_cohort_s_direction_is_principal_and_moves_slowly():
    centred = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 0.5], [0.0, -0.5]]).double()
    first = followed(torch.zeros(2).double(), centred)
    assert_close(first, torch.tensor([1.0, 0.0]).double())
    assert_close(followed(first, centred), first)
    turned = followed(torch.tensor([0.6, 0.8]).double(), centred)
    assert 0.6 < turned[0] < 0.8
    assert_close(turned.square().sum(), torch.tensor(1.0).double())


def test_a_client_far_from_the_others_is_not_rewarded():
    updates = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]).double()
    found = rewards(updates)
    # d = 0, 0, 0 and 2; mean 0.5, deviation √0.75.
    assert_close(found, torch.tensor([1.0, 1.0, 1.0, 1 - 2 / (0.5 + sqrt(0.75))]).double())


def test_a_cohort_splits_once_both_sides_are_known_and_far_apart():
    draw, splits, memory = torch.Generator().manual_seed(0), [], {}
    rule, everyone = GrowingCohorts(), torch.zeros(40, dtype=torch.long)
    for round_ in range(40):
        clients = sorted(torch.randperm(40, generator=draw)[:5].tolist())
        side = torch.tensor([1.0 if client % 2 else -1.0 for client in clients])
        updates = torch.cat([side.unsqueeze(1), 0.5 * torch.randn(5, 6, generator=draw)], dim=1)
        present = Participants(
            tuple(clients),
            everyone[clients],
            torch.ones(5),
            whole_updates=updates,
            everyone=everyone,
            memory=memory,
            round=round_,
        )
        found = rule.decide(present, None, torch.ones(1))
        memory, splits = found.memory, list(found.splits)
        if splits:
            break
    assert 5 < round_ < 39, "one round of five clients decides nothing"
    (split,) = splits
    assert len({client % 2 for client in split.first}) == len({client % 2 for client in split.second}) == 1
    assert len(split.first) + len(split.second) > 25


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LossVectorGroups("spectral"), "clustering = 'spectral': must be k-means or agglomerative"),
        (lambda: DensityOnce(after=0), "after = 0: must be at least 1"),
        (lambda: DensityOnce(reach=0.0), "reach = 0.0: must be greater than 0"),
        (lambda: SplitByInteractions(epsilon=0.0), "epsilon = 0.0: must be greater than 0"),
        (lambda: SplitByInteractions(most=1), "most = 1: must be at least 2"),
        (lambda: SpectralPartition(groups=1), "groups = 1: must be at least 2"),
        (lambda: SpectralPartition(period=0), "period = 0: must be at least 1"),
        (lambda: GrowingCohorts(gain=2.0), "gain = 2.0: must be greater than 0 and less than 2"),
        (lambda: GrowingCohorts(smallest=0), "smallest = 0: must be at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
