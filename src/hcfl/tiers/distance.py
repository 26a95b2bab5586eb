"""Tier 4, distance: how far apart two clients are; D_k is the distance of HCFL+.

A distance compares this round's participants, because their statistics come from the same parameters. Signatures come
from a client's data or from the initial model, so they can be compared across rounds, and the server keeps them.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hcfl.errors import InputError
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.conflict import Directions, summed_conflicts
from hcfl.tiers.participants import Participants, Prototypes, Statistic


class Distance(Protocol):
    """A symmetric distance between participants."""

    @property
    def needs(self) -> Statistic:
        """Which statistic clients must send for it."""
        ...

    def between(self, participants: Participants) -> Tensor:
        """Return D as (participants, participants).

        D_k is the block of the members of cluster k. A client belongs to one cluster, so one matrix holds every D_k.
        """
        ...


@runtime_checkable
class Signs(Protocol):
    """A distance with its own signatures: a client computes one from its data when it first takes part."""

    def signature(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return one client's signature, a tensor, from its inputs (samples, …) and labels (samples,)."""
        ...


def prototypes(features: Tensor, labels: Tensor, classes: int, segments: Segments) -> Prototypes:
    """Return each client's class means P_c with their counts, and its mean feature P_lf.

    From features (samples, features), labels (samples,) and the clients' segments.
    """
    sums, counts = segments.sums_by_class(features, labels, classes)
    return Prototypes(
        class_means=sums / counts.clamp_min(1).unsqueeze(2),
        class_counts=counts,
        mean=sums.sum(dim=1) / counts.sum(dim=1, keepdim=True),
    )


def half_prototypes(features: Tensor, labels: Tensor, classes: int, segments: Segments) -> Prototypes:
    """Return the prototypes of the first half of each client's samples of each class, in the order of its data.

    With an odd number of samples, the first half is the larger one.
    """
    run = segments.index * classes + labels.cpu()
    order, numbers = torch.argsort(run, stable=True), torch.bincount(run)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - (numbers.cumsum(dim=0) - numbers)[run[order]]
    first = 2 * place < numbers[run]
    kept = torch.nonzero(first).flatten()
    sizes = torch.bincount(segments.index[kept], minlength=len(segments))
    return prototypes(features[kept.to(features.device)], labels[kept], classes, Segments(tuple(sizes.tolist())))


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
    """Return the share of client pairs that share no class, so that d_c of the pair is 0 without any comparison."""
    clients = len(prototypes.class_counts)
    if clients < 2:
        return 0.0
    held, times = torch.unique(prototypes.class_counts > 0, dim=0, return_counts=True)  # many clients, fewer patterns
    patterns = held.to(prototypes.class_means)
    pairs = 0
    for some, number in zip(torch.split(patterns, ROWS), torch.split(times, ROWS), strict=True):
        pairs += int((number.unsqueeze(1) * times)[some @ patterns.T == 0].sum())
    empty = int(times[~held.any(dim=1)].sum())  # a client without any class is no pair with itself
    return (pairs - empty) / 2 / (clients * (clients - 1) / 2)


ROWS = 2048
"""How many rows of pairs are looked at at a time."""


def mean_feature_distance(prototypes: Prototypes) -> Tensor:
    """d_lf(i,j) = 1 − cos(P_lf,i, P_lf,j)."""
    return cosine_distance(prototypes.mean)


def _weigh(distance: Tensor, participants: Participants, weighted: bool) -> Tensor:
    """Multiply by ω̃_ik·ω̃_jk, which takes the place of the likelihood term in D_k."""
    return distance * torch.outer(participants.weights, participants.weights) if weighted else distance


def _check_over_classes(over_classes: str) -> None:
    if over_classes not in ("max", "mean"):
        raise InputError(f"over_classes = {over_classes!r}: must be max or mean")


@dataclass(frozen=True)
class PrototypeDistance:
    """The distance of HCFL+.

    ASCP (any shift separates): D_k = max(d_c, d_lf)·ω̃_ik·ω̃_jk. CSCP (only concept shift): D_k = d_c·ω̃_ik·ω̃_jk.
    `weighted` and `over_classes` are the paper's ablations ② and ③.
    """

    principle: Literal["ASCP", "CSCP"]
    weighted: bool = True
    over_classes: Literal["max", "mean"] = "max"
    needs: ClassVar[Statistic] = "prototypes"

    def __post_init__(self) -> None:
        if self.principle not in ("ASCP", "CSCP"):
            raise InputError(f"principle = {self.principle!r}: must be ASCP or CSCP")
        _check_over_classes(self.over_classes)

    @property
    def compares_classes_only(self) -> bool:
        """Whether mean features do not enter: only with CSCP."""
        return self.principle == "CSCP"

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' prototypes."""
        assert participants.prototypes is not None
        compared = participants.prototypes.with_constant() if participants.constant else participants.prototypes
        distance = class_distance(compared, self.over_classes)
        if self.principle == "ASCP":
            distance = torch.maximum(distance, mean_feature_distance(compared))
        return _weigh(distance, participants, self.weighted)


@dataclass(frozen=True)
class ConflictDistance:
    """The distance of HCFL++: how much two clients contradict each other, summed over classes; 0 if they do not."""

    needs: ClassVar[Statistic] = "prototypes"
    compares_classes_only: ClassVar[bool] = True

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' prototypes."""
        assert participants.prototypes is not None
        return summed_conflicts(Directions.of(participants.prototypes))


