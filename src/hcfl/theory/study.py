"""The study: the same problems with clusters of more and more unequal sizes, each step measured and bounded."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean, stdev
from typing import Any

import numpy as np

from hcfl.theory import measuring
from hcfl.theory.alternating import descent
from hcfl.theory.bound import Bound, SampleCondition, bound_of, sample_condition
from hcfl.theory.problem import Array, clusters_of, draw, start_at
from hcfl.theory.settings import StudySettings


@dataclass(frozen=True)
class Curve:
    """One problem: its distances from B*, beside the bound."""

    seed: int
    asked: float
    """The imbalance that was asked for."""
    sizes: tuple[int, ...]
    """N̂_k, the samples of each cluster."""
    distances: Array
    """At the start and after every step."""
    bound: Bound
    condition: SampleCondition

    @property
    def imbalance(self) -> float:
        """The smallest cluster's share of the largest, as whole clients allow it."""
        return min(self.sizes) / max(self.sizes)

    @property
    def bounded(self) -> list[float | None]:
        """The bound on the distance after 0, 1, … steps, from the start alone; None where it says nothing."""
        steps = len(self.distances) - 1
        if self.bound.silence is not None:
            return [None] * (steps + 1)
        return list(self.bound.curve(float(self.distances[0]), steps))

    @property
    def steps_above(self) -> int:
        """How many steps ended above what the bound allows, where it says something."""
        if self.bound.silence is not None:
            return 0
        allowed = self.bound.rate * self.distances[:-1] + self.bound.offset
        return int((self.distances[1:] > allowed).sum())


@dataclass(frozen=True)
class Summary:
    """The problems of one imbalance: means over seeds; None where a number is not defined."""

    imbalance: float
    sizes: tuple[int, ...]
    seeds: int
    rate: float | None
    """Measured: the mean factor of a step on the way to the floor."""
    rate_std: float | None
    floor: float
    """Measured: the distance over the last tenth of the steps."""
    still_falling: bool
    """Whether some curve has not reached its floor yet."""
    bounded: int
    """For how many of the seeds the bound says something; the three numbers below are over these."""
    bound_rate: float | None
    bound_floor: float | None
    steps_above: int | None
    """Steps that ended above what the bound allows."""
    silence: str | None
    """Why the bound says nothing, for the first seed for which it does not."""
    smallest_cluster: float
    """The median over seeds of the sample condition's ratio, for 𝒞 = 1."""
    total: float
    unknowns: float


@dataclass(frozen=True)
class Study:
    """All curves, seed by seed for each imbalance."""

    settings: StudySettings
    curves: tuple[Curve, ...]

    @cached_property
    def groups(self) -> list[list[Curve]]:
        """The curves of each imbalance."""
        sizes = dict.fromkeys(curve.sizes for curve in self.curves)
        return [[curve for curve in self.curves if curve.sizes == one] for one in sizes]

    @cached_property
    def summaries(self) -> list[Summary]:
        """A row for each imbalance."""
        return [summary_of(group) for group in self.groups]


def summary_of(curves: Sequence[Curve]) -> Summary:
    """Summarise the curves of one imbalance."""
    rates = [rate for curve in curves if (rate := measuring.rate(curve.distances)) is not None]
    bounds = [curve.bound for curve in curves if curve.bound.silence is None]
    silences = [curve.bound.silence for curve in curves if curve.bound.silence is not None]
    conditions = [curve.condition for curve in curves]
    return Summary(
        imbalance=curves[0].imbalance,
        sizes=curves[0].sizes,
        seeds=len(curves),
        rate=mean(rates) if rates else None,
        rate_std=stdev(rates) if len(rates) > 1 else None,
        floor=mean(measuring.floor(curve.distances) for curve in curves),
        still_falling=any(measuring.still_falling(curve.distances) for curve in curves),
        bounded=len(bounds),
        bound_rate=mean(bound.rate for bound in bounds) if bounds else None,
        bound_floor=mean(bound.floor for bound in bounds) if bounds else None,
        steps_above=sum(curve.steps_above for curve in curves) if bounds else None,
        silence=silences[0] if silences else None,
        smallest_cluster=float(np.median([condition.smallest_cluster for condition in conditions])),
        total=conditions[0].total,
        unknowns=conditions[0].unknowns,
    )


def curves(settings: StudySettings) -> Iterator[Curve]:
    """Yield the curve of every imbalance and seed as it ends."""
    for asked, clients in zip(settings.imbalances, clusters_of(settings), strict=True):
        for seed in range(settings.seed, settings.seed + settings.seeds):
            yield _curve(settings, asked, clients, seed)


def _curve(settings: StudySettings, asked: float, clients: Sequence[int], seed: int) -> Curve:
    problem = draw(settings, clients, seed)
    basis = start_at(problem.basis, settings.start, seed)
    distances = np.array(list(descent(problem, basis, settings.eta, settings.steps)))
    start = float(distances[0])
    bound = bound_of(problem.heads, problem.sizes, settings.eta, start)
    condition = sample_condition(
        problem.heads, problem.sizes, settings.dimension, settings.clients, settings.sigma, start
    )
    return Curve(seed, asked, problem.sizes, distances, bound, condition)


def run(settings: StudySettings, on_curve: Callable[[Curve], None] = lambda curve: None) -> Study:
    """Run the study; `on_curve` is called after each problem."""
    found = []
    for curve in curves(settings):
        on_curve(curve)
        found.append(curve)
    return Study(settings, tuple(found))


def study(**settings: Any) -> Study:
    """Run the study; settings are the flags of `hcfl theory` as keywords.

    >>> study(imbalances=(1, 0.3), seeds=2, steps=40).summaries[0].imbalance
    1.0
    """
    return run(StudySettings.parse(settings))
