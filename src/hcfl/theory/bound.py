"""The theorem's bound on one alternating step, where it says nothing, and its condition on samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from hcfl.theory.problem import Array


@dataclass(frozen=True)
class Bound:
    """After one step, the distance is at most rate · distance + offset."""

    c_min: float
    """η K min_k N̂_k / N · σ̄² E_0."""
    c_max: float
    """The same with the largest cluster."""
    overshoot: float
    """η λ_max: above 1, a step goes beyond the minimum along the steepest direction."""

    @property
    def rate(self) -> float:
        """(1 − c_min + 57/200 c_max) (1 − c_max/2)^(−1/2)."""
        return (1 - self.c_min + 57 / 200 * self.c_max) * self._stretch if self.c_max < 2 else inf

    @property
    def offset(self) -> float:
        """7/100 c_max (1 − c_max/2)^(−1/2)."""
        return 7 / 100 * self.c_max * self._stretch if self.c_max < 2 else inf

    @property
    def _stretch(self) -> float:
        return 1 / sqrt(1 - self.c_max / 2)

    @property
    def floor(self) -> float:
        """The fixed point of the bound: its limit over many steps."""
        return self.offset / (1 - self.rate) if self.rate < 1 else inf

    @property
    def silence(self) -> str | None:
        """Why the bound says nothing; None where it says something."""
        if self.c_max >= 2:
            return f"c_max = {self.c_max:.2f} is not below 2: the step is too long for it"
        if self.overshoot > 1:
            return f"η λ_max = {self.overshoot:.2f} is above 1: the step overshoots the steepest direction"
        if self.rate >= 1:
            return f"it does not contract: its rate is {self.rate:.3f}"
        if self.floor >= 1:
            return f"its own floor is {self.floor:.2f}, and no distance is above 1"
        return None

    def after(self, distance: float) -> float:
        """Return the bound on the distance after one step from `distance`."""
        return self.rate * distance + self.offset

    def curve(self, start: float, steps: int) -> list[float]:
        """Return the bound on the distance after 0, 1, … steps, from the distance at the start."""
        values = [start]
        for _ in range(steps):
            values.append(self.after(values[-1]))
        return values


def bound_of(heads: Array, sizes: Sequence[int], eta: float, start: float) -> Bound:
    """Return the bound for heads Θ* (c, K), clusters of these sizes, a step length and the distance at the start.

    λ_max is the largest eigenvalue of Σ_k N̂_k/N θ*_k θ*_kᵀ, how steep the loss is in B.
    """
    total = sum(sizes)
    scale = eta * heads.shape[1] / total * smallest_singular_value(heads) ** 2 * (1 - start**2)
    steepest = np.linalg.norm(heads * np.sqrt(np.array(sizes) / total), 2) ** 2
    return Bound(scale * min(sizes), scale * max(sizes), eta * float(steepest))


def smallest_singular_value(heads: Array) -> float:
    """Return σ̄, that of Θ*/√K: the proof needs this normalisation, without it runs break the bound."""
    return float(np.linalg.svd(heads, compute_uv=False)[-1]) / sqrt(heads.shape[1])


@dataclass(frozen=True)
class SampleCondition:
    """Available samples over those that the theorem requires, with its unknown constant 𝒞 taken as 1."""

    smallest_cluster: float
    """min_k N̂_k over c³ (1+σ²)⁴ log M / E_0² · min{κ⁴, σ̄⁻⁴}."""
    total: float
    """N over K²/(d+c)."""
    unknowns: float
    """N over d·c, the numbers in B*: the theorem does not ask for it, but below 1, B* cannot be identified."""


def sample_condition(
    heads: Array, sizes: Sequence[int], dimension: int, clients: int, sigma: float, start: float
) -> SampleCondition:
    """Compare the samples with the theorem's condition; κ is the condition number of Θ*."""
    latent, clusters = heads.shape
    values = np.linalg.svd(heads, compute_uv=False)
    spread = min(float(values[0] / values[-1]) ** 4, smallest_singular_value(heads) ** -4)
    needed = latent**3 * (1 + sigma**2) ** 4 * log(clients) / (1 - start**2) ** 2 * spread
    total = sum(sizes)
    return SampleCondition(
        min(sizes) / needed, total * (dimension + latent) / clusters**2, total / (dimension * latent)
    )
