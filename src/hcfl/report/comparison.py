"""Runs side by side as people see them: a live table while they run, then the table, a picture and a page."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from hcfl.config import Config
from hcfl.errors import InputError
from hcfl.report import page, plots
from hcfl.runs import folder as run_folder
from hcfl.runs import interrupt
from hcfl.runs.progress import percent
from hcfl.studies import comparison
from hcfl.studies.comparison import COLUMNS, OUT, Cell, Comparison, Line, Point
from hcfl.studies.jobs import Task

WIDEST = 200
"""Characters: a wide table is better than one that cuts names short."""


def show(
    name: str,
    head: str,
    chosen: Sequence[tuple[Point, Config]],
    seeds: int,
    workers: int | None,
    out: Path | None,
    console: Console,
) -> Comparison:
    """Run what is missing and show the table; `name` is that of its files, `head` that of its first column."""
    out = out or OUT
    cells = comparison.cells_of(chosen, seeds, out)
    _make(out)
    tasks = [task for cell in cells for task in cell.tasks]
    waiting = sum(not task.done for task in tasks)
    console.print(f"Runs: {len(tasks)}, {waiting} of them still to do, in {out}", highlight=False, soft_wrap=True)
    with _progress(head, cells, console) as on_done, interrupt.of_many_runs():
        found = comparison.finished(cells, workers, on_done)
    table = result_table(head, found.lines)
    text = _text(table)
    if console.is_terminal:
        console.print(table)
    else:
        console.print(text, highlight=False, soft_wrap=True, end="")
    (out / f"{name}.txt").write_text(text, encoding="utf-8")
    (out / f"{name}.csv").write_text(comparison.csv_text(found.lines), encoding="utf-8")
    (out / f"{name}.tex").write_text(comparison.latex_text(found.lines, head), encoding="utf-8")
    places = [f"Table: {out / name}.txt, .csv and .tex", f"Picture: {_picture(found, out / f'{name}.png')}"]
    places.append(_page(tasks, out / f"{name}.html"))
    for line in places:
        console.print(line, highlight=False, soft_wrap=True)
    return found


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out = {str(out)!r}: cannot be written ({error.strerror})") from None


def result_table(head: str, lines: Sequence[Line]) -> Table:
    """Show mean ± std over seeds."""
    table = _empty(head, "seeds", *(column.title for column in COLUMNS))
    for line in lines:
        parts = [comparison.shown(column, line.numbers[column.key]) for column in COLUMNS]
        texts = [f"{middle} ± {spread}" if spread else middle for middle, spread in parts]
        table.add_row(line.cell.label, str(line.seeds), *texts)
    return table


def _empty(head: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(head, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _text(table: Table) -> str:
    """Return a table as plain text, as wide as it wants to be."""
    console = Console(width=WIDEST, markup=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


@contextmanager
def _progress(head: str, cells: Sequence[Cell], console: Console) -> Iterator[Callable[[Task, int, int], None]]:
    """Give a function that is told of each run that ended; a terminal shows every round."""
    if console.is_terminal:
        with Live(get_renderable=lambda: live_table(head, cells), console=console, refresh_per_second=2):
            yield lambda task, number, of: None
        return
    labels = {task: f"{cell.label}, seed {task.config.seed}" for cell in cells for task in cell.tasks}
    started = perf_counter()

    def plain(task: Task, number: int, of: int) -> None:
        summary, seconds = comparison.summary_of(task.folder), perf_counter() - started
        found = f"Val {percent(summary['val_last'])}  Test {percent(summary['test_last'])}"
        left = f", about {seconds / number * (of - number) / 60:.0f} min left" if number < of else ""
        line = f"  {number}/{of} {labels[task]}  {found}  K {summary['clusters_last']}  {seconds:.0f} s{left}"
        console.print(line, highlight=False, soft_wrap=True)

    yield plain


def live_table(head: str, cells: Sequence[Cell]) -> Table:
    """Show how far runs are, and the mean of their last rounds."""
    table = _empty(head, "runs done", "rounds", "Val (%)", "Test (%)", "K")
    for cell in cells:
        logs = [run_folder.rows(task.folder, run_folder.METRICS) for task in cell.tasks]
        rounds = sum(len(log) for log in logs)
        last = [log[-1] for log in logs if log]
        texts = []
        for column, key in ((COLUMNS[0], "val"), (COLUMNS[1], "test"), (COLUMNS[3], "clusters")):
            texts.append(comparison.shown(column, comparison.statistic([row[key] for row in last]))[0])
        done = sum(task.done for task in cell.tasks)
        wanted = sum(task.config.training.rounds for task in cell.tasks)
        table.add_row(cell.label, f"{done}/{len(cell.tasks)}", f"{rounds}/{wanted}", *texts)
    return table


def _picture(found: Comparison, path: Path) -> Path:
    points = {}
    for cell in found.cells:
        summaries = [comparison.summary_of(task.folder) for task in cell.tasks]
        measured = [row for row in summaries if row["val_last"] is not None and row["test_last"] is not None]
        points[cell.label] = [(row["val_last"], row["test_last"], row["clusters_last"]) for row in measured]
    return plots.save(plots.plot_frontier(points), path)


def _page(tasks: Sequence[Task], path: Path) -> str:
    """Write all runs as one page where they are over the same data."""
    if len({task.config.data for task in tasks}) > 1:
        return "No common report: these runs are not over the same data; hcfl report shows each of them."
    return f"Report, for a browser: {page.write([task.folder for task in tasks], path)}"
