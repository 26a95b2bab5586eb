"""Tier 3, adaptation: when and how the number of clusters changes (spec §4)."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from hcfl.tiers.distance import Participants


@dataclass(frozen=True)
class SplitDecision:
    """Cut one cluster in two. Parts hold client ids; the first part keeps the cluster, the second founds a new one."""

    parent: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    halve: bool
    """Soft weights: halve them between the two ("SCWU"), or make the members one-hot at their part."""
    maximum: float
    mean: float
    threshold: float


@dataclass(frozen=True)
class Decision:
    """What changes after a round; clusters are columns as they stand before the change."""

    split: SplitDecision | None = None
    remove: tuple[int, ...] = ()


class Adaptation(Protocol):
    """A rule that looks at a round's participants and decides how the clusters change."""

    @property
    def adaptive(self) -> bool:
        """Whether it can change the number of clusters, and so needs a distance."""
        ...

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Decide from D (participants, participants) and from which clusters are some client's own (clusters,)."""
        ...


@dataclass(frozen=True)
class Fixed:
    """K never changes."""

    adaptive: bool = False

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Change nothing."""
        return Decision()


@dataclass(frozen=True)
class SplitAndRemove:
    """HCFL+: split the cluster whose members differ most, remove the clusters that are nobody's.

    A cluster splits when max(D_k) − mean(D_k) ≥ ρ, at most one a round. `scwu=False` is the paper's ablation of
    the halved weights.
    """

    rho: float
    scwu: bool = True
    adaptive: bool = True

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Apply steps 1 and 2 of spec §4; the marks of step 1 are carried out last (step 5).

        What is marked has existed through this round's E-step, because a cluster founded now is not looked at.
        """
        assert distance is not None
        empty = tuple(torch.nonzero(~occupied).flatten().tolist())
        return Decision(split=self._split(participants, distance), remove=empty)

    def _split(self, participants: Participants, distance: Tensor) -> SplitDecision | None:
        members = {k: torch.nonzero(participants.members == k).flatten() for k in set(participants.members.tolist())}
        blocks = {k: distance[rows][:, rows] for k, rows in members.items() if len(rows) > 1}
        if not blocks:
            return None
        parent = max(blocks, key=lambda k: float(blocks[k].max()))
        block = blocks[parent]
        maximum, mean = float(block.max()), float(block.mean())
        if maximum - mean < self.rho:
            return None
        in_second = complete_linkage_halves(block)
        clients = [participants.clients[row] for row in members[parent].tolist()]
        return SplitDecision(
            parent=parent,
            first=tuple(c for c, second in zip(clients, in_second, strict=True) if not second),
            second=tuple(c for c, second in zip(clients, in_second, strict=True) if second),
            halve=self.scwu,
            maximum=maximum,
            mean=mean,
            threshold=self.rho,
        )


def complete_linkage_halves(distance: Tensor) -> list[bool]:
    """Cut clients in two non-empty parts by complete linkage; True marks the second part.

    The first part, which keeps the parent cluster, is the larger one (on equal sizes, the one with the first row):
    clients that are absent from the split follow the majority.
    """
    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    labels: np.ndarray = linkage.fit_predict(distance.cpu().numpy())
    ones = int(labels.sum())
    zeros = len(labels) - ones
    second = 1 if ones < zeros or (ones == zeros and labels[0] == 0) else 0
    return [bool(label == second) for label in labels]
