"""`hcfl compare` and `hcfl sweep`: several configurations over several seeds as one table, mean ± std."""

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hcfl import launch
from hcfl.config import Config, from_flat
from hcfl.core.record import Row
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import Builder, Pair
from hcfl.privacy.rules import settled
from hcfl.runs import folder as run_folder
from hcfl.runs.csv_cells import safe
from hcfl.runs.prepare import method_of
from hcfl.runs.run import Run
from hcfl.studies.jobs import Task
from hcfl.studies.seeds import OnDone, Statistic, as_texts, run_missing, statistic, tasks_of
from hcfl.studies.verdict import ahead, with_personal

if TYPE_CHECKING:
    from pandas import DataFrame

OUT = Path("runs") / "compare"
"""The default folder for runs and tables."""

Point = tuple[tuple[str, str], ...]
"""What the user varied in one row of a sweep: pairs of a setting and its value, as they were typed."""


@dataclass(frozen=True)
class Cell:
    """One row of the table: a method, or a point of a grid, with a run for each seed."""

    method: str
    point: Point
    tasks: tuple[Task, ...]

    @property
    def label(self) -> str:
        """The name of the row in tables and pictures."""
        return ", ".join(value if name == "method" else f"{name}={value}" for name, value in self.point) or self.method


@dataclass(frozen=True)
class Column:
    """One column of the table: a number of `summary.json`, its title and format, and which value is best."""

    key: str
    title: str
    decimals: int
    best: Literal["largest", "smallest"] | None
    scale: float = 1.0
    """What the number is multiplied by in tables, such as 100 for percent."""


COLUMNS = (
    Column("val_last", "Val (%)", 1, "largest", 100),
    Column("test_last", "Test (%)", 1, "largest", 100),
    Column("test_at_best_val", "Test at best Val (%)", 1, "largest", 100),
    Column("clusters_last", "K", 1, None),
    Column("val_personal_last", "personal Val (%)", 1, "largest", 100),
    Column("worst_tenth", "worst 10% (%)", 1, "largest", 100),
    Column("spread", "spread (%)", 1, "smallest", 100),
    Column("worse_than_local", "below local (%)", 1, "smallest", 100),
    Column("worse_than_fedavg", "below fedavg (%)", 1, "smallest", 100),
    Column("ari_last", "ARI", 2, "largest"),
    Column("mb_per_client_round", "MB per client and round", 3, "smallest"),
    Column("seconds_per_round", "s per round", 2, "smallest"),
)

MARGIN = 0.02
"""A client is worse off where its accuracy is lower by more than this."""


@dataclass(frozen=True)
class Line:
    """A row of the table with its numbers, by the key of their column; None where no run knows the number."""

    cell: Cell
    seeds: int
    numbers: dict[str, Statistic | None]


def cells_of(chosen: Sequence[tuple[Point, Config]], seeds: int, out: Path) -> list[Cell]:
    """Return the rows of a table and the runs that each needs; settings that no run accepts are refused here.

    Args:
        chosen: the configuration of each row, and what the user varied in it.
        seeds: how many runs each row has, with seeds counted from its configuration's own.
        out: the folder of all run folders.
    """
    cells: list[Cell] = []
    for point, config in chosen:
        settled(config, method_of(config.method))
        cell = Cell(config.method.name, point, tasks_of(config, seeds, out, keep=True))
        if any(cell.tasks[0].folder == other.tasks[0].folder for other in cells):
            raise InputError(f"{cell.label}: is given twice; each row of a table must be a different run")
        cells.append(cell)
    return cells


def shown_columns(lines: Sequence[Line]) -> list[Column]:
    """Return the columns in which some row has a number."""
    return [column for column in COLUMNS if any(line.numbers[column.key] is not None for line in lines)]


def accuracy_of_clients(folder: Path, personal: bool = True) -> dict[str, float]:
    """Return the accuracy of each client by its name, with its personal part where it has one and `personal` is set."""
    with (folder / run_folder.CLIENTS).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = {row["client"]: (row.get("accuracy_personal") if personal else "") or row.get("accuracy") for row in rows}
    return {name: float(value) for name, value in found.items() if value}


def share_worse_off(mine: Mapping[str, float], theirs: Mapping[str, float]) -> float | None:
    """Return the share of clients whose accuracy is lower than in another run by more than `MARGIN`.

    >>> share_worse_off({"a": 0.9, "b": 0.5}, {"a": 0.91, "b": 0.7})
    0.5
    """
    both = mine.keys() & theirs.keys()
    return sum(mine[name] < theirs[name] - MARGIN for name in both) / len(both) if both else None


def fairness(summary: Row) -> Row:
    """Return `worst_tenth` and `spread` over clients, with personal parts where there are some."""
    own = "val_personal" if summary.get("val_personal_last") is not None else "val"
    return {name: summary.get(f"{own}_{name}") for name in ("worst_tenth", "spread")}


