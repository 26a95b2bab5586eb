"""Grouping: all clients are clustered at once, where splitting goes step by step.

Dealing one cluster's clients into n groups is n − 1 splits: all but the largest group leave it, one after another.
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, MoveDecision, SplitDecision, moves
from hcfl.tiers.participants import Participants, Statistic

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class HierarchicalOnce:
    """FL+HC and PACFL: cut a hierarchical clustering of all clients at a distance, once (Briggs et al., 2020).

    A client that was absent then joins the cluster with the nearest members on average when it comes; if all clusters
    are farther than the threshold, it founds a new one.
    """

    threshold: float
    after: int = 1
    """The round after which clients are grouped; if no group forms, the following rounds try again."""
    linkage: Literal["average", "complete", "single"] = "average"
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = None
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise InputError(f"threshold = {self.threshold}: must be greater than 0")
        if self.after < 1:
            raise InputError(f"after = {self.after}: must be at least 1")
        if self.linkage not in ("average", "complete", "single"):
            raise InputError(f"linkage = {self.linkage!r}: must be average, complete or single")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Group once, then place the clients that were absent."""
        assert distance is not None
        numbers = (float(distance.max()), float(distance.mean()), self.threshold)
        if len(occupied) == 1 or participants.undecided:
            enough = participants.round >= self.after and len(distance) > 1
            return regroup(participants, self._cut(distance), len(occupied), *numbers) if enough else Decision()
        settled, nearest, apart = nearest_clusters(participants, distance)
        far = ~settled & (apart > self.threshold)
        return Decision(
            splits=self._found(participants, distance, settled, far, *numbers),
            moves=moves(participants, nearest, ~settled & ~far),
        )

    def _cut(self, distance: Tensor) -> Labels:
        from sklearn.cluster import AgglomerativeClustering  # takes a second: not for clients

        linkage = AgglomerativeClustering(
            n_clusters=None, distance_threshold=self.threshold, metric="precomputed", linkage=self.linkage
        )
        labels: Labels = linkage.fit_predict(distance.cpu().double().numpy())
        return labels

    def _found(
        self, participants: Participants, distance: Tensor, settled: Tensor, far: Tensor, *numbers: float
    ) -> tuple[SplitDecision, ...]:
        """Let clients that are far from every cluster found their own, together where they are near each other."""
        rows = torch.nonzero(far).flatten().tolist()
        if not rows:
            return ()
        labels = self._cut(distance[rows][:, rows]) if len(rows) > 1 else np.zeros(1, dtype=np.int64)
        splits = []
        for label in sorted(set(labels.tolist())):
            mine = [row for row, own in zip(rows, labels.tolist(), strict=True) if own == label]
            parent = int(participants.members[mine[0]])
            stay = torch.nonzero(settled & (participants.members == parent)).flatten().tolist()
            first, second = (tuple(participants.clients[row] for row in part) for part in (stay, mine))
            splits.append(SplitDecision(parent, first, second, "one-hot", *numbers))
        return tuple(splits)


@dataclass(frozen=True)
class DecomposedCosineGroups:
    """FedGroup: a fixed number of groups by the decomposed cosine of updates (Duan et al., 2021).

    With V the leading right singular vectors of the updates, as many as groups, a client is the row of cosines of its
    update with them; k-means on these rows makes the groups. A client that comes later joins the group whose mean
    update has the largest cosine with its own.
    """

    groups: int = 3
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "first updates"
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_two(self.groups)

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Group as soon as there are enough clients, then place the clients that were absent."""
        assert participants.signatures is not None
        updates = participants.signatures
        if len(occupied) > 1 and not participants.undecided:
            settled, nearest, _ = nearest_clusters(participants, _distance_to_group_means(participants, updates))
            return Decision(moves=moves(participants, nearest, ~settled))
        profile = decomposed_cosine(updates, self.groups)
        if (labels := k_means(profile, self.groups)) is None:
            return Decision()
        apart = torch.cdist(profile, profile)
        return regroup(participants, labels, len(occupied), float(apart.max()), float(apart.mean()), 0.0)


@dataclass(frozen=True)
class KMeansOnce:
    """FeSEM's start: k-means of the clients' trained parameters, once (Long et al., 2023).

    All train from one shared model first, so all centres begin equal. From then on the weighting assigns clients to
    clusters: with hard weights by parameters, a client that comes later joins the centre nearest to what it trained.
    """

    groups: int = 3
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "models"
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_two(self.groups)

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Group as soon as there are enough clients, then leave the rest to the weighting."""
        assert participants.models is not None
        models = participants.models
        if len(occupied) > 1:
            return Decision()
        seed = rng.derive(participants.seed, "k-means", participants.round)
        if (labels := k_means(models, self.groups, seed=seed)) is None:
            return Decision()
        apart = torch.cdist(models, models)
        return Decision(group(participants, labels, float(apart.max()), float(apart.mean()), 0.0))


