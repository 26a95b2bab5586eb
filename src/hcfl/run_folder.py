"""The run folder: what a run leaves on disk, as a stable contract (docs/run-folder.md)."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hcfl import checkpoint
from hcfl.client_tables import class_rows, client_rows
from hcfl.clusters import Change, Merge, Move, Removal, Split
from hcfl.config import Config
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.evaluation import Quality
from hcfl.json_files import read_lines
from hcfl.privacy.accounting import spent
from hcfl.rounds import Record
from hcfl.split_distances import split_row
from hcfl.state import RunState

Row = dict[str, Any]

CONFIG, METRICS, EVENTS, SPLITS = "config.yaml", "metrics.jsonl", "events.jsonl", "splits.jsonl"
CLIENTS, CLASSES, SUMMARY = "clients.csv", "classes.csv", "summary.json"
CHECKPOINT, PICTURE, REPORT = "checkpoint", "run.png", "report.html"

LOGS = (METRICS, EVENTS, SPLITS)
"""What grows round by round."""


def create(path: Path, config: Config) -> Path:
    """Make a new run folder; one that already holds a run is never touched."""
    try:
        if any((path / name).exists() for name in (CONFIG, *LOGS, CLIENTS, CLASSES, SUMMARY, CHECKPOINT)):
            raise InputError(f"out = {str(path)!r}: already holds a run; choose another folder or remove it")
        path.mkdir(parents=True, exist_ok=True)
        (path / CONFIG).write_text(config.to_yaml(), encoding="utf-8")
        for name in LOGS:
            (path / name).write_text("", encoding="utf-8")
    except OSError as error:
        raise InputError(f"out = {str(path)!r}: cannot be written ({error.strerror})") from None
    return path


def reopen(path: Path) -> tuple[Config, list[Row], RunState]:
    """Return what a run needs to go on from its checkpoint; what was written after it is taken back."""
    config = Config.load(path / CONFIG)
    state, _ = checkpoint.load(path / CHECKPOINT)
    kept: dict[str, list[Row]] = {}
    for name in LOGS:
        try:
            kept[name] = [row for row in rows(path, name) if row["round"] <= state.server.round]
        except (OSError, KeyError, TypeError) as error:
            raise InputError(f"out = {str(path)!r}: {name} is damaged ({type(error).__name__}: {error})") from None
        (path / name).write_text("".join(json.dumps(row) + "\n" for row in kept[name]), encoding="utf-8")
    return config, kept[METRICS], state


def append_event(path: Path, row: Row) -> None:
    """Write an event that is none of the clusters'."""
    with (path / EVENTS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def free_path(parent: Path, name: str) -> Path:
    """Return a folder under `parent` that does not exist yet."""
    path, number = parent / name, 2
    while path.exists():
        path, number = parent / f"{name}-{number}", number + 1
    return path


def discard(path: Path) -> None:
    """Take back a folder in which no round was completed."""
    for name in (CONFIG, *LOGS):
        (path / name).unlink(missing_ok=True)
    if not any(path.iterdir()):
        path.rmdir()


def metrics_row(record: Record) -> Row:
    """Return one line of `metrics.jsonl`."""
    return {
        "round": record.round,
        "participants": record.participants,
        "clients_seen": sum(record.cluster_sizes.values()),
        "objective": record.objective,
        "val": record.val,
        "test": record.test,
        "test_per_concept": list(record.test_per_concept) or None,
        "clusters": record.clusters,
        "cluster_ids": list(record.cluster_sizes),
        "cluster_sizes": list(record.cluster_sizes.values()),
        "ari": record.quality.ari,
        "ari_affected": record.quality.ari_affected,
        "nmi": record.quality.nmi,
        "purity": record.quality.purity,
        "pairs_without_shared_class": record.without_shared_class,
        "bytes_up": sum(record.up.values()),
        "bytes_down": sum(record.down.values()),
        "bytes_up_by_part": record.up,
        "bytes_down_by_part": record.down,
        "seconds": sum(record.seconds.values()),
        "seconds_by_phase": record.seconds,
    }


def rows(path: Path, name: str) -> list[Row]:
    """Read the lines that are complete so far."""
    return read_lines(path / name)


def record_of(path: Path, row: Row, changed: bool) -> Record:
    """Return a round's record as others see it, from its line; where clusters changed, the checkpoint says how."""
    changes: tuple[Change, ...] = ()
    if changed and (path / CHECKPOINT).exists():
        state, _ = checkpoint.load(path / CHECKPOINT)
        changes = tuple(change for change in state.server.changes if change.round == row["round"])
    return Record(
        round=row["round"],
        participants=row["participants"],
        objective=row["objective"],
        val=row["val"],
        test=row["test"],
        test_per_concept=tuple(row["test_per_concept"] or ()),
        clusters=row["clusters"],
        cluster_sizes=dict(zip(row["cluster_ids"], row["cluster_sizes"], strict=True)),
        quality=Quality(row["ari"], row["ari_affected"], row["nmi"], row["purity"]),
        without_shared_class=row["pairs_without_shared_class"],
        down=row["bytes_down_by_part"],
        up=row["bytes_up_by_part"],
        seconds=row["seconds_by_phase"],
        changes=changes,
    )


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
    """Write what a round gave; return its metrics."""
    row = metrics_row(record)
    with (path / METRICS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, allow_nan=False) + "\n")
    with (path / EVENTS).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(event_row(change, client_names)) + "\n" for change in record.changes)
    if record.distances is not None:
        splits = [change for change in record.changes if isinstance(change, Split)]
        with (path / SPLITS).open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(split_row(split, record.distances, client_names)) + "\n" for split in splits)
    return row


