"""Tier 4, distance: how far apart two clients are (spec §4).

All distances are over this round's participants, whose evidence comes from the same parameters.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hcfl.errors import InputError


@dataclass(frozen=True)
class Prototypes:
    """Mean features of a client's training data; with a leading axis, of several clients."""

    class_means: Tensor
    """P_c, (…, classes, features); rows of classes without samples mean nothing."""
    class_counts: Tensor
    """(…, classes): how many samples each class mean stands on; 0 masks the class."""
    mean: Tensor
    """P_lf, (…, features): over all samples, whatever their label."""


@dataclass(frozen=True)
class Participants:
    """What tiers 3 and 4 may look at after aggregation; rows are this round's participants."""

    clients: tuple[int, ...]
    """Client ids: decisions name these, never positions in a sub-matrix."""
    members: Tensor
    """(participants,): the cluster (column) each one belongs to."""
    weights: Tensor
    """(participants,): ω̃ of each one for its own cluster."""
    prototypes: Prototypes | None = None
    updates: Tensor | None = None
    """(participants, parameters): how local training changed the parameters that are each one's own cluster's: the
    head, or the whole model where every cluster has one."""
    whole_updates: Tensor | None = None
    """(participants, parameters): the same with the extractor, also where it is shared."""
    round: int = 0


Evidence = Literal["prototypes", "updates", "whole updates"]
"""What tiers 3 and 4 can ask for."""


class Distance(Protocol):
    """A symmetric distance between participants."""

    @property
    def needs(self) -> Evidence:
        """Which evidence it looks at."""
        ...

    def between(self, participants: Participants) -> Tensor:
        """Return D as (participants, participants).

        D_k is the block of the members of k. Nobody belongs to two clusters, so one matrix holds every D_k.
        """
        ...


def prototypes(features: Tensor, labels: Tensor, classes: int) -> Prototypes:
    """Per-class mean features P_c with their counts, and the mean feature P_lf, of one client."""
    counts = torch.bincount(labels, minlength=classes).to(features.dtype)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return Prototypes(sums / counts.clamp_min(1).unsqueeze(1), counts, features.mean(dim=0))


def cosine_distance(rows: Tensor) -> Tensor:
    """1 − cos between all pairs of rows; exactly 0 between a row and itself."""
    unit = normalize(rows, dim=1)
    return (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0)


def class_distance(prototypes: Prototypes, over_classes: Literal["max", "mean"] = "max") -> Tensor:
    """d_c(i,j): the largest (or mean) cosine distance over the classes that both clients hold; 0 if they share none.

    Missing classes are masked by count, never by a zero vector.
    """
    held = prototypes.class_counts > 0
    total = prototypes.class_means.new_zeros(len(held), len(held))
    for label in range(held.shape[1]):
        shared = held[:, label, None] & held[None, :, label]
        distance = cosine_distance(prototypes.class_means[:, label]) * shared
        total = torch.maximum(total, distance) if over_classes == "max" else total + distance
    return total if over_classes == "max" else total / shared_classes(prototypes).clamp_min(1)


def shared_classes(prototypes: Prototypes) -> Tensor:
    """Return how many classes each pair of clients both hold, (clients, clients)."""
    held = (prototypes.class_counts > 0).to(prototypes.class_means)
    return held @ held.T


def without_shared_class(prototypes: Prototypes) -> float:
    """Return the share of client pairs that hold no class in common, for whom d_c says nothing."""
    clients = len(prototypes.class_counts)
    if clients < 2:
        return 0.0
    pairs = torch.triu(shared_classes(prototypes) == 0, diagonal=1)
    return float(pairs.sum()) / (clients * (clients - 1) / 2)


def mean_feature_distance(prototypes: Prototypes) -> Tensor:
    """d_lf(i,j) = 1 − cos(P_lf,i, P_lf,j)."""
    return cosine_distance(prototypes.mean)


def _weigh(distance: Tensor, participants: Participants, weighted: bool) -> Tensor:
    """Multiply by ω̃_ik·ω̃_jk, which stands for the likelihood term of eq. D_k."""
    return distance * torch.outer(participants.weights, participants.weights) if weighted else distance


@dataclass(frozen=True)
class PrototypeDistance:
    """The distance of HCFL+.

    ASCP (any shift separates): D_k = max(d_c, d_lf)·ω̃_ik·ω̃_jk. CSCP (only concept shift): D_k = d_c·ω̃_ik·ω̃_jk.
    `weighted` and `over_classes` are the paper's ablations ② and ③.
    """

    principle: Literal["ASCP", "CSCP"]
    weighted: bool = True
    over_classes: Literal["max", "mean"] = "max"
    needs: Evidence = "prototypes"

    def __post_init__(self) -> None:
        if self.principle not in ("ASCP", "CSCP"):
            raise InputError(f"principle = {self.principle!r}: must be ASCP or CSCP")
        if self.over_classes not in ("max", "mean"):
            raise InputError(f"over_classes = {self.over_classes!r}: must be max or mean")

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' prototypes."""
        assert participants.prototypes is not None
        distance = class_distance(participants.prototypes, self.over_classes)
        if self.principle == "ASCP":
            distance = torch.maximum(distance, mean_feature_distance(participants.prototypes))
        return _weigh(distance, participants, self.weighted)


@dataclass(frozen=True)
class UpdateCosine:
    """1 − cos of local updates: CFL, ICFL, StoCFL; with the head's update only, the paper's ablation ① of HCFL+."""

    weighted: bool = True
    of: Literal["updates", "whole updates"] = "updates"

    @property
    def needs(self) -> Evidence:
        """The updates of the client's own cluster, or of everything that it trains."""
        return self.of

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' updates."""
        updates = participants.updates if self.of == "updates" else participants.whole_updates
        assert updates is not None
        return _weigh(cosine_distance(updates), participants, self.weighted)
