"""The output of `hcfl compare` and `hcfl sweep`: a live table during the runs, then a table, a picture and a page."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hcfl.config import Config
from hcfl.report import page, plots
from hcfl.report.many_runs import (
    as_text,
    empty_table,
    make_folder,
    print_line,
    print_table,
    progress_lines,
    run_and_tell,
)
from hcfl.runs import atomic_file
from hcfl.runs import folder as run_folder
from hcfl.runs.defaults import rounds_of
from hcfl.runs.progress import percent
from hcfl.studies import comparison
from hcfl.studies.comparison import COLUMNS, OUT, Cell, Comparison, Line, Point
from hcfl.studies.jobs import Task
from hcfl.studies.seeds import OnDone, as_texts, statistic
from hcfl.studies.seeds import as_text as with_deviation
from hcfl.studies.verdict import verdict


def show(
    name: str,
    head: str,
    chosen: Sequence[tuple[Point, Config]],
    seeds: int,
    workers: int | None,
    out: Path | None,
    console: Console,
) -> Comparison:
    """Run what has no result yet, show the table, and write it with a picture and a page.

    Args:
        name: the name of the files, without suffix.
        head: the title of the table's first column.
        chosen: the configuration of each row, and what the user varied in it.
        seeds: how many runs each row has.
        workers: how many runs at a time (None: one for each core).
        out: the folder of runs and files (None: `runs/compare`).
        console: where the table goes.
    """
    out = out or OUT
    cells = comparison.cells_of(chosen, seeds, out)
    make_folder(out)
    tasks = [task for cell in cells for task in cell.tasks]
    run_and_tell(tasks, out, workers, _progress(head, cells, console), console)
    found = Comparison(tuple(cells))
    table = result_table(head, found.lines)
    print_table(table, console)
    print_line(LEGEND, console)
    if any(line.numbers["val_personal_last"] is not None for line in found.lines):
        print_line(PERSONAL, console)
    labels = [line.cell.label for line in found.lines]
    if told := verdict(labels, [line.numbers for line in found.lines]):
        print_line(told, console)
    atomic_file.write_text(out / f"{name}.txt", as_text(table))
    atomic_file.write_text(out / f"{name}.csv", comparison.csv_text(found.lines))
    atomic_file.write_text(out / f"{name}.tex", comparison.latex_text(found.lines, head))
    print_line(f"Table: {out / name}.txt, .csv and .tex", console)
    print_line(f"Picture: {_picture(found, out / f'{name}.png')}", console)
    print_line(_page(cells, out / f"{name}.html"), console)
    return found


LEGEND = (
    "K: clusters that have clients. ARI: adjusted Rand index, the agreement of clusters with the true groups; 1 is "
    "perfect."
)

PERSONAL = "Personal Val: with each client's own part; a row without personal parts has its Val there."


def result_table(head: str, lines: Sequence[Line]) -> Table:
    """Return the table of mean ± deviation over seeds."""
    columns = comparison.shown_columns(lines)
    table = empty_table([head, "seeds", *(column.title for column in columns)])
    for line in lines:
        texts = [with_deviation(line.numbers[column.key], column.decimals, column.scale) for column in columns]
        table.add_row(line.cell.label, str(line.seeds), *texts)
    return table


@contextmanager
def _progress(head: str, cells: Sequence[Cell], console: Console) -> Iterator[OnDone]:
    """Give the function that is called after each run; a terminal shows a table of every round instead."""
    if console.is_terminal:
        with Live(get_renderable=lambda: live_table(head, cells), console=console, refresh_per_second=2):
            yield lambda task, number, of: None
        return
    labels = {task: f"{cell.label}, seed {task.config.seed}" for cell in cells for task in cell.tasks}

    def describe(task: Task) -> str:
        summary = comparison.summary_of(task.folder)
        own = summary.get("val_personal_last")
        personal = "" if own is None else f"  personal Val {percent(own)}"
        accuracy = f"Val {percent(summary['val_last'])}{personal}  Test {percent(summary['test_last'])}"
        return f"{labels[task]}  {accuracy}  K {summary['clusters_last']}"

    with progress_lines(describe, console) as on_done:
        yield on_done


def live_table(head: str, cells: Sequence[Cell]) -> Table:
    """Return a table of how many rounds are done, and of the mean over seeds in the newest round of each run."""
    table = empty_table([head, "runs done", "rounds", "Val (%)", "Test (%)", "K"])
    for cell in cells:
        logs = [run_folder.rows(task.folder, run_folder.METRICS) for task in cell.tasks]
        rounds = sum(len(log) for log in logs)
        newest = [log[-1] for log in logs if log]
        texts = []
        for column, key in ((COLUMNS[0], "val"), (COLUMNS[1], "test"), (COLUMNS[3], "clusters")):
            number = statistic([row[key] for row in newest])
            texts.append(as_texts(number, column.decimals, column.scale)[0])
        done = sum(task.done for task in cell.tasks)
        wanted = sum(rounds_of(task.config.training, task.config.data.steps)[0] for task in cell.tasks)
        table.add_row(cell.label, f"{done}/{len(cell.tasks)}", f"{rounds}/{wanted}", *texts)
    return table


def _picture(found: Comparison, path: Path) -> Path:
    points, personal = {}, {}
    for cell in found.cells:
        summaries = [comparison.summary_of(task.folder) for task in cell.tasks]
        measured = [row for row in summaries if row["val_last"] is not None and row["test_last"] is not None]
        points[cell.label] = [(row["val_last"], row["test_last"], row["clusters_last"]) for row in measured]
        own = statistic([row.get("val_personal_last") for row in measured])
        if own is not None:
            personal[cell.label] = own.mean
    return plots.save(plots.plot_frontier(points, personal), path)


def _page(cells: Sequence[Cell], path: Path) -> str:
    """Write one page of all runs where they are over the same data; return the line that says so."""
    tasks = [task for cell in cells for task in cell.tasks]
    if len({task.config.data for task in tasks}) > 1:
        return "No common report: these runs are not over the same data; hcfl report shows each of them."
    labels = [cell.label for cell in cells for _ in cell.tasks]
    points = {cell.label: cell.point for cell in cells if ("method", cell.label) not in cell.point}
    return f"Report, for a browser: {page.write([task.folder for task in tasks], path, labels, points)}"
