"""A run folder as the page shows it: plain lists and numbers; what a folder does not hold is None."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hcfl.config import Config
from hcfl.core.record import CURVES, Row
from hcfl.data.readers.paths import is_file
from hcfl.errors import InputError
from hcfl.report.page import matrices
from hcfl.runs import folder as run_folder
from hcfl.runs.json_files import read_object
from hcfl.runs.tables import summarise

RULES = {
    "contradiction": ("hcfl++", "split-on-contradiction"),
    "gap": ("hcfl+", "split-and-remove"),
    "norms": ("cfl", "hcfl-prime", "split-when-stationary"),
    "coherence": ("icfl", "split-by-spectrum"),
    "cut": ("fl+hc", "pacfl", "hierarchical-once"),
}
"""What `max_distance` and `threshold` of a split mean, by how the method's or the adaptation's name begins.

The first that fits counts, so a name stands before those that it begins with."""

DAMAGE = (KeyError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError)
"""What happens where a file holds something else than a run wrote."""


@dataclass(frozen=True)
class Folder:
    """What a run folder holds, as its files say it."""

    path: Path
    config: Config
    summary: Row
    ended: bool
    """Whether it has its summary and what else is written at the end; without, `summary` is what `metrics` say."""
    metrics: Sequence[Row]
    events: Sequence[Row]
    splits: Sequence[Row]
    clients: Sequence[Row]
    classes: Sequence[Sequence[str]]
    """Rows of `classes.csv`, its header first."""


def read(path: Path) -> Folder:
    """Read a run folder; one that was interrupted may lack what is written at the end."""
    for name in (run_folder.CONFIG, run_folder.METRICS):
        if not is_file(path / name):
            raise InputError(f"run = {str(path)!r}: is not a run folder, it has no {name}")
    config = Config.load(path / run_folder.CONFIG)
    metrics, events, splits = (_checked(path, name) for name in run_folder.LOGS)
    if not metrics:
        raise InputError(f"run = {str(path)!r}: has no completed round yet")
    try:
        summary = _summary(path)
        ended = summary is not None and summary["rounds"] == metrics[-1]["round"]
        if summary is None or not ended:  # killed, or still under way: what lies there is of an earlier round
            summary = summarise(config.method.name, config, None, metrics)
        clients, classes = (_table(path, name) if ended else [] for name in (run_folder.CLIENTS, run_folder.CLASSES))
        by_name = [dict(zip(clients[0], row, strict=True)) for row in clients[1:]]
        summary["method"], summary["rounds"]  # whatever else is missing is shown as missing
    except (OSError, csv.Error, *DAMAGE) as error:
        raise _damaged(path, error) from None
    return Folder(path, config, summary, ended, metrics, events, splits, by_name, classes)


def _checked(path: Path, name: str) -> list[Row]:
    """Read the lines of a log; each has its round."""
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
    """Read a CSV file; nothing where it is missing."""
    if not (path / name).is_file():
        return []
    with (path / name).open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file))


def as_data(folder: Folder, label: str, room: int) -> Row:
    """Return what the page needs of a run; `room` is how many distances it may bring."""
    try:
        return _as_data(folder, label, room)
    except DAMAGE as error:
        raise _damaged(folder.path, error) from None


def _as_data(folder: Folder, label: str, room: int) -> Row:
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
        "rule": rule_of(folder.config),
        "splits": matrices.splits(folder.splits, room),
        "clients": _clients(folder.clients),
        "classes": matrices.classes(folder.clients, folder.classes),
        "config": folder.config.to_yaml(),
    }


def rule_of(config: Config) -> str | None:
    """Return what the numbers of a split mean, where the method is one of ours."""
    chosen = config.method.adaptation or config.method.name
    return next((rule for rule, names in RULES.items() if chosen.startswith(names)), None)


def _by_part(metrics: Sequence[Row], key: str) -> dict[str, list[float]] | None:
    """Return numbers a round for each part that is ever more than nothing; None where some round has not kept them."""
    rows: list[dict[str, float] | None] = [row.get(key) for row in metrics]
    kept = [row for row in rows if row is not None]
    if len(kept) < len(rows):
        return None
    parts = dict.fromkeys(part for row in kept for part in row)
    found = {part: [row.get(part, 0) for row in kept] for part in parts}
    return {part: numbers for part, numbers in found.items() if any(numbers)}


def _event(row: Row) -> Row:
    """Return an event with how many clients were in each part; their names are in the run folder."""
    members = {cluster: len(names) for cluster, names in (row.get("members") or {}).items()}
    return {**row, "members": members}


def _clients(rows: Sequence[Row]) -> Row | None:
    """Return who belongs where, by column."""
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
        "clusters": clusters,
        "weights": [[round(float(row[f"weight_{cluster}"]), 3) for cluster in clusters] for row in rows],
    }
