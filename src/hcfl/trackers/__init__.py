"""Trackers follow a run: TensorBoard, MLflow, Weights & Biases, or an object of the user.

The core knows only the protocol `Tracker`; the library of a tracker is imported when the user asks for the tracker.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol, runtime_checkable

from hcfl.config import Config
from hcfl.core.record import Record, Row, metrics_row
from hcfl.errors import InputError


@runtime_checkable
class Tracker(Protocol):
    """Receives the rounds and the result of one run."""

    def on_round(self, record: Record) -> None:
        """Receive the record of a round."""
        ...

    def on_end(self, summary: Row | None) -> None:
        """Receive the summary of the run; None where the run was interrupted."""
        ...


Opener = Callable[[Path, Config], Tracker]
"""Opens a tracker for the run in a folder."""

TRACKERS = ("tensorboard", "mlflow", "wandb")
"""Names of trackers; a name is also that of the extra to install and of the library."""

Wanted = str | Tracker | Sequence[str | Tracker]
"""The argument `track` of `hcfl.run`: one or several trackers, by name or as objects."""


def numbers(record: Record) -> dict[str, float]:
    """Return the numbers of a round, under their names in `metrics.jsonl`."""
    row = metrics_row(record)
    plain = {key: value for key, value in row.items() if isinstance(value, int | float) and key != "round"}
    concepts = {f"test_concept_{number}": value for number, value in enumerate(record.test_per_concept)}
    return plain | concepts


def openers(wanted: Wanted) -> list[Opener]:
    """Return a function for each tracker that opens it; unknown trackers and missing libraries raise InputError."""
    each = [wanted] if isinstance(wanted, str) or not isinstance(wanted, Sequence) else wanted
    return [_by_name(one) if isinstance(one, str) else _given(one) for one in each]


def _by_name(name: str) -> Opener:
    if name not in TRACKERS:
        raise InputError(f"track = {name!r}: must be {', '.join(TRACKERS)}")
    if find_spec(name) is None:
        raise InputError(f"track = {name}: is not installed; pip install 'hcfl[{name}]'")
    opener: Opener = import_module(f"hcfl.trackers.{name}_tracker").open_tracker
    return opener


def _given(tracker: object) -> Opener:
    if not isinstance(tracker, Tracker):
        raise InputError(f"track = {tracker!r}: must be a name, or have on_round and on_end")
    return lambda path, config: tracker