def summary_of(folder: Path) -> Row:
    """Return the summary of a run that ended, with its `fairness`.

    `mb_per_client_round` is what a client sends and receives in a round.
    """
    try:
        summary: Row = json.loads((folder / run_folder.SUMMARY).read_text(encoding="utf-8"))
        participations = sum(row["participants"] for row in run_folder.rows(folder, run_folder.METRICS))
        megabytes = (summary["bytes_up"] + summary["bytes_down"]) / 1e6
        return {**summary, "mb_per_client_round": megabytes / participations, **fairness(summary)}
    except (OSError, ValueError, KeyError, ArithmeticError) as error:
        reason = f"is damaged ({type(error).__name__}: {error}); delete this folder to start the run again"
        raise InputError(f"run = {str(folder)!r}: {reason}") from None


def line_of(cell: Cell, summaries: Sequence[Row]) -> Line:
    """Return a row of the table from the summaries of its runs."""
    numbers = {column.key: statistic([summary.get(column.key) for summary in summaries]) for column in COLUMNS}
    return Line(cell, len(summaries), numbers)


def is_ahead(column: Column, line: Line, lines: Sequence[Line]) -> bool:
    """Whether a row's number is better than that of all other rows, beyond the spread over seeds."""
    number = line.numbers[column.key]
    others = [other.numbers[column.key] for other in lines if other is not line]
    known = [other for other in others if other is not None]
    if column.best is None or number is None or not known:
        return False
    best = column.best
    return all(ahead(number, other, best) for other in known)


def frame_of(lines: Sequence[Line]) -> "DataFrame":
    """Return the table with unrounded numbers: accuracies as shares, NaN where no run knows the number.

    Its index is the method and, for a sweep, each setting that was varied.
    """
    from pandas import DataFrame  # takes half a second to import

    rows = []
    for line in lines:
        row = {"method": line.cell.method, **dict(line.cell.point), "seeds": line.seeds}
        for key, number in line.numbers.items():
            row[f"{key}_mean"] = float("nan") if number is None else number.mean
            row[f"{key}_std"] = float("nan") if number is None or number.std is None else number.std
        rows.append(row)
    frame = DataFrame(rows)
    return frame.set_index(list(frame.columns[: frame.columns.get_loc("seeds")]))


def csv_text(lines: Sequence[Line]) -> str:
    """Return the unrounded table as CSV."""
    return frame_of(lines).reset_index().map(safe).to_csv(index=False, lineterminator="\n")


def latex_text(lines: Sequence[Line], head: str) -> str:
    """Return the table as LaTeX (with the package booktabs); bold is what is ahead beyond the spread over seeds.

    `head` is the title of the first column.
    """
    from pandas import DataFrame

    columns, rows = shown_columns(lines), []
    for line in lines:
        texts = [line.cell.label, str(line.seeds)]
        for column in columns:
            middle, spread = as_texts(line.numbers[column.key], column.decimals, column.scale)
            text = rf"\textbf{{{middle}}}" if is_ahead(column, line, lines) else middle.replace("–", "--")
            texts.append(rf"{text} $\pm$ {spread}" if spread else text)
        rows.append(texts)
    table = DataFrame(rows, columns=[head, "seeds", *(column.title for column in columns)])
    style = table.style.hide(axis="index").format(escape="latex", subset=[head]).format_index(escape="latex", axis=1)
    return style.to_latex(hrules=True, column_format="l" + "r" * (1 + len(columns)))


@dataclass(frozen=True)
class Comparison:
    """Runs that ended, side by side."""

    cells: tuple[Cell, ...]
    played: Mapping[str, list[Run]] | None = field(default=None, repr=False)
    """The runs, where they were played in this process."""

    @cached_property
    def lines(self) -> list[Line]:
        """The rows of the table."""
        lines = [
            line_of(cell, [self._summary(cell, number) for number in range(len(cell.tasks))]) for cell in self.cells
        ]
        numbers = with_personal([line.numbers for line in lines])
        return [replace(line, numbers=filled) for line, filled in zip(lines, numbers, strict=True)]

    def _summary(self, cell: Cell, number: int) -> Row:
        """Return the summary of one seed's run, with the share of clients that a baseline serves better."""
        folder = cell.tasks[number].folder
        found = summary_of(folder)
        for name in ("local", "fedavg"):
            rival = next((other for other in self.cells if (other.method, other.point) == (name, cell.point)), None)
            if rival is not None and rival is not cell:
                theirs = accuracy_of_clients(rival.tasks[number].folder, personal=False)
                found[f"worse_than_{name}"] = share_worse_off(accuracy_of_clients(folder), theirs)
        return found

    @cached_property
    def table(self) -> "DataFrame":
        """Mean and deviation over seeds, a row for each method or point of the grid."""
        return frame_of(self.lines)

    @cached_property
    def runs(self) -> "dict[str, list[Run]]":
        """The runs of each row, one for each seed."""
        from hcfl.runs.load import load

        if self.played is not None:
            return dict(self.played)
        return {
            cell.label: [load(task.folder, allow_code=task.names_code) for task in cell.tasks] for cell in self.cells
        }