@dataclass(frozen=True)
class WeightedKMeans:
    """WeCFL: k-means of the clients' trained models, weighted by their sizes, in every round (Ma et al., 2022).

    In the first round all start from one model, so it is their updates that are clustered.
    """

    groups: int = 3
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "models"
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _at_least_two(self.groups)

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Found the groups, or move clients to where k-means, started from the present clusters, puts them."""
        assert participants.models is not None
        assert participants.sizes is not None
        models = participants.models
        if len(occupied) == 1:
            labels = k_means(models, self.groups, participants.sizes)
            if labels is None:
                return Decision()
            apart = torch.cdist(models, models)
            return Decision(group(participants, labels, float(apart.max()), float(apart.mean()), 0.0))
        present = sorted(set(participants.members.tolist()))
        inside = torch.stack([participants.members == cluster for cluster in present]).to(models)
        mass = inside * participants.sizes.to(models)
        centres = mass @ models / mass.sum(dim=1, keepdim=True)
        labels = k_means(models, len(present), participants.sizes, centres)
        if labels is None:
            return Decision()
        wanted = torch.tensor([present[label] for label in labels])
        moving = torch.ones(len(wanted), dtype=torch.bool)
        return Decision(moves=moves(participants, wanted, moving, with_model=True))


def _at_least_two(groups: int) -> None:
    if groups < 2:
        raise InputError(f"groups = {groups}: must be at least 2")


def decomposed_cosine(updates: Tensor, directions: int) -> Tensor:
    """Cosines of each client's update with the leading singular directions of all, (clients, directions)."""
    _, _, axes = torch.linalg.svd(updates.double(), full_matrices=False)
    cosines: Tensor = normalize(updates.double(), dim=1) @ axes[:directions].T
    return cosines


def k_means(
    points: Tensor, groups: int, sizes: Tensor | None = None, centres: Tensor | None = None, seed: int = 0
) -> Labels | None:
    """Label points (points, features) by k-means, weighted by `sizes` (points,); None with too few distinct points.

    Without `centres` (groups, features) to start from, the best of ten random starts counts.
    """
    from sklearn.cluster import KMeans  # takes a second: not for clients
    from sklearn.exceptions import ConvergenceWarning

    rows = points.cpu().double().numpy()
    if groups < 2 or len(np.unique(rows, axis=0)) < groups:
        return None
    if centres is None:
        model = KMeans(groups, n_init=10, random_state=seed % 2**32)  # the largest that it takes
    else:
        model = KMeans(groups, init=centres.cpu().double().numpy(), n_init=1, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        labels: Labels = model.fit_predict(rows, sample_weight=None if sizes is None else sizes.double().numpy())
    return labels


def group(
    participants: Participants, labels: Labels, maximum: float, mean: float, threshold: float
) -> tuple[SplitDecision, ...]:
    """Cut one cluster into labelled groups; the largest keeps it (on equal sizes, the one with the first client)."""
    sizes = {label: int((labels == label).sum()) for label in labels.tolist()}
    left = list(zip(participants.clients, labels.tolist(), strict=True))
    splits = []
    for leaving in reversed(sorted(sizes, key=lambda label: sizes[label], reverse=True)[1:]):
        second = tuple(client for client, label in left if label == leaving)
        left = [(client, label) for client, label in left if label != leaving]
        first = tuple(client for client, _ in left)
        parent = int(participants.members[0])
        splits.append(SplitDecision(parent, first, second, "one-hot", maximum, mean, threshold))
    return tuple(splits)


def regroup(
    participants: Participants, labels: Labels, clusters: int, maximum: float, mean: float, threshold: float
) -> Decision:
    """Deal all participants into labelled groups: from one cluster, or from clusters that the user gave.

    Of given clusters, each becomes the group that it shares most clients with; further groups are founded, and clusters
    may stay without clients.
    """
    if clusters == 1:
        return Decision(group(participants, labels, maximum, mean, threshold))
    from scipy.optimize import linear_sum_assignment  # takes a while to import: not for clients

    shared = np.zeros((int(labels.max()) + 1, clusters), dtype=np.int64)
    np.add.at(shared, (labels, participants.members.numpy()), 1)
    column_of = dict(zip(*(found.tolist() for found in linear_sum_assignment(shared, maximize=True)), strict=True))
    new = [label for label in range(len(shared)) if label not in column_of and (labels == label).any()]
    parents = {label: int(shared[label].argmax()) for label in new}
    placed = {**column_of, **parents}
    clients = list(zip(participants.clients, labels.tolist(), strict=True))
    stay = {column: [one for one, label in clients if column_of.get(label) == column] for column in parents.values()}
    return Decision(
        splits=tuple(
            SplitDecision(
                parents[label],
                tuple(stay[parents[label]]),
                tuple(client for client, own in clients if own == label),
                "one-hot",
                maximum,
                mean,
                threshold,
            )
            for label in new
        ),
        moves=tuple(MoveDecision(client, placed[label], with_model=True) for client, label in clients),
    )


def nearest_clusters(participants: Participants, distance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return which participants are settled, each one's nearest cluster, and the distance to it; each (participants,).

    A client is settled when a decision has placed it. The nearest cluster has the settled members with the smallest
    mean distance. If no client is settled, all stay in their clusters.
    """
    assert participants.unplaced is not None
    settled = ~participants.unplaced
    clusters = sorted(set(participants.members[settled].tolist()))
    if not clusters:
        return torch.ones_like(settled), participants.members, torch.zeros(len(settled))
    inside = torch.stack([settled & (participants.members == cluster) for cluster in clusters]).double()
    average = distance.cpu().double() @ inside.T / inside.sum(dim=1)
    return settled, torch.tensor(clusters)[average.argmin(dim=1)], average.amin(dim=1)


def _distance_to_group_means(participants: Participants, updates: Tensor) -> Tensor:
    """1 − cos of each client's update with the mean update of every other client's group, as a matrix over clients."""
    assert participants.unplaced is not None
    same = participants.members[:, None] == participants.members[None, :]
    mates = (same & ~participants.unplaced).to(updates)
    means = mates @ updates / mates.sum(dim=1, keepdim=True).clamp_min(1)
    return 1 - normalize(updates, dim=1) @ normalize(means, dim=1).T
