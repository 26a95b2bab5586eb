"""Pictures: the federation before training, and what a run found."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.playing import Run

CONCEPT_COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
"""Tol's bright palette: told apart by colour-blind readers too."""


def save(figure: Figure, path: Path) -> Path:
    """Write a picture."""
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"picture = {str(path)!r}: must end in .png, .pdf or .svg")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # names in other scripts
            figure.savefig(path, dpi=120, bbox_inches="tight")
    except OSError as error:
        raise InputError(f"picture = {str(path)!r}: cannot be written ({error.strerror})") from None
    return path


def plot_federation(federation: Federation) -> Figure:
    """Clients × classes as a heat map, clients ordered by their true concept."""
    counts = federation.class_table()
    order = _by_concept(federation)
    width = min(14.0, 3.5 + 0.35 * federation.classes)
    figure = Figure(figsize=(width, min(14.0, 2 + 0.16 * federation.clients)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(counts[order], aspect="auto", cmap="Blues", interpolation="nearest", vmin=0)
    figure.colorbar(image, ax=axes, label="samples", pad=0.08)
    axes.set(xlabel="label as the client sees it", ylabel="client", title=f"{federation.name}: who holds what")
    if federation.classes <= 30:
        axes.set_xticks(range(federation.classes), federation.class_names, parse_math=False)
    _name_clients(axes, federation, order)
    _concept_strip(axes, federation, order)
    return figure


def plot_runs(runs: Sequence[Run], titles: tuple[str, str] = ("accuracy", "clusters")) -> Figure:
    """Accuracy and K over rounds, and who belongs to which cluster beside the truth, for runs over one federation."""
    main = runs[0]
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    accuracy, clusters, members = figure.subplots(1, 3, width_ratios=(4, 3, 3))
    for number, run in enumerate(runs):
        colour = CONCEPT_COLOURS[number % len(CONCEPT_COLOURS)]
        _curve(accuracy, run, "test", f"{run.summary['method']}: Test", color=colour)
        _curve(accuracy, run, "val", f"{run.summary['method']}: Val", color=colour, linestyle=":")
        _curve(clusters, run, "clusters", run.summary["method"], color=colour, drawstyle="steps-post")
    accuracy.set(xlabel="round", ylabel="accuracy", ylim=(0, 1), title=titles[0])
    accuracy.grid(alpha=0.3)
    if accuracy.lines:
        accuracy.legend(loc="lower right", fontsize=8)
    if main.summary["clusters_true"] is not None:
        clusters.axhline(main.summary["clusters_true"], color="black", linewidth=0.8, linestyle="--", label="true")
    clusters.set(xlabel="round", ylabel="clusters", title=titles[1], ylim=(0, None))
    clusters.yaxis.get_major_locator().set_params(integer=True)
    clusters.grid(alpha=0.3)
    clusters.legend(loc="lower right", fontsize=8)
    _weights(members, main)
    return figure


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
    axes.set(xlabel="cluster", title=f"{run.summary['method']}: who belongs where")
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
