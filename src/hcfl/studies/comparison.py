"""`hcfl compare` and `hcfl sweep`: several configurations over several seeds as one table, mean ± std."""

import csv
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Literal

from hcfl.config import Config, from_flat
from hcfl.core.record import Row
from hcfl.errors import InputError
from hcfl.privacy.rules import settled
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import method_of
from hcfl.studies.jobs import Task, task_of
from hcfl.studies.pool import run_all

if TYPE_CHECKING:
    from pandas import DataFrame

    from hcfl.runs.run import Run

OUT = Path("runs") / "compare"
"""Where runs and tables go unless told otherwise."""

Point = tuple[tuple[str, str], ...]
"""Settings that tell one row of a sweep from the others, as they were typed."""


@dataclass(frozen=True)
class Cell:
    """One row of the table: a method, or a point of a grid, with a run for each seed."""

    method: str
    point: Point
    tasks: tuple[Task, ...]

    @property
    def label(self) -> str:
        """What people call it."""
        return ", ".join(f"{name}={value}" for name, value in self.point) or self.method


@dataclass(frozen=True)
class Column:
    """A number of the table: how it is called, shown, and which is best."""

    key: str
    title: str
    decimals: int
    best: Literal["largest", "smallest"] | None
    scale: float = 1.0
    """What it is multiplied by where people see it."""


COLUMNS = (
    Column("val_last", "Val (%)", 1, "largest", 100),
    Column("test_last", "Test (%)", 1, "largest", 100),
    Column("test_at_best_val", "Test at best Val (%)", 1, "largest", 100),
    Column("clusters_last", "K", 1, None),
    Column("ari_last", "ARI", 2, "largest"),
    Column("mb_per_client_round", "MB per client and round", 3, "smallest"),
    Column("seconds_per_round", "s per round", 2, "smallest"),
)


@dataclass(frozen=True)
class Statistic:
    """A number over seeds."""

    mean: float
    std: float | None
    """The sample's deviation; None for a single seed."""


@dataclass(frozen=True)
class Line:
    """A row of the table with its numbers: by column, None where nothing is known."""

    cell: Cell
    seeds: int
    numbers: dict[str, Statistic | None]


def cells_of(chosen: Sequence[tuple[Point, Config]], seeds: int, out: Path) -> list[Cell]:
    """Return what must run: seeds count from each configuration's own. What no run could do is refused here."""
    cells: list[Cell] = []
    for point, config in chosen:
        settled(config, method_of(config.method))
        each = (config.model_copy(update={"seed": config.seed + number}) for number in range(seeds))
        cell = Cell(config.method.name, point, tuple(task_of(one, out, keep=True) for one in each))
        if any(cell.tasks[0].folder == other.tasks[0].folder for other in cells):
            raise InputError(f"{cell.label}: is there twice; each row of a table must be another run")
        cells.append(cell)
    return cells


def summary_of(folder: Path) -> Row:
    """Return the summary of a run that ended, with what a client sends and receives in a round."""
    try:
        summary: Row = json.loads((folder / run_folder.SUMMARY).read_text(encoding="utf-8"))
        taking_part = sum(row["participants"] for row in run_folder.rows(folder, run_folder.METRICS))
        megabytes = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
        return {**summary, "mb_per_client_round": megabytes / taking_part}
    except (OSError, ValueError, KeyError, ArithmeticError) as error:
        reason = f"is damaged ({type(error).__name__}: {error}); without this folder the run is begun anew"
        raise InputError(f"run = {str(folder)!r}: {reason}") from None


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Return mean and deviation of what is known."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else None)


def line_of(cell: Cell, summaries: Sequence[Row]) -> Line:
    """Return a row of the table from the summaries of its runs."""
    numbers = {column.key: statistic([summary[column.key] for summary in summaries]) for column in COLUMNS}
    return Line(cell, len(summaries), numbers)


def shown(column: Column, number: Statistic | None) -> tuple[str, str]:
    """Return mean and deviation for people; the deviation is empty for a single seed."""
    if number is None:
        return "–", ""
    spread = "" if number.std is None else f"{column.scale * number.std:.{column.decimals}f}"
    return f"{column.scale * number.mean:.{column.decimals}f}", spread


