"""How the models that clients trained become one: the mean, and averages that a minority cannot move far.

Pure functions of stacked tensors: models in rows, and how much each counts in each cluster, its mass. An average is
taken per cluster, over the models with a mass above 0 there. A cluster without such models keeps its model.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.models import Params
from hcfl.models.ensemble import mix

NOTHING: frozenset[str] = frozenset()


class Average(Protocol):
    """Makes one model of many, for each cluster."""

    def combine(self, received: Params, reported: Params, mass: Tensor, skip: frozenset[str]) -> Params:
        """Return θ_k for each cluster, from what was sent out, what came back (models, …) and mass (models, clusters).

        `skip` names tensors that are no parameters (running statistics): they are averaged, but not compared.
        """
        ...


def weighted_mean(received: Params, reported: Params, mass: Tensor) -> Params:
    """θ_k = Σ_r m_rk·θ_r / Σ_r m_rk over all reported models, from mass (models, clusters); without mass it stays.

    Running statistics are averaged like weights; counters among them are rounded.
    """
    if not received:
        return {}
    total, device = mass.sum(dim=0), next(iter(received.values())).device
    share = torch.where(total > 0, mass / total, 0).T.to(device)
    means = {name: mix(share, reported[name]) for name in received}
    if (idle := torch.nonzero(total == 0).flatten().to(device)).numel():
        for name, old in received.items():
            means[name][idle] = old[idle]
    return means


@dataclass(frozen=True)
class Mean:
    """The mean, weighted by mass. One client can move it anywhere."""

    is_mean: ClassVar[bool] = True

    def combine(self, received: Params, reported: Params, mass: Tensor, skip: frozenset[str]) -> Params:
        """Return every cluster's mean, as one product."""
        return weighted_mean(received, reported, mass)


@dataclass(frozen=True)
class Median:
    """The median of every coordinate, weighted by mass: half of the mass lies on either side."""

    def combine(self, received: Params, reported: Params, mass: Tensor, skip: frozenset[str]) -> Params:
        """Return every cluster's median."""
        return _coordinate_wise(received, reported, mass, _median)


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every coordinate without a share of the mass at both ends."""

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InputError(f"share = {self.share}: must be at least 0 and below 0.5")

    def combine(self, received: Params, reported: Params, mass: Tensor, skip: frozenset[str]) -> Params:
        """Return every cluster's trimmed mean."""
        return _coordinate_wise(received, reported, mass, lambda values, sizes: _trimmed(values, sizes, self.share))


@dataclass(frozen=True)
class Clip:
    """The mean of changes, of which none is longer than a bound, in units of the median length."""

    bound: float = 1.0

    def __post_init__(self) -> None:
        if not self.bound > 0:
            raise InputError(f"bound = {self.bound}: must be above 0")

    def combine(self, received: Params, reported: Params, mass: Tensor, skip: frozenset[str]) -> Params:
        """Return every cluster's model, moved by the mean of the shortened changes."""
        found = {name: old.clone() for name, old in received.items()}
        for column, rows in _clusters(mass):
            lengths = _changes(received, reported, column, rows, skip).norm(dim=1)
            sizes = mass[rows, column].to(lengths)
            most = self.bound * _median(lengths.unsqueeze(1), sizes)
            shortened = torch.where(lengths > most, most / lengths, 1.0)
            shares = (shortened * sizes / sizes.sum()).unsqueeze(0)
            for name, old in received.items():
                change = reported[name][rows].to(shares.dtype) - old[column].to(shares.dtype)
                found[name][column] = _like(old, old[column] + mix(shares, change)[0])
        return found


