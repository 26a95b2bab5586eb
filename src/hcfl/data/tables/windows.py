"""Windows of time series: the last rows of a client are the input, a later value of the label is the answer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcfl.errors import InputError

GAP = 1.5
"""Rows that are farther apart than so many usual steps have a gap between them."""


@dataclass(frozen=True)
class Windows:
    """How rows become windows."""

    history: int
    """How many rows an input has."""
    horizon: int
    """How many rows after the last one of the input the answer lies."""
    time: str
    """The column of dates or numbers."""
    step: float
    """The usual time from one row to the next, in days or in the column's unit."""

    @property
    def span(self) -> int:
        """The rows from the first of the input to the answer, without the first."""
        return self.history - 1 + self.horizon


@dataclass(frozen=True)
class Cut:
    """Some windows of a table."""

    inputs: NDArray[np.int64]
    """(windows, history): the rows of each input, in the order of time."""
    answers: NDArray[np.int64]
    """(windows,): the row of each answer; −1 where it lies beyond the table."""


def usual_step(time: NDArray[np.float64], client: NDArray[np.int64], where: str) -> float:
    """Return the median time between rows of the same client."""
    order = np.lexsort((time, client))
    apart = np.diff(time[order])[client[order][1:] == client[order][:-1]]
    if not len(apart):
        raise InputError(f"{where}: each client has a single row, so there is no series")
    if (apart == 0).any():
        at = int(np.flatnonzero(np.diff(time[order]) == 0)[0])
        raise InputError(f"{where}: two rows of one client have the same time (rows {_two(order, at)})")
    return float(np.median(apart))


def _two(order: NDArray[np.int64], at: int) -> str:
    return " and ".join(str(row + 1) for row in sorted(order[at : at + 2].tolist()))


def cut(
    windows: Windows, time: NDArray[np.float64], client: NDArray[np.int64], usable: NDArray[np.bool_], open_end: bool
) -> Cut:
    """Cut all windows that lie in one client's rows without a gap; rows that are not usable are gaps, too.

    With `open_end`, the answer may lie beyond the last row, as in a forecast.
    """
    rows = np.flatnonzero(usable)
    rows = rows[np.lexsort((time[rows], client[rows]))]
    breaks = (np.diff(client[rows]) != 0) | (np.diff(time[rows]) > GAP * windows.step)
    stretch = np.concatenate([[0], np.cumsum(breaks)])
    reach = windows.history - 1 if open_end else windows.span
    starts = np.arange(max(0, len(rows) - reach))
    starts = starts[stretch[starts] == stretch[starts + reach]]
    ends = starts + windows.span
    there = (ends < len(rows)) & (stretch[np.minimum(ends, len(rows) - 1)] == stretch[starts])
    answers = np.where(there, rows[np.minimum(ends, len(rows) - 1)], -1)
    return Cut(rows[starts[:, None] + np.arange(windows.history)], answers)