def best_of(column: Column, lines: Sequence[Line]) -> set[str]:
    """Return the mean, as it is shown, that is the best of its column; nothing where no line wins."""
    means = [number.mean for line in lines if (number := line.numbers[column.key]) is not None]
    if column.best is None or len(means) < 2:
        return set()
    return {shown(column, Statistic((max if column.best == "largest" else min)(means), None))[0]}


def csv_text(lines: Sequence[Line]) -> str:
    """Return the table for other programs: accuracies as shares, everything unrounded."""
    file = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name, _ in line.cell.point))
    numbers = [f"{column.key}_{part}" for column in COLUMNS for part in ("mean", "std")]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["method", *names, "seeds", *numbers])
    for line in lines:
        point = dict(line.cell.point)
        parts = [line.numbers[column.key] for column in COLUMNS]
        values = [value for part in parts for value in (("", "") if part is None else (part.mean, part.std))]
        writer.writerow([line.cell.method, *(point[name] for name in names), line.seeds, *values])
    return file.getvalue()


SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
"""Characters that mean something to LaTeX, and how they are written."""


def latex(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(SPECIAL.get(character, character) for character in text)


def latex_text(lines: Sequence[Line], head: str) -> str:
    """Return the table for a paper (it needs the package booktabs), the best mean of each column in bold."""
    rows = [" & ".join(latex(title) for title in (head, "seeds", *(column.title for column in COLUMNS)))]
    for line in lines:
        texts = [latex(line.cell.label), str(line.seeds)]
        for column in COLUMNS:
            middle, spread = shown(column, line.numbers[column.key])
            text = rf"\textbf{{{middle}}}" if middle in best_of(column, lines) else latex(middle)
            texts.append(rf"{text} $\pm$ {spread}" if spread else text)
        rows.append(" & ".join(texts))
    header, *body = (rf"{row} \\" for row in rows)
    alignment = "l" + "r" * (1 + len(COLUMNS))
    first, last = rf"\begin{{tabular}}{{{alignment}}}", r"\end{tabular}"
    return "\n".join([first, r"\toprule", header, r"\midrule", *body, r"\bottomrule", last]) + "\n"


@dataclass(frozen=True)
class Comparison:
    """Runs that ended, side by side."""

    cells: tuple[Cell, ...]

    @cached_property
    def lines(self) -> list[Line]:
        """The rows of the table."""
        return [line_of(cell, [summary_of(task.folder) for task in cell.tasks]) for cell in self.cells]

    @cached_property
    def table(self) -> "DataFrame":
        """Mean and deviation over seeds, a row for each method or point of the grid."""
        from pandas import read_csv  # takes half a second: only for those who look

        table = read_csv(io.StringIO(csv_text(self.lines)))
        return table.set_index(list(table.columns[: table.columns.get_loc("seeds")]))

    @cached_property
    def runs(self) -> "dict[str, list[Run]]":
        """The runs of each row, one for each seed."""
        from hcfl.runs.load import load

        return {
            cell.label: [load(task.folder, allow_code=task.names_code) for task in cell.tasks] for cell in self.cells
        }


def finished(cells: Sequence[Cell], workers: int | None, on_done: Callable[[Task, int, int], None]) -> Comparison:
    """Run what is not there yet, side by side where cores allow."""
    run_all([task for cell in cells for task in cell.tasks], workers or os.cpu_count() or 1, on_done)
    return Comparison(tuple(cells))


def compare(
    methods: Sequence[str], *, seeds: int = 1, out: str | Path = OUT, workers: int | None = None, **settings: Any
) -> Comparison:
    """Run methods over the same settings and seeds; what is already in `out` is not run again.

    `settings` are those of `hcfl.run`. Runs have processes of their own: a script calls this below
    `if __name__ == "__main__":`.
    """
    if isinstance(methods, str) or not methods:
        raise InputError(f"methods = {methods!r}: must be a list with a name at least")
    for name, number in (("seeds", seeds), ("workers", workers)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise InputError(f"{name} = {number!r}: must be a whole number from 1 on")
    chosen: list[tuple[Point, Config]] = [((), from_flat(method=name, **settings)) for name in methods]
    return finished(cells_of(chosen, seeds, Path(out)), workers, lambda task, number, of: None)
