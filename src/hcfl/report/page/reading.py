"""Reads a run folder into plain lists and numbers for the page; what the folder does not hold is None."""

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hcfl.config import Config
from hcfl.core.record import CURVES, Row
from hcfl.data.readers.paths import is_file
from hcfl.errors import InputError
from hcfl.report.page import matrices
from hcfl.report.page.timeline import timeline
from hcfl.runs import folder as run_folder
from hcfl.runs.csv_cells import plain
from hcfl.runs.json_files import read_object
from hcfl.runs.restore import as_it_was
from hcfl.runs.tables import summarise

RULES = {
    "evidence": ("hcfl++", "split-on-gain"),
    "contradiction": ("split-on-contradiction",),
    "gap": ("hcfl+", "split-and-remove"),
    "norms": ("cfl", "hcfl-prime", "split-when-stationary"),
    "coherence": ("icfl", "split-by-spectrum"),
    "jump": ("feddrift", "loss-jump"),
    "cut": ("fl+hc", "pacfl", "hierarchical-once"),
}
"""What `max_distance` and `threshold` of a split mean, by how the method's or the adaptation's name begins.

The first match counts, so a longer name stands before a shorter one that it begins with."""

DAMAGE = (KeyError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError)
"""The errors that a damaged file causes."""


@dataclass(frozen=True)
class Folder:
    """The content of a run folder."""

    path: Path
    config: Config
    summary: Row
    ended: bool
    """Whether the run has written its summary; otherwise, `summary` is computed from `metrics`."""
    metrics: Sequence[Row]
    events: Sequence[Row]
    splits: Sequence[Row]
    clients: Sequence[Row]
    classes: Sequence[Sequence[str]]
    """Rows of `classes.csv`, its header first."""
    confusion: Sequence[Row] = ()
    """Rows of `confusion.csv`, by the names in its header."""


def read(path: Path) -> Folder:
    """Read a run folder; a run that was interrupted may lack the files that are written at its end."""
    for name in (run_folder.CONFIG, run_folder.METRICS):
        if not is_file(path / name):
            raise InputError(f"run = {str(path)!r}: is not a run folder, it has no {name}")
    config = as_it_was(Config.load(path / run_folder.CONFIG))
    metrics, events, splits = (_checked(path, name) for name in run_folder.LOGS)
    if not metrics:
        raise InputError(f"run = {str(path)!r}: has no completed round yet")
    try:
        summary = _summary(path)
        ended = summary is not None and summary["rounds"] == metrics[-1]["round"]
        if summary is None or not ended:  # killed, or still running: the summary is of an earlier round
            summary = summarise(config.method.name, config, None, metrics)
        clients, classes = (_table(path, name) if ended else [] for name in (run_folder.CLIENTS, run_folder.CLASSES))
        by_name = [dict(zip(clients[0], row, strict=True)) for row in clients[1:]]
        counts = _table(path, run_folder.CONFUSION) if ended else []
        confusion = [dict(zip(counts[0], row, strict=True)) for row in counts[1:]]
        summary["method"], summary["rounds"]  # the page shows other missing entries as missing
    except (OSError, csv.Error, *DAMAGE) as error:
        raise _damaged(path, error) from None
    return Folder(path, config, summary, ended, metrics, events, splits, by_name, classes, confusion)


def _checked(path: Path, name: str) -> list[Row]:
    """Read the lines of a log, ordered by round."""
    try:
        return sorted(run_folder.rows(path, name), key=lambda row: int(row["round"]))
    except (OSError, *DAMAGE) as error:
        raise _damaged(path, error, name) from None


def _summary(path: Path) -> Row | None:
    if not (path / run_folder.SUMMARY).is_file():
        return None
    return read_object(path / run_folder.SUMMARY)


def _damaged(path: Path, error: Exception, name: str = "") -> InputError:
    return InputError(f"run = {str(path)!r}: {name or 'it'} is damaged ({type(error).__name__}: {error})")


def _table(path: Path, name: str) -> list[list[str]]:
    """Read a CSV file; an empty list where it is missing."""
    if not (path / name).is_file():
        return []
    with (path / name).open(newline="", encoding="utf-8") as file:
        return [[plain(cell) for cell in row] for row in csv.reader(file)]


def trimmed(folder: Folder) -> Folder:
    """Return a folder without its tables of clients."""
    return replace(folder, clients=(), classes=())


def as_data(folder: Folder, label: str, most_distances: int) -> Row:
    """Return the data of a run for the page, with at most this many distances of its splits."""
    try:
        return _as_data(folder, label, most_distances)
    except DAMAGE as error:
        raise _damaged(folder.path, error) from None


