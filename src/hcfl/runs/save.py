"""When a run is saved, and what is said where that fails."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hcfl.errors import SavingError
from hcfl.runs import checkpoint
from hcfl.runs.folder import CHECKPOINT

SHARE = 0.05
"""How much of a run's time goes into checkpoints at most, where nobody says how often they are written."""


def is_due(every: int | None, round_: int, seconds: float, cost: float) -> bool:
    """Whether a round is followed by a checkpoint.

    `seconds` have passed since the last one, which took `cost`.
    """
    return seconds * SHARE >= cost if every is None else round_ % every == 0


def resume_command(path: Path) -> str:
    """Return the command that goes on with a run, as it can be pasted."""
    return f"hcfl resume {shlex.quote(str(path))}"


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Say in a sentence that a run folder cannot be written, what there is of it, and how to go on."""
    try:
        yield
    except OSError as error:
        files = checkpoint.files(path / CHECKPOINT)
        last = f"the last checkpoint is {files[0]}" if files else "there is no checkpoint yet"
        raise SavingError(
            f"out = {str(path)!r}: cannot be written ({error.strerror}); {last}, "
            f"and once there is room again, this goes on: {resume_command(path)}"
        ) from None
