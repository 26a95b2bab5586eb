"""Pictures of federations, of runs, and of Val against Test."""

import warnings
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.runs.atomic_file import replacing
from hcfl.runs.run import Run

CONCEPT_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Paul Tol's bright palette, which colour-blind readers can tell apart."""


class Picture(Figure):
    """A figure that shows itself in a notebook, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png", dpi=90, bbox_inches="tight")
        return file.getvalue()


def save(figure: Figure, path: Path) -> Path:
    """Write a picture as .png, .pdf or .svg; return its path."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"picture = {str(path)!r}: must end in .png, .pdf or .svg")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names in other scripts
            with replacing(path) as unfinished:
                figure.savefig(unfinished, format=path.suffix[1:].lower(), dpi=120, bbox_inches="tight")
    except OSError as error:
        raise InputError(f"picture = {str(path)!r}: cannot be written ({error.strerror})") from None
    return path


def plot_federation(federation: Federation) -> Picture:
    """Draw clients × classes as a heat map, clients ordered by their true concept."""
    counts = federation.class_table()
    order = _by_concept(federation)
    width = min(14.0, 3.5 + 0.35 * federation.classes)
    figure = Picture(figsize=(width, min(14.0, 2 + 0.16 * federation.clients)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(counts[order], aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    figure.colorbar(image, ax=axes, label="samples", pad=0.08)
    axes.set(
        xlabel="label as the client sees it", ylabel="client", title=f"{federation.name}: samples by client and class"
    )
    if federation.classes <= 30:
        axes.set_xticks(range(federation.classes), federation.class_names, parse_math=False)
    _name_clients(axes, federation, order)
    _concept_strip(axes, federation, order)
    return figure


def plot_runs(runs: Sequence[Run], titles: tuple[str, str] = ("accuracy", "clusters")) -> Picture:
    """Draw accuracy and K over rounds of runs over one federation, and the first run's weights beside the truth."""
    figure = Picture(figsize=(13, 4.6), layout="constrained")
    accuracy, clusters, members = figure.subplots(1, 3, width_ratios=(4, 3, 3))
    _accuracy(accuracy, runs, titles[0])
    _clusters(clusters, runs, titles[1])
    _weights(members, runs[0])
    return figure


def plot_accuracy(runs: Sequence[Run]) -> Picture:
    """Draw Val and Test over rounds."""
    figure = Picture(figsize=(6, 4), layout="constrained")
    _accuracy(figure.subplots(), runs, "accuracy")
    return figure


def plot_clusters(runs: Sequence[Run]) -> Picture:
    """Draw K over rounds."""
    figure = Picture(figsize=(6, 4), layout="constrained")
    _clusters(figure.subplots(), runs, "clusters")
    return figure


def plot_weights(run: Run) -> Picture:
    """Draw the weights of clients on clusters, beside the true concepts."""
    figure = Picture(figsize=(4.5, 5), layout="constrained")
    _weights(figure.subplots(), run)
    return figure


LARGEST_CIRCLE = 900.0
"""The area, in square points, of the circle with the largest K in `plot_frontier`."""

MARKERS = "osD^v"
"""Markers in order: the next one is used when all colours have been."""


def plot_frontier(
    points: Mapping[str, Sequence[tuple[float, float, float]]], personal: Mapping[str, float] | None = None
) -> Picture:
    """Draw Val against Test: a dot for each seed, and a circle for their mean, its area in proportion to K.

    Args:
        points: for each name, (Val, Test, K) of each of its seeds; a name without seeds is left out.
        personal: for some names, the mean of Val with personal parts: an arrow leads there from the group's Val.
    """
    styles = cycle((marker, colour) for marker in MARKERS for colour in CONCEPT_COLOURS)
    figure = Picture(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    means = {name: np.mean(seeds, axis=0) for name, seeds in points.items() if seeds}
    largest = max((clusters for _, _, clusters in means.values()), default=1)
    for (name, (val, test, clusters)), (marker, colour) in zip(means.items(), styles, strict=False):
        seeds = np.array(points[name])
        axes.scatter(seeds[:, 0], seeds[:, 1], s=9, color=colour)
        axes.scatter(val, test, s=LARGEST_CIRCLE * clusters / largest, marker=marker, color=colour, alpha=0.35)
        if personal is not None and name in personal:
            arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", xy=(personal[name], test), xytext=(val, test), arrowprops=arrow)
            axes.plot(personal[name], test, ".", color=colour)  # an arrow alone would not widen the axes
        label = f"{name} (K = {clusters:.3g})".replace("$", r"\$")
        axes.plot([], [], marker, color=colour, label=label)  # circles of any size would not fit a legend
    to = "; arrows: with personal parts" if personal else ""
    axes.set(xlabel=f"Val: clients' own data{to}", ylabel="Test: newcomers", title="personalisation and generalisation")
    axes.margins(0.15)
    axes.grid(alpha=0.3)
    if means:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8, frameon=False)
    return figure


def _accuracy(axes: Axes, runs: Sequence[Run], title: str) -> None:
    for run, colour in zip(runs, cycle(CONCEPT_COLOURS), strict=False):
        _curve(axes, run, "test", f"{run.summary['method']}: Test", color=colour)
        _curve(axes, run, "val", f"{run.summary['method']}: Val", color=colour, linestyle=":")
    axes.set(xlabel="round", ylabel="accuracy", ylim=(0, 1), title=title)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(loc="lower right", fontsize=8)


def _clusters(axes: Axes, runs: Sequence[Run], title: str) -> None:
    for run, colour in zip(runs, cycle(CONCEPT_COLOURS), strict=False):
        _curve(axes, run, "clusters", run.summary["method"], color=colour, drawstyle="steps-post")
    true = runs[0].summary["clusters_true"]
    if true is not None:
        axes.axhline(true, color="black", linewidth=0.8, linestyle="--", label="true")
    axes.set(xlabel="round", ylabel="clusters", title=title, ylim=(0, None))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize=8)


def _curve(axes: Axes, run: Run, key: str, label: str, **style: Any) -> None:
    points = [(row["round"], row[key]) for row in run.rows if row[key] is not None]
    if points:
        axes.plot(*zip(*points, strict=True), label=label, **style)


def _weights(axes: Axes, run: Run) -> None:
    """Clients × clusters: the weights ω̃, clients ordered by concept and cluster."""
    server = run.state.server
    order = _by_concept(run.federation, server.members.numpy())
    axes.imshow(server.weights.numpy()[order], aspect="auto", cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks(range(len(server.clusters)), [str(cluster) for cluster in server.clusters])
    axes.set(xlabel="cluster", title=f"{run.summary['method']}: weights")
    _name_clients(axes, run.federation, order)
    _concept_strip(axes, run.federation, order)


def _by_concept(federation: Federation, members: Any = None) -> Any:
    keys = [np.arange(federation.clients)]
    if members is not None:
        keys.append(members)
    if federation.truth is not None:
        keys.append(federation.truth.concept)
    return np.lexsort(keys)


def _name_clients(axes: Axes, federation: Federation, order: Any) -> None:
    if federation.clients <= 60:
        axes.set_yticks(
            range(federation.clients), [str(federation.client_names[i]) for i in order], fontsize=6, parse_math=False
        )


def _concept_strip(axes: Axes, federation: Federation, order: Any) -> None:
    """Colour the right edge by true concept, where it is known."""
    if federation.truth is None:
        return
    concept = federation.truth.concept[order]
    strip = axes.inset_axes((1.01, 0, 0.03, 1))
    strip.imshow(
        concept[:, None] % len(CONCEPT_COLOURS),
        aspect="auto",
        interpolation="nearest",
        cmap=ListedColormap(CONCEPT_COLOURS),
        vmin=0,
        vmax=len(CONCEPT_COLOURS) - 1,
    )
    strip.set(xticks=[], yticks=[], xlabel="true\nconcept")
    strip.xaxis.label.set_fontsize(6)
