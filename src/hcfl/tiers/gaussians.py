"""Gaussians on a fixed embedding, estimated from sums that clients send: the density of `Joint` (FedGMM).

The embedding is the initial extractor's output, reduced to its leading principal axes. Round 1 sums its moments; from
then on clients send the sufficient statistics of the Gaussians.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import log, pi
from statistics import NormalDist

import torch
from torch import Tensor

from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class Gaussians:
    """Diagonal Gaussians on principal axes."""

    origin: Tensor
    """Mean feature, (features,)."""
    axes: Tensor
    """Principal axes, (features, dimensions)."""
    means: Tensor
    """m_a, (Gaussians, dimensions)."""
    variances: Tensor
    """Diagonal of S_a, (Gaussians, dimensions)."""

    def embed(self, features: Tensor) -> Tensor:
        """Return z, (samples, dimensions), from features (samples, features) of the initial extractor."""
        z = (features - self.origin.to(features.device)) @ self.axes.to(features.device)
        return z.to(self.origin.device)

    def log_densities(self, z: Tensor) -> Tensor:
        """Return log N(z_j; m_a, S_a), (samples, Gaussians)."""
        squares = (z[:, None] - self.means) ** 2 / self.variances
        return -0.5 * (squares + self.variances.log() + log(2 * pi)).sum(dim=2)


@dataclass(frozen=True)
class Moments:
    """Sums over the samples of one client or of several: sums over clients add up to the sum over all samples.

    In round 1: n (1,), Σz (1, features), Σzzᵀ (features, features) of the raw features. Later, for each Gaussian:
    Σγ (Gaussians,), Σγz and Σγz² (Gaussians, dimensions).
    """

    mass: Tensor
    first: Tensor
    second: Tensor

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(self.mass + other.mass, self.first + other.first, self.second + other.second)


def total(moments: Sequence[Moments]) -> Moments:
    """Return the sum over clients."""
    return reduce(Moments.__add__, moments)


def feature_moments(features: Tensor) -> Moments:
    """Return what clients report before there are principal axes, from features (samples, features).

    In double precision, because the covariance is a difference of these sums.
    """
    rows = features.double()
    return Moments(torch.full((1,), len(rows)).double(), rows.sum(dim=0, keepdim=True).cpu(), (rows.T @ rows).cpu())


def initial_gaussians(moments: Moments, number: int, dimensions: int, floor: float) -> Gaussians:
    """Return principal axes from summed moments, and Gaussians to start from.

    The Gaussians start with the variance of all data, spread along the first axis at the quantiles of a normal
    distribution: no draw is needed, and no two are alike.
    """
    origin = (moments.first / moments.mass)[0]
    covariance = moments.second / moments.mass - torch.outer(origin, origin)
    values, vectors = torch.linalg.eigh(covariance)
    kept = min(dimensions, len(values))
    variances = values.flip(0)[:kept].clamp_min(floor)
    axes = vectors.flip(1)[:, :kept]
    axes = axes * axes.gather(0, axes.abs().argmax(dim=0, keepdim=True)).sign()  # eigh leaves the sign to chance
    quantiles = torch.tensor([NormalDist().inv_cdf((a + 0.5) / number) for a in range(number)]).to(variances)
    means = variances.new_zeros(number, kept)
    means[:, 0] = quantiles * variances[0].sqrt()
    return Gaussians(*(part.float() for part in (origin, axes, means, variances.expand(number, -1).contiguous())))


def component_log_joint(components: Tensor, log_densities: Tensor, segments: Segments) -> Tensor:
    """Log ρ_ika + log N_a(z_j), (samples, clusters, Gaussians), from ρ (clients, clusters, Gaussians)."""
    return segments.each(components.log()) + log_densities[:, None]


def mixture_log_density(components: Tensor, log_densities: Tensor, segments: Segments) -> Tensor:
    """Log Σ_a ρ_ika·N_a(z_j), (samples, clusters)."""
    return torch.logsumexp(component_log_joint(components, log_densities, segments), dim=2)


def component_responsibilities(components: Tensor, log_densities: Tensor, gamma: Tensor, segments: Segments) -> Tensor:
    """γ_jka = γ_jk·ρ_ika·N_a / Σ_a' ρ_ika'·N_a', (samples, clusters, Gaussians)."""
    return gamma[:, :, None] * torch.softmax(component_log_joint(components, log_densities, segments), dim=2)


def component_step(components: Tensor, responsibilities: Tensor, segments: Segments) -> Tensor:
    """ρ_ika = Σ_j γ_jka / Σ_j γ_jk: the M-step of each client's mixing; a cluster without mass keeps its own."""
    mass = segments.sum(responsibilities)
    per_cluster = mass.sum(dim=2, keepdim=True)
    tiny = torch.finfo(mass.dtype).tiny
    return torch.where(per_cluster > tiny, mass / per_cluster.clamp_min(tiny), components)


def gaussian_moments(responsibilities: Tensor, z: Tensor) -> Moments:
    """Σγ, Σγz, Σγz² of all given samples, for each Gaussian over all clusters."""
    share = responsibilities.sum(dim=1).double()
    rows = z.double()
    return Moments(share.sum(dim=0), share.T @ rows, share.T @ rows**2)


def refit(old: Gaussians, moments: Moments, floor: float) -> Gaussians:
    """Return the Gaussians' M-step from summed statistics; one that no sample belongs to stays."""
    mass = moments.mass[:, None]
    alive = mass > torch.finfo(torch.float32).eps
    means = moments.first / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    variances = (moments.second / mass.clamp_min(torch.finfo(mass.dtype).tiny) - means**2).clamp_min(floor)
    return Gaussians(
        old.origin,
        old.axes,
        torch.where(alive, means.float(), old.means),
        torch.where(alive, variances.float(), old.variances),
    )
