"""`hcfl reproduce`: run a table of the paper and put our numbers beside its own."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hcfl.config import Config, assign
from hcfl.runs import atomic_file
from hcfl.runs.csv_cells import safe
from hcfl.studies import paper_tables
from hcfl.studies.jobs import Task
from hcfl.studies.paper_tables import Column, Row, Scale, Table
from hcfl.studies.seeds import Statistic, as_text, statistic, tasks_of


@dataclass(frozen=True)
class Cell:
    """One cell of a table: a run for each seed."""

    row: Row
    column: Column
    tasks: tuple[Task, ...]


def cells_of(
    table: Table, rows: Sequence[Row], seeds: int, scale: Scale, changes: Sequence[tuple[str, Any]], out: Path
) -> list[Cell]:
    """Return the cells of a table and the runs that each needs.

    Cells with the same settings share their runs, also with other tables.

    Args:
        table: the table.
        rows: which of its rows.
        seeds: how many runs a cell has, with seeds counted from 0 or from the setting `seed` in `changes`.
        scale: the paper's settings, or small ones.
        changes: settings that the user set, as (dotted path, value).
        out: the folder in which each scale has a folder of run folders.
    """
    cells = []
    for row in rows:
        for column in table.columns:
            values: dict[str, Any] = dict(paper_tables.settings_of(table, row, column, scale))
            for path, value in changes:
                assign(values, path, value)
            cells.append(Cell(row, column, tasks_of(Config.parse(values), seeds, out / scale)))
    return cells


def measured(cell: Cell, metric: str) -> list[float]:
    """Return a metric of each seed's run in the paper's units: accuracies in percent."""
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
"""Metrics that fit into a cell; the others are shown below the table."""


@dataclass(frozen=True)
class Number:
    """One number of a table: our mean and standard deviation over seeds, and the paper's number."""

    method: str
    data: str
    metric: str
    ours: float | None
    std: float | None
    paper: float | None

    def __str__(self) -> str:
        ours = as_text(None if self.ours is None else Statistic(self.ours, self.std))
        return ours if self.paper is None else f"{ours} [{self.paper:g}]"


def numbers(table: Table, cells: Sequence[Cell]) -> list[Number]:
    """Return all numbers of a table: those of its cells, then those that the paper quotes from another table."""
    found = []
    for cell in cells:
        for metric in (metric for metric in table.metrics if metric in NUMBERS):
            over_seeds = statistic(measured(cell, metric))
            ours, std = (None, None) if over_seeds is None else (over_seeds.mean, over_seeds.std)
            paper = paper_tables.paper_value(table, cell.row, cell.column, metric)
            found.append(Number(cell.row.label, cell.column.label, metric, ours, std, paper))
    for row in table.quoted:
        for column in table.columns:
            for metric in table.metrics:
                paper = paper_tables.paper_value(table, row, column, metric)
                found.append(Number(row.label, column.label, metric, None, None, paper))
    return found


def extras(table: Table, cells: Sequence[Cell]) -> list[str]:
    """Return the lines below the table, of the first seed: training samples by cluster and class, and K by round."""
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
    """Write the table as CSV, a line for each number; a number that is not known is empty."""
    from pandas import DataFrame  # takes half a second to import

    table = DataFrame([asdict(number) for number in found]).map(safe)
    atomic_file.write_text(path, table.to_csv(index=False, lineterminator="\n"))


def cuts(table: Table, scale: Scale, config: Config) -> str:
    """Return a sentence on how the scale differs from the paper's; `config` is that of one of the runs."""
    if scale == "paper":
        return "Scale: the paper's."
    full, data = table.settings, config.data
    return (
        f"Scale: small. Not {full['model']['name']}, {full['training']['rounds']} rounds and 100 clients with all "
        f"samples, but {config.model.name}, {config.training.rounds} rounds and {data.clients} clients with "
        f"{data.samples} samples at {data.resize} pixels. "
        "This shows that the table runs, and cannot confirm or contradict the paper."
    )
