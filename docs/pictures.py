"""The pictures of docs/understand.md, from real runs on the default federation.

python docs/pictures.py
"""

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

import hcfl
from hcfl.config import from_flat
from hcfl.core.rounds import play
from hcfl.report.plots import CONCEPT_COLOURS, Picture, save
from hcfl.runs.prepare import prepare

IMAGES = Path(__file__).parent / "images"
GROUPS = "ABC"
GREY = "#bbbbbb"


def contradiction(out: Path) -> None:
    """Show what one model, and what three, say to images that groups label differently."""
    single, found = (hcfl.run(name, rounds=15, out=out / name) for name in ("fedavg", "hcfl+(fedrc)"))
    federation = found.federation
    answers = [("FedAvg: one model", single, 0)]
    for group in range(3):
        members = np.flatnonzero(federation.truth.concept == group)
        answers.append((f"HCFL+: model of group {GROUPS[group]}", found, int(members[0])))
    shown = [_first(federation, digit) for digit in (1, 4, 7)]
    figure = Picture(figsize=(11, 5.2), layout="constrained")
    grid = figure.subplots(len(shown), 1 + len(answers), width_ratios=(1.1, 2, 2, 2, 2), squeeze=False)
    for axes, (title, _, _) in zip(grid[0, 1:], answers, strict=True):
        axes.set_title(title, fontsize=9)
    for row, at in zip(grid, shown, strict=True):
        image = federation.test_x[at].squeeze(-1)
        labels = [_label_of(federation, group, at) for group in range(3)]
        row[0].imshow(image, cmap="gray_r")
        row[0].set(xticks=[], yticks=[])
        row[0].set_xlabel("  ".join(f"{name}: {label}" for name, label in zip(GROUPS, labels, strict=True)), fontsize=9)
        for axes, (_, run, client) in zip(row[1:], answers, strict=True):
            _bars(axes, run.predict_proba(image[None].numpy(), client=client)[0], labels)
    save(figure, IMAGES / "contradiction.png")


def _first(federation: hcfl.Federation, digit: int) -> int:
    """Return the first held-back image of a digit; group A calls everything as it is."""
    newcomer = federation.newcomers[0]
    return int(newcomer.score_rows[(newcomer.score_labels == digit).nonzero()[0, 0]])


def _label_of(federation: hcfl.Federation, group: int, at: int) -> int:
    newcomer = federation.newcomers[group]
    return int(newcomer.score_labels[(newcomer.score_rows == at).nonzero()[0, 0]])


def _bars(axes: Axes, probabilities: np.ndarray, labels: list[int]) -> None:
    colours = [CONCEPT_COLOURS[labels.index(name)] if name in labels else GREY for name in range(10)]
    axes.bar(range(10), probabilities, color=colours)
    axes.set(ylim=(0, 1), yticks=(0, 1), xticks=range(10))
    axes.tick_params(labelsize=7)


def clusters() -> None:
    """Show who is in which cluster after each round, and the distances that each split was decided by."""
    prepared = prepare(from_flat(method="hcfl+(fedrc)", rounds=10))
    concept = prepared.setting.federation.truth.concept
    order = np.argsort(concept, kind="stable")
    members, splits = [], []
    for state, record in play(prepared.setting, prepared.state, 10):
        ids = torch.tensor(state.server.clusters)
        members.append(ids[state.server.members].numpy()[order])
        if record.distances is not None:
            splits.append((record.round, record.distances))
    figure = Picture(figsize=(11, 3.9), layout="constrained")
    first, *others = figure.subplots(1, 1 + len(splits), width_ratios=(1.5, *[1] * len(splits)))
    colours = ListedColormap(("#dddddd", "#f1a340", "#998ec3"))
    extent = (0.5, len(members) + 0.5, len(order) - 0.5, -0.5)
    first.imshow(np.array(members).T, aspect="auto", cmap=colours, interpolation="nearest", extent=extent)
    first.set(xlabel="round", xticks=range(1, 11), ylabel="clients, group by group")
    first.set_title("which cluster each client is in (a colour each)", fontsize=9)
    _mark_groups(first, concept[order])
    for axes, (round_, distances) in zip(others, splits, strict=True):
        kept = [client for client in order if client in distances.clients]
        rows = [distances.clients.index(client) for client in kept]
        shown = axes.imshow(distances.matrix[rows][:, rows], cmap="viridis", vmin=0, vmax=0.8)
        axes.set(xticks=[], xlabel="the same clients")
        axes.set_title(f"round {round_}: distances between clients", fontsize=9)
        _mark_groups(axes, concept[kept])
    figure.colorbar(shown, ax=others, shrink=0.8, label="D")
    save(figure, IMAGES / "clusters.png")


def _mark_groups(axes: Axes, concept: np.ndarray) -> None:
    """Write the group's name beside its rows, and draw a line where the next begins."""
    middles = [np.flatnonzero(concept == group).mean() for group in range(3)]
    axes.set_yticks(middles, list(GROUPS))
    axes.tick_params(axis="y", length=0)
    for border in np.flatnonzero(np.diff(concept)) + 0.5:
        axes.axhline(border, color="black", linewidth=0.8)


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        contradiction(Path(folder))
    clusters()
