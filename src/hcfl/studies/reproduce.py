"""`hcfl reproduce`: run a table of the paper, ours beside theirs; what is already there is not run again."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from hcfl.config import Config, assign
from hcfl.studies import paper_tables
from hcfl.studies.jobs import RESULT, Task, run, task_of
from hcfl.studies.paper_tables import Column, Row, Scale, Table
from hcfl.studies.pool import run_all, run_apart

__all__ = [
    "RESULT",
    "Cell",
    "Number",
    "Task",
    "cells_of",
    "cuts",
    "extras",
    "measured",
    "numbers",
    "run",
    "run_all",
    "run_apart",
    "task_of",
    "write_csv",
]


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a run for each seed."""

    row: Row
    column: Column
    tasks: tuple[Task, ...]


def cells_of(
    table: Table, rows: Sequence[Row], seeds: int, scale: Scale, changes: Sequence[tuple[str, Any]], out: Path
) -> list[Cell]:
    """Return what must run. Cells with the same settings, also of other tables, share their runs."""
    cells = []
    for row in rows:
        for column in table.columns:
            tasks = []
            for seed in range(seeds):
                values: dict[str, Any] = {**paper_tables.settings_of(table, row, column, scale), "seed": seed}
                for path, value in changes:
                    assign(values, path, value)
                tasks.append(task_of(Config.parse(values), out / scale))
            cells.append(Cell(row, column, tuple(tasks)))
    return cells


def measured(cell: Cell, metric: str) -> list[float]:
    """Return one number for each seed, as the paper would print it: accuracies in percent."""
    return [_measure(task.result(), cell.row.at, metric) for task in cell.tasks]


def _measure(result: dict[str, Any], at: str, metric: str) -> float:
    if metric == "clusters":
        return float(result["clusters"][-1])
    if metric == "max_clusters":
        return float(max(result["clusters"]))
    if metric in ("val", "test"):
        values = [-1.0 if value is None else value for value in result[metric]]
        by = values if at == "best" else [-1.0 if v is None else v for v in result[at.removeprefix("best-")]]
        return 100 * values[max(range(len(by)), key=lambda round_: by[round_])]
    return float(result[metric])


NUMBERS = ("val", "test", "clusters", "max_clusters", "memory_mb", "seconds_per_round")
"""Metrics that are a number; others are shown below the table."""


@dataclass(frozen=True)
class Number:
    """One number of a table: ours over seeds, and the paper's."""

    method: str
    data: str
    metric: str
    ours: float | None
    std: float | None
    paper: float | None

    def __str__(self) -> str:
        ours = "–" if self.ours is None else f"{self.ours:.1f}"
        spread = "" if self.std is None else f" ± {self.std:.1f}"
        paper = "" if self.paper is None else f" [{self.paper:g}]"
        return f"{ours}{spread}{paper}"


def numbers(table: Table, cells: Sequence[Cell]) -> list[Number]:
    """Return all numbers of a table."""
    found = []
    for cell in cells:
        for metric in (metric for metric in table.metrics if metric in NUMBERS):
            values = measured(cell, metric)
            std = stdev(values) if len(values) > 1 else None
            paper = paper_tables.paper_value(table, cell.row, cell.column, metric)
            found.append(Number(cell.row.label, cell.column.label, metric, mean(values), std, paper))
    for row in table.quoted:
        for column in table.columns:
            for metric in table.metrics:
                paper = paper_tables.paper_value(table, row, column, metric)
                found.append(Number(row.label, column.label, metric, None, None, paper))
    return found


def extras(table: Table, cells: Sequence[Cell]) -> list[str]:
    """Return what does not fit a cell: classes by cluster, and K over rounds, of the first seed."""
    texts = []
    for cell in cells:
        result = cell.tasks[0].result()
        if "class_table" in table.metrics:
            for whose, counts in (("ours", result["class_table"]), ("the paper's", paper_tables.paper_class_table())):
                texts.append(f"{cell.row.label}, {cell.column.label}: training samples by cluster and class, {whose}")
                texts += ["  " + " ".join(f"{count:5d}" for count in line) for line in counts]
        if "curve" in table.metrics:
            texts.append(f"{cell.row.label}: K by round: {' '.join(map(str, result['clusters']))}")
    return texts


def write_csv(path: Path, found: Sequence[Number]) -> None:
    """Write the table for other programs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Number)])
        writer.writeheader()
        writer.writerows(asdict(number) for number in found)


def cuts(table: Table, scale: Scale, config: Config) -> str:
    """Say what a small scale leaves out, from the configuration of one of its runs."""
    if scale == "paper":
        return "Scale: the paper's."
    full, data = table.settings, config.data
    return (
        f"Scale: small. Not {full['model']['name']}, {full['training']['rounds']} rounds and 100 clients with all "
        f"samples, but {config.model.name}, {config.training.rounds} rounds and {data.clients} clients with "
        f"{data.samples} samples at {data.resize} pixels. "
        "This shows that the table runs, and cannot confirm or contradict the paper."
    )
