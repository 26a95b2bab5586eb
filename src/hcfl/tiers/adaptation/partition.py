"""CFL-GP: accumulated gradients of a few models, partitioned by their leading singular directions."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad
from torch.nn.utils.rnn import pad_sequence

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, moves
from hcfl.tiers.adaptation.group import Labels, k_means, regroup
from hcfl.tiers.participants import Participants, Statistic, probed

SKETCH = 4096
"""Longer updates are remembered as random sketches of so many numbers, which keep inner products on average."""


@dataclass(frozen=True)
class SpectralPartition:
    """CFL-GP: group clients by what they did to the same models, summed up over rounds (Kim et al., 2024).

    In every `period`-th round, all participants show how one local epoch changes the model of one cluster; the clusters
    take turns. A client's profile is the mean of the directions of these changes, model by model. The groups are
    k-means of the profiles' leading singular coordinates, as many as groups; they are matched to the clusters that
    exist so that the fewest clients move. A moved client's trained model counts in its new cluster.
    """

    groups: int = 3
    period: int = 3
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "probes"
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise InputError(f"groups = {self.groups}: must be at least 2")
        if self.period < 1:
            raise InputError(f"period = {self.period}: must be at least 1")

    @property
    def asked_every(self) -> int:
        """The rounds between two probes."""
        return self.period

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Add the changes to the clients' profiles, and group all clients that have one."""
        probes = participants.reports.get("probes")
        if probes is None:
            return Decision()
        assert participants.everyone is not None
        column = probed(participants.round, self.period, len(occupied))
        directions = normalize(sketched(probes, participants.seed), dim=1)
        memory = {**participants.memory}
        for client, direction in zip(participants.clients, directions, strict=True):
            memory[str(client)] = accumulated(memory.get(str(client)), direction, column)
        known = sorted(map(int, memory))
        seen = replace(participants, clients=tuple(known), members=participants.everyone[known])
        points = leading_coordinates(profiles([memory[str(client)] for client in known]), self.groups)
        labels = k_means(points, self.groups, seed=rng.derive(participants.seed, "partition", participants.round))
        if labels is None:
            return Decision(memory=memory)
        if len(occupied) == 1 or participants.undecided:
            apart = torch.cdist(points, points)
            grouped = regroup(seen, labels, len(occupied), float(apart.max()), float(apart.mean()), 0.0)
            return replace(grouped, memory=memory)
        wanted = torch.from_numpy(same_names(labels, seen.members.numpy(), len(occupied)))
        everywhere = torch.ones(len(known), dtype=torch.bool)
        return Decision(moves=moves(seen, wanted, everywhere, with_model=True), memory=memory)


def sketched(rows: Tensor, seed: int, dimensions: int = SKETCH) -> Tensor:
    """Return rows (rows, dimensions) with nearly the same inner products, on the CPU; short rows stay as they are."""
    rows = rows.cpu()
    if rows.shape[1] <= dimensions:
        return rows
    generator = rng.torch_generator(seed, "sketch", rows.shape[1])
    place = torch.randint(dimensions, (rows.shape[1],), generator=generator)
    sign = torch.randint(2, (rows.shape[1],), generator=generator) * 2 - 1
    return rows.new_zeros(len(rows), dimensions).index_add_(1, place, rows * sign)


def accumulated(profile: Tensor | None, direction: Tensor, column: int) -> Tensor:
    """Add one direction to the mean of a model's; a profile is (models, 1 + dimensions), the number before the mean."""
    before = torch.zeros(0, 1 + len(direction)) if profile is None else profile
    after = pad(before, (0, 0, 0, max(0, column + 1 - len(before)))).clone()
    after[column, 0] += 1
    after[column, 1:] += (direction - after[column, 1:]) / after[column, 0]
    return after


def profiles(several: list[Tensor]) -> Tensor:
    """Put clients' profiles side by side, (clients, models·dimensions), each model's relative to the mean of clients.

    A client that has not shown what it does to a model is at the mean.
    """
    stacked = pad_sequence(several, batch_first=True)
    known, means = stacked[:, :, :1] > 0, stacked[:, :, 1:]
    centre = (means * known).sum(dim=0) / known.sum(dim=0).clamp_min(1)
    return ((means - centre) * known).flatten(1)


def leading_coordinates(rows: Tensor, number: int) -> Tensor:
    """Return the rows' coordinates on their leading singular directions, (rows, number)."""
    vectors, values, _ = torch.linalg.svd(rows.double(), full_matrices=False)
    coordinates: Tensor = vectors[:, :number] * values[:number]
    return coordinates


def same_names(labels: Labels, before: Labels, clusters: int) -> Labels:
    """Rename groups so that the fewest clients change: return each client's cluster, (clients,)."""
    from scipy.optimize import linear_sum_assignment

    overlap = np.zeros((int(labels.max()) + 1, clusters))
    np.add.at(overlap, (labels, before), 1)
    names: Labels = linear_sum_assignment(overlap, maximize=True)[1]
    return names[labels]
