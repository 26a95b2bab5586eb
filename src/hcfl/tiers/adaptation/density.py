"""FLUX: density clustering of descriptors of clients' data, once."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision
from hcfl.tiers.adaptation.group import Labels, regroup
from hcfl.tiers.descriptors import described_distance, unlabelled
from hcfl.tiers.participants import Participants, Statistic

TINY = 1e-12
"""The smallest radius: clients with equal descriptors are always near each other."""


@dataclass(frozen=True)
class DensityOnce:
    """FLUX: group clients once by density, by descriptors of P(x) and P(y|x) (Fenoglio et al., 2025).

    All clients train one model until round `after`, and then describe their data by the moments of its features. Groups
    are those of DBSCAN with at least two clients each; how near is near is where the sorted distances to the nearest
    neighbour bend, times `reach`. A client that is near no other founds a cluster of its own. The part of the
    descriptors that needs no labels stays with the server: it assigns new clients without labels.
    """

    after: int = 3
    reach: float = 1.5
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "descriptors"
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.after < 1:
            raise InputError(f"after = {self.after}: must be at least 1")
        if not self.reach > 0:
            raise InputError(f"reach = {self.reach}: must be greater than 0")

    @property
    def asked_once(self) -> int:
        """The round in which clients describe their data."""
        return self.after

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Group the clients that describe their data."""
        described = participants.reports.get("descriptors")
        if described is None:
            return Decision()
        memory = {"clients": torch.tensor(participants.clients), "unlabelled": unlabelled(described)}
        apart = described_distance(described)
        radius = self.reach * bend(nearest(apart))
        labels = dense_groups(apart, radius)
        numbers = float(apart.max()), float(apart.mean()), radius
        return replace(regroup(participants, labels, len(occupied), *numbers), memory=memory)


def nearest(distance: Tensor) -> list[float]:
    """Return each client's distance to its nearest neighbour, from (clients, clients)."""
    return (distance + torch.diag(torch.full((len(distance),), torch.inf))).amin(dim=1).tolist()


def bend(values: list[float]) -> float:
    """Return the value where the sorted values bend most: farthest below the line from the least to the largest.

    Only the larger half can be the bend: those beyond it are outliers, and outliers are few.

    >>> bend([1.0, 9.0, 1.2, 1.1])
    1.2
    """
    rising = np.sort(np.asarray(values))
    if np.isinf(rising[-1]):  # one client has no neighbour
        return 0.0
    span = rising[-1] - rising[0]
    if not span > 0:
        return float(rising[-1])
    below = np.linspace(0, 1, len(rising)) - (rising - rising[0]) / span
    half = len(rising) // 2
    return float(rising[half + below[half:].argmax()])


def dense_groups(distance: Tensor, radius: float) -> Labels:
    """Label clients by DBSCAN with groups of at least two, (clients,); one that is in no group gets its own label."""
    from sklearn.cluster import DBSCAN  # takes a second: not for clients

    labels: Labels = DBSCAN(eps=max(radius, TINY), min_samples=2, metric="precomputed").fit_predict(distance.numpy())
    alone = labels < 0
    labels[alone] = labels.max() + 1 + np.arange(alone.sum())
    return labels
