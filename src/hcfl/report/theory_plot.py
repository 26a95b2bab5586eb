"""The picture of the linear representation study: measured distances, rates and floors beside the bound."""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes

from hcfl.report.plots import CONCEPT_COLOURS, Picture
from hcfl.theory.study import Curve, Study, Summary

NO_BOUND = "#eeeeee"
"""The shade of imbalances for which the bound says nothing."""


def plot_study(found: Study) -> Picture:
    """Draw distance against step for every imbalance; in two more panels, the rates and the floors."""
    figure = Picture(figsize=(13, 4.4), layout="constrained")
    curves, rates, floors = figure.subplots(1, 3, width_ratios=(5, 3, 3))
    for group, colour in zip(found.groups, cycle(CONCEPT_COLOURS), strict=False):
        _curves(curves, group, colour)
    curves.set(xlabel="step", ylabel="distance from B*", yscale="log", title="distance: measured, and bound (dashed)")
    curves.legend(fontsize=8, title="smallest / largest cluster", title_fontsize=8)
    curves.grid(alpha=0.3)
    _rates(rates, found.summaries)
    _floors(floors, found.summaries)
    return figure


def _curves(axes: Axes, group: Sequence[Curve], colour: str) -> None:
    """Draw the median over seeds, a band from the lowest to the highest seed, and the bound where it says something."""
    distances = np.array([curve.distances for curve in group])
    steps = np.arange(distances.shape[1])
    bounds = [curve.bounded for curve in group if curve.bound.silence is None]
    label = f"{group[0].imbalance:.2f}" + ("" if bounds else " (bound says nothing)")
    axes.plot(steps, np.median(distances, axis=0), color=colour, label=label)
    axes.fill_between(steps, distances.min(axis=0), distances.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    if bounds:
        axes.plot(steps, np.median(np.array(bounds, dtype=float), axis=0), color=colour, linestyle="--")


def _rates(axes: Axes, rows: Sequence[Summary]) -> None:
    measured = [(row.imbalance, row.rate, row.rate_std or 0) for row in rows if row.rate is not None]
    if measured:
        imbalances, rates, spreads = zip(*measured, strict=True)
        axes.errorbar(imbalances, rates, yerr=spreads, fmt="o-", color=CONCEPT_COLOURS[0], label="measured", capsize=3)
    _bound(axes, [(row.imbalance, row.bound_rate) for row in rows])
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="smallest / largest cluster", ylabel="factor of a step", title="rate: lower is faster")
    _finish(axes, rows)


def _floors(axes: Axes, rows: Sequence[Summary]) -> None:
    imbalances, floors = [row.imbalance for row in rows], [row.floor for row in rows]
    axes.plot(imbalances, floors, "-", color=CONCEPT_COLOURS[0])
    for falling, marker, label in ((False, "o", "measured"), (True, "v", "measured, still falling")):
        points = [(row.imbalance, row.floor) for row in rows if row.still_falling == falling]
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=CONCEPT_COLOURS[0], label=label)
    _bound(axes, [(row.imbalance, row.bound_floor) for row in rows])
    axes.set(xlabel="smallest / largest cluster", ylabel="distance that stays", yscale="log", title="floor")
    _finish(axes, rows)


def _bound(axes: Axes, points: Sequence[tuple[float, float | None]]) -> None:
    known = [(imbalance, value) for imbalance, value in points if value is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "s--", color=CONCEPT_COLOURS[1], label="bound")


def _finish(axes: Axes, rows: Sequence[Summary]) -> None:
    """Shade the imbalances for which the bound says nothing."""
    for number, row in enumerate(row for row in rows if row.bound_rate is None):
        label = "bound says nothing" if number == 0 else None
        axes.axvspan(row.imbalance - 0.04, row.imbalance + 0.04, color=NO_BOUND, label=label, zorder=0)
    axes.set_xlim(0, 1.05)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
