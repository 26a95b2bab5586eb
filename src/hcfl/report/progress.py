"""Progress while a run is under way: a live line in a terminal, plain text elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hcfl.clusters import Change, Split
from hcfl.rounds import Record


class OnRound(Protocol):
    """Whoever is told about each round as it ends."""

    def __call__(self, record: Record) -> None:
        """Show a round."""
        ...


def describe_change(change: Change) -> str:
    """Return what just happened to the clusters, in words."""
    if isinstance(change, Split):
        return (
            f"cluster {change.parent} split {len(change.first)} | {len(change.second)}, new cluster {change.child} "
            f"(distance max {change.maximum:.2f} − mean {change.mean:.2f} ≥ {change.threshold:g})"
        )
    return f"cluster {change.cluster} removed, it was nobody's"


def describe_round(record: Record) -> str:
    """Return a round's numbers in one line."""
    ari = "" if record.quality.ari is None else f"  ARI {record.quality.ari:.2f}"
    return f"Val {percent(record.val)}  Test {percent(record.test)}  K {record.clusters}{ari}"


def percent(value: float | None) -> str:
    """Return an accuracy for people."""
    return "    –" if value is None else f"{100 * value:4.1f}%"


@contextmanager
def show(title: str, rounds: int, console: Console) -> Iterator[OnRound]:
    """Give a function that shows each round as it ends."""
    if console.is_terminal:
        with Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=console,
        ) as progress:
            task = progress.add_task(escape(title), total=rounds, numbers="")

            def live(record: Record) -> None:
                progress.update(task, completed=record.round, numbers=describe_round(record))
                for change in record.changes:
                    progress.console.print(f"  round {record.round}: {describe_change(change)}", style="cyan")

            yield live
        return

    def plain(record: Record) -> None:
        changes: Sequence[Any] = [describe_change(change) for change in record.changes]
        line = f"{title}  round {record.round:>{len(str(rounds))}}/{rounds}  {describe_round(record)}"
        console.print("  ".join([line, *changes]), soft_wrap=True, highlight=False)

    yield plain
