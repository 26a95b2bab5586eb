"""Vectors that a client sends: clipped to a known norm, then with Gaussian noise."""

from math import sqrt

import torch
from torch import Generator, Tensor

from hcfl.privacy.sums import Parts


def length(parts: Parts) -> float:
    """Return the L2 norm of all parts as one vector."""
    return sqrt(sum(float(part.double().square().sum()) for part in parts.values()))


def clipped(parts: Parts, longest: float) -> dict[str, Tensor]:
    """Scale all parts by one factor so that their joint norm is at most `longest`."""
    factor = min(1.0, longest / max(length(parts), torch.finfo(torch.float64).tiny))
    return {name: part.double() * factor for name, part in parts.items()}


def noised(parts: Parts, deviation: float, generator: Generator) -> dict[str, Tensor]:
    """Add Gaussian noise to every number; drawn on the CPU in the order of the parts, so that engines agree."""
    return {
        name: part.double() + (deviation * torch.randn(part.shape, generator=generator, dtype=torch.float64)).to(part)
        for name, part in parts.items()
    }
