"""A configuration over several seeds: its runs, and mean ± standard deviation of what they found."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from hcfl.config import Config
from hcfl.studies.jobs import Task, task_of
from hcfl.studies.pool import run_all

OnDone = Callable[[Task, int, int], None]
"""Called after each run that ended: the run, how many have ended, and how many there are."""

UNKNOWN = "–"
"""How a table shows a number that no run knows."""


@dataclass(frozen=True)
class Statistic:
    """A number over seeds."""

    mean: float
    std: float | None
    """The sample standard deviation; None for a single seed."""


def tasks_of(config: Config, seeds: int, out: Path, keep: bool = False) -> tuple[Task, ...]:
    """Return the runs of a configuration, one for each seed.

    Args:
        config: what to run; its own seed is the first.
        seeds: how many seeds, counted from the first.
        out: the folder in which each run gets a folder of its own.
        keep: whether the models stay in the run folders.
    """
    numbers = range(config.seed, config.seed + seeds)
    return tuple(task_of(config.model_copy(update={"seed": seed}), out, keep) for seed in numbers)


def run_missing(tasks: Iterable[Task], workers: int | None, on_done: OnDone) -> None:
    """Run all tasks that have no result yet, `workers` at a time (None: one for each core)."""
    run_all(list(tasks), workers or os.cpu_count() or 1, on_done)


def statistic(values: Sequence[float | None]) -> Statistic | None:
    """Return mean and deviation of the values that are known; None where none is.

    >>> statistic([0.5, None, 0.5])
    Statistic(mean=0.5, std=0.0)
    """
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Statistic(mean(known), stdev(known) if len(known) > 1 else None)


def as_texts(number: Statistic | None, decimals: int = 1, scale: float = 1.0) -> tuple[str, str]:
    """Return mean and deviation, both times `scale`, as a table shows them; the deviation of one seed is empty."""
    if number is None:
        return UNKNOWN, ""
    spread = "" if number.std is None else f"{scale * number.std:.{decimals}f}"
    return f"{scale * number.mean:.{decimals}f}", spread


def as_text(number: Statistic | None, decimals: int = 1, scale: float = 1.0) -> str:
    """Return mean ± deviation, both times `scale`.

    >>> as_text(Statistic(0.5, 0.25), decimals=1, scale=100)
    '50.0 ± 25.0'
    """
    middle, spread = as_texts(number, decimals, scale)
    return f"{middle} ± {spread}" if spread else middle
