"""Progress while a run is under way: a live line in a terminal, plain text elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hcfl.core.cluster_log import Change, Merge, Move, Split
from hcfl.core.record import Record
from hcfl.runs.loop import OnRound


def describe_change(change: Change) -> str:
    """Describe a change of the clusters in words."""
    if isinstance(change, Split) and change.rule == "alone":
        return f"client {change.second[0]} left alone, as cluster {change.child}"
    if isinstance(change, Split):
        return (
            f"cluster {change.parent} split {len(change.first)} | {len(change.second)}, new cluster {change.child} "
            f"(max {change.maximum:.2f}, mean {change.mean:.2f}, threshold {change.threshold:g})"
        )
    if isinstance(change, Merge):
        return f"cluster {change.gone} merged into {change.into}"
    if isinstance(change, Move):
        return f"{len(change.clients)} clients moved to cluster {', '.join(map(str, sorted(set(change.to))))}"
    return f"cluster {change.cluster} removed, no client was in it"


MANY = 4
"""From this many merges in one round on, only their number is shown."""


def describe_changes(changes: Sequence[Change]) -> list[str]:
    """Describe all changes of the clusters in a round."""
    merges = sum(isinstance(change, Merge) for change in changes)
    if merges < MANY:
        return [describe_change(change) for change in changes]
    others = [describe_change(change) for change in changes if not isinstance(change, Merge)]
    return [*others, f"{merges} clusters merged into others"]


def describe_round(record: Record) -> str:
    """Return a round's numbers in one line."""
    ari = "" if record.quality.ari is None else f"  ARI {record.quality.ari:.2f}"
    return f"Val {percent(record.val)}  Test {percent(record.test)}  K {record.clusters}{ari}"


def percent(value: float | None) -> str:
    """Return an accuracy in percent, or a dash where it was not measured."""
    return "    –" if value is None else f"{100 * value:4.1f}%"


BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 16
"""The number of rounds that the line of Val shows."""


def sparkline(values: Sequence[float | None]) -> str:
    """Return the last values as a line of bars, the lowest and the highest of them at its ends.

    >>> sparkline([0.1, 0.2, None, 0.8])
    '▁▂█'
    """
    known = [value for value in values if value is not None][-SPARK_WIDTH:]
    if len(known) < 2:
        return ""
    low, high = min(known), max(known)
    step = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * step)] for value in known)


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

            vals: list[float | None] = []

            def live(record: Record) -> None:
                vals.append(record.val)
                numbers = f"{describe_round(record)}  {sparkline(vals)}"
                progress.update(task, completed=record.round, numbers=numbers)
                for change in describe_changes(record.changes):
                    progress.console.print(f"  round {record.round}: {change}", style="cyan")

            yield live
        return

    def plain(record: Record) -> None:
        line = f"{title}  round {record.round:>{len(str(rounds))}}/{rounds}  {describe_round(record)}"
        console.print("  ".join([line, *describe_changes(record.changes)]), soft_wrap=True, highlight=False)

    yield plain