def summarise(method: str, config: Config, concepts: int | None, metrics: Sequence[Row]) -> Row:
    """Return `summary.json`: best round, last round, and Test at the best-Val round, so that nobody is misled.

    `concepts` is how many there truly are, where somebody knows.
    """
    last = metrics[-1]
    val_best = _best(metrics, "val")
    test_best = _best(metrics, "test")
    epsilon, delta = spent(config.privacy, last["round"]) or (None, None)
    return {
        "method": method,
        "data": config.data.source,
        "partition": describe_partition(config),
        "seed": config.seed,
        "rounds": last["round"],
        "val_best": val_best and val_best["val"],
        "val_best_round": val_best and val_best["round"],
        "test_best": test_best and test_best["test"],
        "test_best_round": test_best and test_best["round"],
        "val_last": last["val"],
        "test_last": last["test"],
        "test_at_best_val": val_best and val_best["test"],
        "clusters_last": last["clusters"],
        "clusters_max": max(row["clusters"] for row in metrics),
        "clusters_true": concepts,
        "ari_last": last["ari"],
        "ari_affected_last": last["ari_affected"],
        "seconds_per_round": sum(row["seconds"] for row in metrics) / len(metrics),
        "bytes_up": sum(row["bytes_up"] for row in metrics),
        "bytes_down": sum(row["bytes_down"] for row in metrics),
        "epsilon": epsilon,
        "delta": delta,
    }


def describe_partition(config: Config) -> str:
    """Name how samples were dealt, with the readings of α and β: a result means nothing without them."""
    data = config.data
    if data.partition == "natural":
        return "natural"
    parts = {
        "lda": f"lda alpha={data.alpha} ({data.alpha_reading})",
        "classes": f"{data.classes_per_client} classes per client ({data.grouping})",
        "iid": "iid",
    }
    words = [parts[data.partition or "iid"]]
    if data.samples is not None:
        words.append(f"{data.samples} samples")
    if data.beta:
        words.append(f"{data.concepts} concepts beta={data.beta} ({data.beta_reading})")
    if data.corruptions != "none":
        words.append(f"{data.corruptions} corruptions")
    if data.noise != "none":
        words.append(f"{data.noise} noise {data.noise_rate}")
    return ", ".join(words)


def _best(metrics: Sequence[Row], key: str) -> Row | None:
    """Return the first round with the largest value, or None where nothing was measured."""
    measured = [row for row in metrics if row[key] is not None]
    return max(measured, key=lambda row: row[key]) if measured else None


def finish(
    path: Path, method: str, config: Config, federation: Federation, state: RunState, metrics: Sequence[Row]
) -> Row:
    """Write `clients.csv`, `classes.csv`, `summary.json` and the checkpoint; return the summary."""
    tables = {CLIENTS: client_rows(federation, state), CLASSES: class_rows(federation)}
    for name, table in tables.items():
        with (path / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(table)
    checkpoint.save(path / CHECKPOINT, state, federation.scaling)
    summary = summarise(method, config, None if federation.truth is None else federation.truth.concepts, metrics)
    (path / SUMMARY).write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary
