"""The files of a run folder: a stable format, which docs/run-folder.md describes."""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hcfl.config import Config
from hcfl.core import scores
from hcfl.core.cluster_log import Change, Merge, Move, Removal, Split
from hcfl.core.record import Record, Row, metrics_row, record_of
from hcfl.core.state import RunState
from hcfl.data import Federation
from hcfl.errors import InputError, SavingError
from hcfl.runs import atomic_file, best_round, checkpoint, client_blocks, remarks
from hcfl.runs.best_round import Best
from hcfl.runs.class_scores import class_scores
from hcfl.runs.csv_cells import safe
from hcfl.runs.json_files import read_lines
from hcfl.runs.measured import Measured
from hcfl.runs.tables import (
    class_rows,
    client_rows,
    confusion_rows,
    forecast_entries,
    group_entries,
    missing_rows,
    quarantine_rows,
    split_row,
    summarise,
)

RUNS = Path("runs")
"""The default parent of run folders."""


def place_of(config: Config) -> Path:
    """Return the default folder of a new run, which does not exist yet."""
    name = f"{Path(config.data.source).stem}-{config.method.name}-seed{config.seed}".replace("/", "-")
    return free_path(RUNS, name)


CONFIG, METRICS, EVENTS, SPLITS = "config.yaml", "metrics.jsonl", "events.jsonl", "splits.jsonl"
CLIENTS, CLASSES, CONFUSION = "clients.csv", "classes.csv", "confusion.csv"
SUMMARY, SCHEMA, SCORES = "summary.json", "schema.json", "scores.csv"
CHECKPOINT, PICTURE, REPORT = "checkpoint", "run.png", "report.html"

NODES = "nodes.json"
"""On Flower, with real clients: what the server sees of its nodes, for `hcfl watch`."""

STOP = "stop"
"""On Flower, with real clients: a file that ends the run after the round that is under way."""

LOCK = ".lock"
"""A file that exists while a process writes into the folder."""

LOGS = (METRICS, EVENTS, SPLITS)
"""Files that get new lines after every round."""


def create(path: Path, config: Config) -> Path:
    """Create a run folder; a folder that already holds a run is refused."""
    try:
        if any(
            os.path.lexists(path / name) for name in (CONFIG, *LOGS, CLIENTS, CLASSES, CONFUSION, SUMMARY, CHECKPOINT)
        ):
            raise InputError(f"out = {str(path)!r}: already holds a run; choose another folder or remove it")
        atomic_file.write_text(path / CONFIG, config.to_yaml())
        for name in LOGS:
            atomic_file.write_text(path / name, "")
    except OSError as error:
        raise InputError(f"out = {str(path)!r}: cannot be written ({error.strerror})") from None
    return path


@contextmanager
def begun(path: Path, config: Config) -> Iterator[Path]:
    """Create a run folder; remove it if an error ends the run before its first round, unless the disk failed."""
    create(path, config)
    try:
        yield path
    except SavingError:
        raise
    except BaseException:
        if not rows(path, METRICS):
            discard(path)
        raise


def append_event(path: Path, row: Row) -> None:
    """Append one event to `events.jsonl`, such as a client that did not answer."""
    with (path / EVENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def free_path(parent: Path, name: str) -> Path:
    """Return a folder under `parent` that does not exist yet."""
    path, number = parent / name, 2
    while path.exists():
        path, number = parent / f"{name}-{number}", number + 1
    return path


def discard(path: Path) -> None:
    """Delete the files of a run without a completed round, or without a readable checkpoint."""
    for name in (CONFIG, *LOGS, CLIENTS, CLASSES, NODES, STOP, LOCK):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / CHECKPOINT, ignore_errors=True)
    if not any(path.iterdir()):
        path.rmdir()


def rows(path: Path, name: str) -> list[Row]:
    """Read the complete lines of a log."""
    return read_lines(path / name)


def read_record(path: Path, row: Row, changed: bool) -> Record:
    """Return a round's record from its line of `metrics.jsonl`; changes of clusters come from the checkpoint."""
    changes: tuple[Change, ...] = ()
    if changed:
        with suppress(InputError):  # the process that writes it may be replacing it now
            state, _ = checkpoint.load(path / CHECKPOINT)
            changes = tuple(change for change in state.server.changes if change.round == row["round"])
    return record_of(row, changes)


def event_row(change: Change, client_names: Sequence[Any]) -> Row:
    """Return one line of `events.jsonl`; clusters are named by their stable ids."""
    row: Row = {
        "event": type(change).__name__.lower(),
        "round": change.round,
        "cluster": None,
        "new_cluster": None,
        "members": {},
        "max_distance": None,
        "mean_distance": None,
        "threshold": None,
    }
    if isinstance(change, Removal):
        return row | {"cluster": change.cluster}
    if isinstance(change, Merge):
        distances = {"max_distance": change.distance, "threshold": change.threshold}
        return row | {"cluster": change.gone, "new_cluster": change.into, **distances}
    if isinstance(change, Move):
        moved: dict[int, list[Any]] = {cluster: [] for cluster in sorted(set(change.to))}
        for client, cluster in zip(change.clients, change.to, strict=True):
            moved[cluster].append(client_names[client])
        return row | {"members": moved}
    parts = {change.parent: change.first, change.child: change.second}
    return row | {
        "cluster": change.parent,
        "new_cluster": change.child,
        "members": {cluster: [client_names[c] for c in part] for cluster, part in parts.items()},
        "max_distance": change.maximum,
        "mean_distance": change.mean,
        "threshold": change.threshold,
    }


def append(path: Path, record: Record, client_names: Sequence[Any]) -> Row:
    """Append a round to the logs; return its row of `metrics.jsonl`."""
    row = metrics_row(record)
    with (path / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")
    with (path / EVENTS).open("a", encoding="utf-8") as file:
        events = missing_rows(record.round, record.missing, client_names)
        events += quarantine_rows(record.round, record.anomalies, client_names)
        events += [event_row(change, client_names) for change in record.changes]
        file.writelines(json.dumps(event) + "\n" for event in events)
    if record.distances is not None:
        splits = [change for change in record.changes if isinstance(change, Split)]
        with (path / SPLITS).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(split_row(split, record.distances, client_names)) + "\n" for split in splits)
    return row


def save(path: Path, config: Config, federation: Federation, state: RunState, best: Best | None = None) -> None:
    """Flush the logs to disk, then write a checkpoint, with the best round so far where that is an earlier one."""
    for name in LOGS:
        atomic_file.flush(path / name)
    folder = path / CHECKPOINT
    if best is not None and best.round < state.server.round:
        best_round.write(folder, best)
    checkpoint.save(folder, state, federation.scaling, config)
    if best is None or best.round == state.server.round:
        (folder / best_round.FILE).unlink(missing_ok=True)
    client_blocks.sweep(folder, [*checkpoint.files(folder), folder / best_round.FILE])


MOST_CELLS = 1_000_000
"""The most cells of a table that is written while a run is under way; a larger one is written once, at the end."""


def show_clients(path: Path, federation: Federation, state: RunState) -> None:
    """Write the tables of clients as they are now, for those who look at a run that is under way."""
    if federation.clients * (10 + len(state.server.clusters)) > MOST_CELLS:
        return
    _write_table(path / CLIENTS, client_rows(federation, state, Measured()))
    if not (path / CLASSES).exists():  # it never changes
        _write_table(path / CLASSES, class_rows(federation))


def _write_table(path: Path, table: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([safe(cell) for cell in row] for row in table)
    atomic_file.write_text(path, text.getvalue())


def finish(
    path: Path,
    method: str,
    config: Config,
    federation: Federation,
    state: RunState,
    metrics: Sequence[Row],
    best: Best | None,
    measured: Measured,
) -> Row:
    """Write `clients.csv`, `classes.csv`, `confusion.csv`, `scores.csv` and `summary.json` of a run that ends.

    Return the summary.
    """
    if federation.schema is not None:
        atomic_file.write_text(path / SCHEMA, federation.schema.to_json())
    tables = {
        CLIENTS: client_rows(federation, state, measured),
        CLASSES: class_rows(federation),
        CONFUSION: confusion_rows(federation, state, measured.tally),
    }
    for name, table in tables.items():
        _write_table(path / name, table)
    concepts = None if federation.truth is None else federation.truth.concepts
    summary = summarise(method, config, concepts, metrics, measured, state.scores)
    scored = scores.client_scores(federation, measured.last, measured.personal)
    if scored is not None:
        names, sizes = federation.client_names, federation.val_segments.sizes
        _write_table(path / SCORES, scores.rows_of(names, sizes, scored))
    found = {} if scored is None else scores.finite(scored[0])
    summary |= {"task": federation.task.name} | {f"score_{name}": value for name, value in found.items()}
    summary |= forecast_entries(scores.baselines(federation, config.data.season), found)
    file = path / CHECKPOINT / best_round.FILE
    summary |= {
        "served_round": metrics[-1]["round"] if best is None else best.round,
        "served_by": "last" if best is None else "likelihood",
        "served_bytes": file.stat().st_size if file.exists() else 0,
    }
    summary |= group_entries(federation, state, measured)
    if len(federation.y) and federation.task.name == "classification":
        summary |= class_scores(federation.class_table(), state.server.members.numpy())
    server, names = state.server, federation.class_names
    summary["warnings"] = [
        *remarks.of_clusters(method, metrics),
        *remarks.of_few_clients(method, federation.clients),
        *remarks.of_classes(measured.tally, server.members, server.clusters, names),
        *remarks.of_uploads(metrics),
        *remarks.of_stopping(summary, config.training.patience),
    ]
    atomic_file.write_text(path / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return summary
