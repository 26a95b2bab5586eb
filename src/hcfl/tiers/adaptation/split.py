"""Splitting: HCFL+, CFL, ICFL."""

from dataclasses import dataclass, replace
from math import e, log
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, SoftRule, cluster_blocks
from hcfl.tiers.participants import Participants, Statistic


@dataclass(frozen=True)
class SplitAndRemove:
    """HCFL+: split the cluster with the largest distance between members, remove clusters without clients.

    A cluster splits when max(D_k) − mean(D_k) ≥ ρ, at most one a round. `scwu=False` is the paper's ablation of
    the halved weights. `uniform` is what the authors' public code does: after a split every client's ω̃ is uniform over
    all clusters, and only the weights of samples are halved.
    """

    rho: float
    scwu: bool = True
    uniform: bool = False
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = None
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.rho > 0:
            raise InputError(f"rho = {self.rho}: must be greater than 0")
        if self.uniform and not self.scwu:
            raise InputError("uniform = True: must be False with scwu = False, which makes members one-hot")

    @property
    def spreads_weights(self) -> bool:
        """Whether every client's ω̃ is uniform over all clusters after a split."""
        return self.uniform

    @property
    def rule(self) -> SoftRule:
        """What a split does to soft weights."""
        return "uniform" if self.uniform else "halve" if self.scwu else "one-hot"

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Mark empty clusters for removal, and split at most one cluster; removals are carried out after the split.

        Marked clusters existed in this round's E-step: a cluster that this split founds is not marked.
        """
        assert distance is not None
        empty = tuple(torch.nonzero(~occupied).flatten().tolist())
        blocks = cluster_blocks(participants, distance)
        if not blocks:
            return Decision(remove=empty)
        parent = max(blocks, key=lambda k: float(blocks[k].distance.max()))
        block = blocks[parent].distance
        maximum, mean = float(block.max()), float(block.mean())
        if maximum - mean < self.rho:
            return Decision(remove=empty)
        parts = complete_linkage_halves(block)
        split = blocks[parent].split(parts, self.rule, maximum=maximum, mean=mean, threshold=self.rho)
        return Decision((split,), empty)


@dataclass(frozen=True)
class SplitWhenStationary:
    """CFL: split a cluster that has converged as a whole while its clients still pull (Sattler et al., 2020).

    ‖mean Δ‖₂ < tol1 and max_i ‖Δ_i‖₂ > tol2 and more than two clients: complete linkage into two. The two switches
    reproduce errors of public code that published numbers contain: `max_coordinate` compares tol2 with the largest
    coordinate of an update instead of its norm; `lost_ids` takes positions in the cluster's sub-matrix for client ids,
    so that clients end in two clusters' averages, or in none (`hcfl.core.lost_ids`).
    """

    tol1: float = 0.4
    tol2: float = 1.6
    max_coordinate: bool = False
    lost_ids: bool = False
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = "whole updates"
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("tol1", "tol2"):
            if not (value := getattr(self, name)) > 0:
                raise InputError(f"{name} = {value}: must be greater than 0")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Look at every cluster by itself; several may split in a round."""
        assert distance is not None
        assert participants.whole_updates is not None
        splits = []
        for block in cluster_blocks(participants, distance).values():
            updates = participants.whole_updates[block.rows]
            together = float(torch.linalg.vector_norm(updates.mean(dim=0)))
            each = updates.abs().max() if self.max_coordinate else torch.linalg.vector_norm(updates, dim=1).max()
            if len(updates) > 2 and together < self.tol1 and float(each) > self.tol2:
                named, parts = block, complete_linkage_halves(block.distance)
                if self.lost_ids:
                    named = replace(block, clients=tuple(range(len(block.clients))))
                    parts = [bool(label) for label in complete_linkage(block.distance)]
                splits.append(named.split(parts, "one-hot", maximum=float(each), mean=together, threshold=self.tol2))
        return Decision(tuple(splits), lost_ids=self.lost_ids)


@dataclass(frozen=True)
class SplitBySpectrum:
    """ICFL: split a cluster whose updates stop pointing one way, ever more strictly (Yan et al., 2023).

    With A the similarity of a cluster's clients, α_G = σ₁(A)/n; it splits when α_G < α*(t), by 2-means on the two
    leading singular vectors. `from_start` makes α* start at `alpha0` instead of 0, where the authors' own runs start.
    """

    alpha0: float = 0.85
    epsilon1: float = 4.0
    from_start: bool = False
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = None
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.alpha0 < 1:
            raise InputError(f"alpha0 = {self.alpha0}: must lie between 0 and 1")
        if not self.epsilon1 > e:
            raise InputError(f"epsilon1 = {self.epsilon1}: must be greater than e = 2.718…")

    def threshold(self, round_: int) -> float:
        """α*(t) = 1 − (e/ε₁)^(t/ε₂) with ε₂ = ln(1−α*(0)) / (1 − ln ε₁); t counts from 0."""
        epsilon2 = log(1 - self.alpha0) / (1 - log(self.epsilon1))
        t = round_ - 1
        exponent = t + epsilon2 if self.from_start else t / epsilon2
        return float(1 - (e / self.epsilon1) ** exponent)

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Look at every cluster by itself; several may split in a round, a cluster of one never."""
        assert distance is not None
        threshold = self.threshold(participants.round)
        splits = []
        for block in cluster_blocks(participants, distance).values():
            vectors, values, _ = torch.linalg.svd(1 - block.distance)
            coherence = float(values[0]) / len(values)
            if coherence < threshold:
                parts = two_means_halves(vectors[:, :2])
                splits.append(
                    block.split(
                        parts,
                        "one-hot",
                        maximum=1 - coherence,
                        mean=float(block.distance.mean()),
                        threshold=1 - threshold,
                    )
                )
        return Decision(tuple(splits))


def complete_linkage_halves(distance: Tensor) -> list[bool]:
    """Cut clients in two non-empty parts by complete linkage; True marks the second part.

    The first part, which keeps the parent cluster, is the larger one (on equal sizes, the one with the first row):
    clients that are absent from the split follow the majority.
    """
    return smaller_part(complete_linkage(distance))


def complete_linkage(distance: Tensor) -> NDArray[np.int64]:
    """Label two non-empty parts by complete linkage, 0 and 1."""
    from sklearn.cluster import AgglomerativeClustering  # takes a second: not for clients

    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    labels: NDArray[np.int64] = linkage.fit_predict(distance.cpu().numpy())
    return labels


def two_means_halves(points: Tensor) -> list[bool]:
    """Cut clients in two non-empty parts by 2-means of their points; True marks the second, smaller part."""
    from sklearn.cluster import KMeans  # takes a second: not for clients

    labels = KMeans(n_clusters=2, n_init=10, random_state=0).fit_predict(points.cpu().double().numpy())
    return smaller_part(labels)


def smaller_part(labels: np.ndarray) -> list[bool]:
    """Mark the smaller of two parts, labelled 0 and 1; of two equal ones, the one without the first row."""
    ones = int(labels.sum())
    zeros = len(labels) - ones
    second = 1 if ones < zeros or (ones == zeros and labels[0] == 0) else 0
    return [bool(label == second) for label in labels]
