"""A reproduced table as people see it: progress while it runs, ours beside the paper's when it ends."""

import os
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table as Shown

from hcfl.runs import interrupt
from hcfl.studies import paper_tables, reproduce
from hcfl.studies.paper_tables import Scale

OUT = Path("runs") / "reproduce"
"""Where runs and tables go unless told otherwise."""

WIDEST = 200
"""Characters: a wide table is better than one that cuts names short."""


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
    """Run what is missing and show the table."""
    table = paper_tables.load(name)
    chosen = paper_tables.chosen_rows(table, rows)
    cells = reproduce.cells_of(table, chosen, seeds, scale, changes, out)
    console.print(f"{table.title}. {reproduce.cuts(table, scale, cells[0].tasks[0].config)}", highlight=False)
    tasks = dict.fromkeys(task for cell in cells for task in cell.tasks)
    waiting = sum(not task.done for task in tasks)
    console.print(f"{len(tasks)} runs, {waiting} of them still to do, in {out / scale}", highlight=False)
    started = perf_counter()

    def done(task: reproduce.Task, number: int, of: int) -> None:
        seconds = perf_counter() - started
        left = f", about {seconds / number * (of - number) / 60:.0f} min left" if number < of else ""
        console.print(f"  {number}/{of} {task.folder.name}  {seconds:.0f} s{left}", highlight=False, soft_wrap=True)

    with interrupt.of_many_runs():
        reproduce.run_all(list(tasks), workers or os.cpu_count() or 1, done)
    found = reproduce.numbers(table, cells)
    reproduce.write_csv(out / f"{name}-{scale}.csv", found)
    shown = _shown(table, found)
    if not console.is_terminal:
        console = Console(file=console.file, width=WIDEST, markup=False)
    console.print(shown)
    for line in reproduce.extras(table, cells):
        console.print(line, highlight=False, soft_wrap=True)
    if table.note:
        console.print(f"Note: {table.note}", highlight=False)
    console.print(f"Table: {out / f'{name}-{scale}.csv'}", highlight=False, soft_wrap=True)
    return found


def _shown(table: paper_tables.Table, found: Sequence[reproduce.Number]) -> Shown:
    shown = Shown(title=f"{table.title}: ours [the paper's]", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    metrics = list(dict.fromkeys(number.metric for number in found))
    for column in ("method", "data"):
        shown.add_column(column, no_wrap=True)
    for metric in metrics:
        shown.add_column(metric.replace("_", " "), justify="right", no_wrap=True)
    lines: dict[tuple[str, str], list[str]] = {}
    for number in found:
        lines.setdefault((number.method, number.data), []).append(str(number))
    for (method, data), texts in lines.items():
        shown.add_row(method, data, *texts)
    return shown


def list_tables(console: Console) -> None:
    """Show which tables there are."""
    shown = Shown(title="Tables of the paper", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("table", "what", "rows × columns"):
        shown.add_column(column)
    for name in paper_tables.names():
        table = paper_tables.load(name)
        shown.add_row(name, table.title, f"{len(table.rows)} × {len(table.columns)}")
    console.print(shown)
