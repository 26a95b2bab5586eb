"""Tier 1, formulation: the likelihood L_k of a sample under cluster k, in the objective, eq. (1); all in log space."""

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.client_segments import Segments


class Formulation(Protocol):
    """The log-likelihood of labelled samples under each cluster.

    The cluster-wise correction, where there is one, does not depend on the parameters, so the training loss of
    every formulation is γ-weighted cross-entropy.
    """

    @property
    def uses_class_shares(self) -> bool:
        """Whether clients must report F, so that the server can send P_k(y)."""
        ...

    @property
    def gaussians(self) -> int:
        """How many Gaussians model the density of the inputs; 0: it is not modelled."""
        ...

    def log_likelihood(
        self, log_prob: Tensor, labels: Tensor, class_shares: Tensor, log_density: Tensor | None
    ) -> Tensor:
        """Return log L_k(x_j, y_j) as (samples, clusters).

        `log_prob` is log p_k(y_j|x_j) as (samples, clusters), `labels` (samples,), `class_shares` P_k(y) as
        (clusters, classes), `log_density` log p_k(x_j) as (samples, clusters), where it is modelled and known already.
        """
        ...


@dataclass(frozen=True)
class Conditional:
    """log L_k = log p_k(y|x): FedAvg, IFCA, FeSEM, FedEM, FedSoft, CFL, ICFL, StoCFL."""

    uses_class_shares: ClassVar[bool] = False
    gaussians: ClassVar[int] = 0

    def log_likelihood(
        self, log_prob: Tensor, labels: Tensor, class_shares: Tensor, log_density: Tensor | None = None
    ) -> Tensor:
        """Return the negative cross-entropy itself."""
        return log_prob


@dataclass(frozen=True)
class Correlation:
    """log L_k = log p_k(y|x) − log P_k(y): FedRC.

    Dividing by the cluster's class share removes the reward for clusters that merely hold the right labels, so that
    only a different P(y|x) tells clusters apart.
    """

    floor: float = 1e-8
    """Class counts below it are raised to it, so that P_k(y) is never 0."""
    uses_class_shares: ClassVar[bool] = True
    gaussians: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not self.floor > 0:
            raise InputError(f"floor = {self.floor}: must be greater than 0")

    @property
    def share_floor(self) -> float:
        """The floor of class counts."""
        return self.floor

    def log_likelihood(
        self, log_prob: Tensor, labels: Tensor, class_shares: Tensor, log_density: Tensor | None = None
    ) -> Tensor:
        """Return the log of the density ratio p_k(y|x) / P_k(y)."""
        return log_prob - class_shares.log().T[labels]


@dataclass(frozen=True)
class Joint:
    """log L_k = log p_k(y|x) + log p_k(z): FedGMM.

    The density of the embedded inputs is a mixture of Gaussians that all clusters share, mixed by each client and
    cluster in its own way, p_ik(z) = Σ_a ρ_ika·N(z; m_a, S_a): FedGMM's π_i over pairs (a, k) is ω_ik·ρ_ika. z is the
    initial extractor's output on its leading principal axes, so it never changes.
    """

    gaussians: int = 3
    dimensions: int = 32
    """How many principal axes z has, at most."""
    floor: float = 1e-3
    """The smallest variance a Gaussian can have on an axis."""
    uses_class_shares: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("gaussians", "dimensions"):
            if (value := getattr(self, name)) < 1:
                raise InputError(f"{name} = {value}: must be at least 1")
        if not self.floor > 0:
            raise InputError(f"floor = {self.floor}: must be greater than 0")

    @property
    def principal_axes(self) -> int:
        """The dimensions of z, at most."""
        return self.dimensions

    @property
    def variance_floor(self) -> float:
        """The floor of variances."""
        return self.floor

    def log_likelihood(
        self, log_prob: Tensor, labels: Tensor, class_shares: Tensor, log_density: Tensor | None = None
    ) -> Tensor:
        """Return the joint log-likelihood; before the first report there is no density, and it is conditional."""
        return log_prob if log_density is None else log_prob + log_density


def class_counts(responsibilities: Tensor, labels: Tensor, classes: int, segments: Segments) -> Tensor:
    """F_{k,c} = Σ_j 1[y_j = c]·γ_jk of each client, (clients, clusters, classes), from γ (samples, clusters)."""
    sums, _ = segments.sums_by_class(responsibilities, labels, classes)
    return sums.transpose(1, 2).contiguous()


def class_shares(counts: Tensor, floor: float = 1e-8) -> Tensor:
    """P_k(y=c) = F_{g,k,c} / Σ_c' F_{g,k,c'} from the summed counts F_g (clusters, classes).

    Counts are floored first; before any client has reported, this makes P_k uniform and it cancels in the E-step.
    """
    floored = counts.clamp_min(floor)
    return floored / floored.sum(dim=1, keepdim=True)


def objective(log_likelihood: Tensor, weights: Tensor, segments: Segments) -> Tensor:
    """Σ_j log Σ_k ω_ik·L_k(x_j, y_j) of each client, (clients,), from its weights (clients, clusters): eq. (1)."""
    return segments.sum(torch.logsumexp(segments.each(weights.log()) + log_likelihood, dim=1))