def finished(cells: Sequence[Cell], workers: int | None, on_done: OnDone) -> Comparison:
    """Run what has no result yet, `workers` runs at a time (None: one for each core)."""
    run_missing((task for cell in cells for task in cell.tasks), workers, on_done)
    return Comparison(tuple(cells))


Wanted = Sequence[str | Method] | Mapping[str, Mapping[str, Any]]
"""Methods to compare: names or objects, or names with settings of their own."""

WITH_SETTINGS = re.compile(r"(?P<name>.+)\((?P<settings>[^()]*=[^()]*)\)")


def with_settings(text: str) -> tuple[str, dict[str, str]]:
    """Read a method with settings of its own, as the command line takes it.

    >>> with_settings("ifca(clusters=2)"), with_settings("hcfl+(fedrc)")
    (('ifca', {'clusters': '2'}), ('hcfl+(fedrc)', {}))
    """
    found = WITH_SETTINGS.fullmatch(text.strip())
    if found is None:
        return text, {}
    pairs = [pair.partition("=") for pair in found["settings"].split(",")]
    return found["name"], {name.strip().replace("-", "_"): value.strip() for name, _, value in pairs}


def compare(
    methods: Wanted,
    data: str | Path | Federation = "digits",
    model: str | Pair | Builder = "auto",
    *,
    seeds: int = 1,
    out: str | Path = OUT,
    workers: int | None = None,
    **settings: Any,
) -> Comparison:
    """Run methods over the same settings and seeds; runs that already have a result in `out` are not repeated.

    Each run has a process of its own, so a script calls this below `if __name__ == "__main__":`. Where a federation, a
    model or a method is a Python object, runs are played here, one after another, and always anew.

    Args:
        methods: names as `hcfl methods` lists them, `Method` objects, or `{"ifca": {"clusters": 2}}`.
        data: a source's name, a file, or a `Federation`.
        model: a name, an (extractor, head) pair of modules, or a function that builds one.
        seeds: how many runs each method has, with seeds counted from the setting `seed`.
        out: the folder of all run folders.
        workers: how many runs at a time (default: one for each core).
        settings: the settings of `hcfl.run`.

    Returns:
        A `Comparison`: `.table` is a DataFrame with mean and deviation, `.runs` holds the runs of each method.

    >>> found = compare(["fedavg", "hcfl+(fedrc)"], seeds=3, rounds=30)  # doctest: +SKIP
    >>> found.table["test_last_mean"]  # doctest: +SKIP
    """
    if isinstance(methods, str) or not methods:
        raise InputError(f"methods = {methods!r}: must be a list of at least one name")
    for name, number in (("seeds", seeds), ("workers", workers)):
        if number is not None and (not isinstance(number, int) or number < 1):
            raise InputError(f"{name} = {number!r}: must be a whole number from 1 on")
    own = dict(methods) if isinstance(methods, Mapping) else {}
    wanted = list(methods)
    if any(isinstance(part, Federation | Method) for part in (data, *wanted)) or not isinstance(model, str):
        return _played_here(wanted, own, data, model, seeds, Path(out), settings)
    named = {"data": str(data), "model": model, **settings}
    chosen: list[tuple[Point, Config]] = []
    for method in wanted:
        mine = dict(own.get(str(method), {}))
        point = ("method", f"{method}({', '.join(f'{k}={v}' for k, v in mine.items())})")
        chosen.append(((point,) if mine else (), from_flat(method=method, **{**named, **mine})))
    return finished(cells_of(chosen, seeds, Path(out)), workers, lambda task, number, of: None)


def _played_here(
    methods: Sequence[str | Method],
    own: Mapping[str, Mapping[str, Any]],
    data: str | Path | Federation,
    model: str | Pair | Builder,
    seeds: int,
    out: Path,
    settings: Mapping[str, Any],
) -> Comparison:
    """Play runs of Python objects in this process: other processes could not have them."""
    cells, first, runs = [], int(settings.get("seed", 0)), dict[str, list[Run]]()
    for method in methods:
        mine = {**settings, **own.get(method, {})} if isinstance(method, str) else dict(settings)
        label = method if isinstance(method, str) else method.name
        tasks = []
        for seed in range(first, first + seeds):
            folder = run_folder.free_path(out, f"{label}-seed{seed}".replace("/", "-"))
            played = launch.run(method, data, model, folder, **{**mine, "seed": seed})
            tasks.append(Task(played.config, folder, keep=True))
            runs.setdefault(label, []).append(played)
        cells.append(Cell(label, (), tuple(tasks)))
    return Comparison(tuple(cells), runs)
