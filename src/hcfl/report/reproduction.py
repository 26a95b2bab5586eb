"""The output of `hcfl reproduce`: a line for each run that ended, then our table beside the paper's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable

from hcfl.report.many_runs import empty_table, make_folder, print_line, print_table, progress_lines, run_and_tell
from hcfl.studies import paper_tables, reproduce
from hcfl.studies.paper_tables import Scale

OUT = Path("runs") / "reproduce"
"""The default folder for runs and tables."""


def show(
    name: str,
    rows: list[str],
    seeds: int,
    scale: Scale,
    workers: int | None,
    changes: Sequence[tuple[str, Any]],
    out: Path,
    console: Console,
) -> list[reproduce.Number]:
    """Run what has no result yet, show the table, and write it as CSV.

    Args:
        name: the name of the table, one of `paper_tables.names()`.
        rows: patterns of the rows to run; all where there are none.
        seeds: how many runs each cell has.
        scale: the paper's settings, or small ones.
        workers: how many runs at a time (None: one for each core).
        changes: settings that the user set, as (dotted path, value).
        out: the folder of runs and tables.
        console: where the table goes.
    """
    table = paper_tables.load(name)
    chosen = paper_tables.chosen_rows(table, rows)
    cells = reproduce.cells_of(table, chosen, seeds, scale, changes, out)
    make_folder(out)
    console.print(f"{table.title}. {reproduce.cuts(table, scale, cells[0].tasks[0].config)}", highlight=False)
    tasks = list(dict.fromkeys(task for cell in cells for task in cell.tasks))
    run_and_tell(tasks, out / scale, workers, progress_lines(lambda task: task.folder.name, console), console)
    found = reproduce.numbers(table, cells)
    reproduce.write_csv(out / f"{name}-{scale}.csv", found)
    print_table(result_table(table, found), console)
    for line in reproduce.extras(table, cells):
        print_line(line, console)
    if table.note:
        console.print(f"Note: {table.note}", highlight=False)
    print_line(f"Table: {out / f'{name}-{scale}.csv'}", console)
    return found


def result_table(table: paper_tables.Table, found: Sequence[reproduce.Number]) -> RichTable:
    """Return the table for the terminal: mean ± deviation over our seeds, the paper's number in brackets."""
    metrics = dict.fromkeys(number.metric.replace("_", " ") for number in found)
    shown = empty_table(["method", "data", *metrics], f"{table.title}: ours [the paper's]", names=2)
    rows: dict[tuple[str, str], list[str]] = {}
    for number in found:
        rows.setdefault((number.method, number.data), []).append(str(number))
    for names, texts in rows.items():
        shown.add_row(*names, *texts)
    return shown


def list_tables(console: Console) -> None:
    """Show the tables that can be reproduced."""
    shown = RichTable(
        "table", "what", "rows × columns", title="Tables of the paper", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in paper_tables.names():
        table = paper_tables.load(name)
        shown.add_row(name, table.title, f"{len(table.rows)} × {len(table.columns)}")
    console.print(shown)