@dataclass(frozen=True)
class MultiKrum:
    """The mean of the models that are nearest to others, without a share of all (Blanchard et al., 2017).

    A model's score is the sum of its squared distances to its n − f − 2 nearest, f = ⌊share·n⌋; the f worst are left
    out. Scores do not know of mass, the mean of the others does.
    """

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise InputError(f"share = {self.share}: must be at least 0 and below 0.5")

    def combine(self, received: Params, reported: Params, mass: Tensor, skip: frozenset[str]) -> Params:
        """Return every cluster's mean of the chosen."""
        chosen = mass.clone()
        for column, rows in _clusters(mass):
            outside = int(self.share * len(rows) + 1e-9)
            if outside:
                scores = _krum_scores(_changes(received, reported, column, rows, skip), outside)
                worst = scores.argsort(stable=True)[len(rows) - outside :]
                chosen[rows[worst.to(rows.device)], column] = 0
        return weighted_mean(received, reported, chosen)


def _clusters(mass: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each cluster that some model counts in, with the rows of these models."""
    for column in range(mass.shape[1]):
        rows = torch.nonzero(mass[:, column] > 0).flatten()
        if len(rows):
            yield column, rows


def _changes(received: Params, reported: Params, column: int, rows: Tensor, skip: frozenset[str]) -> Tensor:
    """Return how far models are from the cluster's, (models, parameters), in double precision."""
    return torch.cat(
        [
            (reported[name][rows].double() - old[column].double()).reshape(len(rows), -1)
            for name, old in received.items()
            if name not in skip
        ],
        dim=1,
    )


def _krum_scores(points: Tensor, outside: int) -> Tensor:
    """Sum of squared distances of each point to its nearest n − f − 2 others, at least one."""
    squares = (points * points).sum(dim=1)
    distances = (squares.unsqueeze(1) + squares - 2 * points @ points.T).clamp_min(0)
    distances.fill_diagonal_(torch.inf)
    near = max(1, len(points) - outside - 2)
    return distances.sort(dim=1).values[:, :near].sum(dim=1)


def _coordinate_wise(
    received: Params, reported: Params, mass: Tensor, average: Callable[[Tensor, Tensor], Tensor]
) -> Params:
    """Average each coordinate by itself: `average` maps values (models, coordinates) and masses to one model."""
    found = {name: old.clone() for name, old in received.items()}
    for column, rows in _clusters(mass):
        for name, old in received.items():
            values = reported[name][rows].reshape(len(rows), -1)
            sizes = mass[rows, column].to(values.device)
            middle = average(values if values.is_floating_point() else values.double(), sizes)
            found[name][column] = _like(old, middle.view(old.shape[1:]))
    return found


def _like(old: Tensor, new: Tensor) -> Tensor:
    """Return a value in its tensor's type; counters are rounded."""
    return (new if old.is_floating_point() else new.round()).to(old.dtype)


def _sorted(values: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort values (models, coordinates) with their masses; also return the mass up to each."""
    ordered, order = values.sort(dim=0, stable=True)
    masses = sizes.double()[order]
    return ordered, masses, masses.cumsum(dim=0)


def _median(values: Tensor, sizes: Tensor) -> Tensor:
    """Return the weighted median of every coordinate; where two values share the middle, what lies between them."""
    ordered, masses, upto = _sorted(values, sizes)
    half = masses.sum(dim=0) / 2
    last = len(values) - 1
    lower = (upto < half * (1 - 1e-12)).sum(dim=0).clamp_max(last)
    upper = (upto <= half * (1 + 1e-12)).sum(dim=0).clamp_max(last)
    ends = ordered.gather(0, torch.stack([lower, upper]))
    return ends.mean(dim=0)


def _trimmed(values: Tensor, sizes: Tensor, share: float) -> Tensor:
    """Return the weighted mean of every coordinate without `share` of the mass at both ends; parts of a model count."""
    ordered, masses, upto = _sorted(values, sizes)
    total = masses.sum(dim=0)
    kept = (torch.minimum(upto, total * (1 - share)) - torch.maximum(upto - masses, total * share)).clamp_min(0)
    return ((kept / kept.sum(dim=0)).to(values.dtype) * ordered).sum(dim=0)
