"""What the commands that start many runs show: how many there are, each run that ends, and the table."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import perf_counter

from rich import box
from rich.console import Console
from rich.table import Table

from hcfl.errors import InputError
from hcfl.runs import interrupt
from hcfl.studies.jobs import Task
from hcfl.studies.seeds import OnDone, run_missing

TEXT_WIDTH = 260
"""Characters of a table that goes to a file or a pipe: wide enough that names are not cut."""


def empty_table(columns: Sequence[str], title: str | None = None, names: int = 1) -> Table:
    """Return a table without rows; its first `names` columns hold names, the others numbers."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number < names, justify="left" if number < names else "right")
    return table


def as_text(table: Table) -> str:
    """Return a table as plain text, as wide as it needs to be."""
    console = Console(width=TEXT_WIDTH, markup=False, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def print_table(table: Table, console: Console) -> None:
    """Print a table: fitted to a terminal, or as plain text where the output goes elsewhere."""
    if console.is_terminal:
        console.print(table)
    else:
        print_line(as_text(table), console, end="")


def print_line(text: str, console: Console, end: str = "\n") -> None:
    """Print text without colours and without breaking its lines."""
    console.print(text, highlight=False, soft_wrap=True, end=end)


def make_folder(out: Path) -> None:
    """Create the folder of the output before anything runs."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"out = {str(out)!r}: cannot be written ({error.strerror})") from None


def run_and_tell(
    tasks: Sequence[Task], out: Path, workers: int | None, progress: AbstractContextManager[OnDone], console: Console
) -> None:
    """Run the tasks that have no result yet.

    Args:
        tasks: all runs that the table needs.
        out: the folder that the first line names.
        workers: how many runs at a time (None: one for each core).
        progress: gives the function that is called after each run, such as `progress_lines`.
        console: where the lines go.
    """
    missing = sum(not task.done for task in tasks)
    print_line(f"Runs: {len(tasks)}, {missing} of them still to do, in {out}", console)
    with progress as on_done, interrupt.of_many_runs():
        run_missing(tasks, workers, on_done)


@contextmanager
def progress_lines(describe: Callable[[Task], str], console: Console) -> Iterator[OnDone]:
    """Give a function that prints a line for each run that ended, with the time that the others will take."""
    started = perf_counter()

    def on_done(task: Task, number: int, of: int) -> None:
        seconds = perf_counter() - started
        left = f", about {seconds / number * (of - number) / 60:.0f} min left" if number < of else ""
        print_line(f"  {number}/{of} {describe(task)}  {seconds:.0f} s{left}", console)

    yield on_done