def _as_data(folder: Folder, label: str, most_distances: int) -> Row:
    metrics = folder.metrics
    ids = [row["cluster_ids"] for row in metrics]
    return {
        "label": label,
        "folder": folder.path.resolve().name,
        "summary": folder.summary,
        "ended": folder.ended,
        "rounds_wanted": folder.config.training.rounds,
        "source": folder.config.data.source,
        "curves": {key: [row.get(key) for row in metrics] for key in CURVES},
        "sizes": [dict(zip(one, row["cluster_sizes"], strict=True)) for one, row in zip(ids, metrics, strict=True)],
        "up": _by_part(metrics, "bytes_up_by_part"),
        "down": _by_part(metrics, "bytes_down_by_part"),
        "phases": _by_part(metrics, "seconds_by_phase"),
        "events": [_event(row) for row in folder.events],
        "time": timeline(metrics),
        "rule": rule_of(folder.config),
        "splits": matrices.splits(folder.splits, most_distances),
        "clients": _clients(folder.clients),
        "classes": matrices.classes(folder.clients, folder.classes),
        "config": folder.config.to_yaml(),
        "majority": _majority(folder.confusion),
        "confusion": _confusion(folder.confusion),
    }


def rule_of(config: Config) -> str | None:
    """Return the key of RULES for the method of a run; None for a user's own method."""
    chosen = config.method.adaptation or config.method.name
    return next((rule for rule, names in RULES.items() if chosen.startswith(names)), None)


MOST_CLASSES = 30
"""Confusion matrices of more classes are left to `confusion.csv`."""


def _majority(rows: Sequence[Row]) -> float | None:
    """Return the share of the most frequent label among the held-out samples; None where it is not known."""
    labels = Counter[str]()
    for row in rows:
        labels[row["label"]] += int(row["samples"])
    return max(labels.values()) / labels.total() if labels else None


def _confusion(rows: Sequence[Row]) -> Row | None:
    """Return the held-out samples by label and predicted class, of each cluster; None where there are too many."""
    names = sorted({row[key] for row in rows for key in ("label", "predicted")}, key=lambda name: (len(name), name))
    if not names or len(names) > MOST_CLASSES:
        return None
    place = {name: at for at, name in enumerate(names)}
    clusters: dict[str, list[list[int]]] = {}
    for row in rows:
        counts = clusters.setdefault(row["cluster"], [[0] * len(names) for _ in names])
        counts[place[row["label"]]][place[row["predicted"]]] += int(row["samples"])
    return {"names": names, "clusters": clusters}


def _by_part(metrics: Sequence[Row], key: str) -> dict[str, list[float]] | None:
    """Return the numbers of each part by round, without parts that are always 0; None where a round lacks them."""
    rows: list[dict[str, float] | None] = [row.get(key) for row in metrics]
    kept = [row for row in rows if row is not None]
    if len(kept) < len(rows):
        return None
    parts = dict.fromkeys(part for row in kept for part in row)
    found = {part: [row.get(part, 0) for row in kept] for part in parts}
    return {part: numbers for part, numbers in found.items() if any(numbers)}


def _event(row: Row) -> Row:
    """Return an event with the number of clients in each part instead of their names."""
    members = (row.get("members") or {}).items()
    return {**row, "members": {cluster: known if isinstance(known, int) else len(known) for cluster, known in members}}


def _numbers(rows: Sequence[Row], key: str) -> list[float | None] | None:
    """Return a column of numbers; None where no row has one, as in folders of older versions."""
    found = [float(row[key]) if row.get(key) else None for row in rows]
    return found if any(number is not None for number in found) else None


def _clients(rows: Sequence[Row]) -> Row | None:
    """Return the columns of `clients.csv`: names, samples, concepts, clusters and weights."""
    if not rows:
        return None
    clusters = [key.removeprefix("weight_") for key in rows[0] if key.startswith("weight_")]
    shifts = [f"{row['corruption']} {row['severity']}" if row["corruption"] else None for row in rows]
    return {
        "names": [row["client"] for row in rows],
        "samples": [int(row["samples"]) for row in rows],
        "concepts": [row["true_concept"] for row in rows] if any(row["true_concept"] for row in rows) else None,
        "own": [row["cluster"] or None for row in rows],
        "corruptions": shifts if any(shifts) else None,
        "accuracy": _numbers(rows, "accuracy"),
        "held_out": _numbers(rows, "held_out"),
        "clusters": clusters,
        "weights": [[round(float(row[f"weight_{cluster}"]), 3) for cluster in clusters] for row in rows],
    }