@dataclass(frozen=True)
class FeatureNormDistance:
    """Differences between the norms of clients' features, class by class (Wei & Huang, 2023).

    A client's norm profile is the mean ‖z‖ of each class over its mean ‖z‖ of all samples, so that overall scale does
    not count; D is the largest (or mean) difference of profiles over the classes that both clients hold.
    """

    over_classes: Literal["max", "mean"] = "max"
    weighted: bool = False
    needs: ClassVar[Statistic] = "feature norms"

    def __post_init__(self) -> None:
        _check_over_classes(self.over_classes)

    def between(self, participants: Participants) -> Tensor:
        """Return D from the prototypes of norms."""
        assert participants.prototypes is not None
        norms = participants.prototypes
        profile = norms.class_means[..., 0] / norms.mean.clamp_min(torch.finfo(norms.mean.dtype).tiny)
        shared = (norms.class_counts > 0)[:, None] & (norms.class_counts > 0)[None, :]
        apart = (profile[:, None] - profile[None, :]).abs() * shared
        if self.over_classes == "max":
            distance = apart.amax(dim=2)
        else:
            distance = apart.sum(dim=2) / shared.sum(dim=2).clamp_min(1)
        return _weigh(distance, participants, self.weighted)


@dataclass(frozen=True)
class UpdateCosine:
    """1 − cos of local updates: CFL, ICFL, StoCFL; with the head's update only, the paper's ablation ① of HCFL+.

    `first updates` are those of one local epoch from the initial model, taken once: StoCFL. `models` are no updates but
    the trained parameters themselves, which the authors' public code of ICFL compares.
    """

    weighted: bool = True
    of: Literal["updates", "whole updates", "first updates", "models"] = "updates"

    def __post_init__(self) -> None:
        if self.of not in ("updates", "whole updates", "first updates", "models"):
            raise InputError(f"of = {self.of!r}: must be updates, whole updates, first updates or models")

    @property
    def needs(self) -> Statistic:
        """The updates of the client's own cluster, of everything that it trains, its first one, or what it trained."""
        return self.of

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' updates."""
        choices = {
            "updates": participants.updates,
            "whole updates": participants.whole_updates,
            "first updates": participants.signatures,
            "models": participants.models,
        }
        updates = choices[self.of]
        assert updates is not None
        return _weigh(cosine_distance(updates), participants, self.weighted)


@dataclass(frozen=True)
class ParameterDistance:
    """‖θ_i − θ_j‖₂ of the trained parameters of each client's own cluster: FL+HC."""

    weighted: bool = False
    needs: ClassVar[Statistic] = "models"

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' trained models."""
        assert participants.models is not None
        # Differences, not inner products: those lose all precision where two models are nearly equal.
        distance = torch.cdist(participants.models, participants.models, compute_mode="donot_use_mm_for_euclid_dist")
        return _weigh(distance, participants, self.weighted)


RANK_TOLERANCE = 1e-5
"""Singular values below this share of the largest are rounding errors."""


@dataclass(frozen=True)
class PrincipalAngles:
    """Principal angles, in degrees, between the subspaces that clients' data lie in: PACFL (Vahidian et al., 2023).

    A client's signature is the basis of the leading left singular vectors of its data matrix. Labels do not enter, so
    only feature shift and label shift are visible, not concept shift.
    """

    directions: int = 3
    angle: Literal["smallest", "mean", "sum"] = "mean"
    weighted: bool = False
    needs: ClassVar[Statistic] = "signatures"

    def __post_init__(self) -> None:
        if self.directions < 1:
            raise InputError(f"directions = {self.directions}: must be at least 1")
        if self.angle not in ("smallest", "mean", "sum"):
            raise InputError(f"angle = {self.angle!r}: must be smallest, mean or sum")

    def signature(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return an orthonormal basis (features, directions) of the inputs' leading principal subspace.

        Data of a lower rank have fewer directions; the others are zero.
        """
        _, values, axes = torch.linalg.svd(inputs.flatten(1), full_matrices=False)
        basis = (axes * (values > values[0] * RANK_TOLERANCE).unsqueeze(1))[: self.directions].T
        return torch.nn.functional.pad(basis, (0, self.directions - basis.shape[1]))

    def between(self, participants: Participants) -> Tensor:
        """Return D from the participants' bases."""
        assert participants.signatures is not None
        bases = participants.signatures.double()
        ranks = (bases.square().sum(dim=1) > 0.5).sum(dim=1)
        shared = torch.minimum(ranks[:, None], ranks[None, :]).clamp_min(1)
        cosines = torch.linalg.svdvals(torch.einsum("ifp,jfq->ijpq", bases, bases)).clamp(0, 1)
        counts = torch.arange(cosines.shape[2], device=bases.device) < shared.unsqueeze(2)  # the angles that both have
        angles = torch.rad2deg(cosines.acos()) * counts
        sums = angles.sum(dim=2)
        reduced = {"smallest": angles[:, :, 0], "mean": sums / shared, "sum": sums}[self.angle]
        distance = ((reduced + reduced.T) / 2).fill_diagonal_(0).to(participants.signatures.dtype)
        return _weigh(distance, participants, self.weighted)


@dataclass(frozen=True)
class Distances:
    """D between some clients, as tier 4 measured it in a round."""

    clients: tuple[int, ...]
    matrix: Tensor
    """(clients, clients)."""


def measured(distance: Distance, participants: Participants) -> Tensor:
    """Return D (participants, participants) on the CPU; refuse another shape, NaN and Inf."""
    found = distance.between(participants)
    count = len(participants.clients)
    name = f"method.distance = {type(distance).__name__}"
    if not isinstance(found, Tensor) or found.shape != (count, count):
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name}: between() returned {what}, but {count} participants need one of {(count, count)}")
    if not torch.isfinite(found).all():
        raise InputError(f"{name}: between() returned NaN or infinity")
    return found.cpu()
