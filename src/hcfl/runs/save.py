"""When a checkpoint is written, and the error message where the run folder cannot be written."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hcfl.errors import SavingError
from hcfl.runs import checkpoint
from hcfl.runs.folder import CHECKPOINT

SHARE = 0.05
"""The largest share of a run's time that goes into checkpoints, where `checkpoint_every` is not set."""


def is_due(every: int | None, round_: int, seconds: float, cost: float) -> bool:
    """Whether a checkpoint is written after round `round_`.

    With `every`, after every so many rounds. Without, where enough `seconds` have passed since the last checkpoint,
    which took `cost` seconds.
    """
    return seconds * SHARE >= cost if every is None else round_ % every == 0


def resume_command(path: Path) -> str:
    """Return the command that resumes a run, quoted for a shell."""
    return f"hcfl resume {shlex.quote(str(path))}"


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Turn an OSError into a SavingError that names the last checkpoint and the command that resumes the run."""
    try:
        yield
    except OSError as error:
        files = checkpoint.files(path / CHECKPOINT)
        last = f"the last checkpoint is {files[0]}" if files else "there is no checkpoint yet"
        raise SavingError(
            f"out = {str(path)!r}: cannot be written ({error.strerror}); {last}, "
            f"and once there is space again, this goes on: {resume_command(path)}"
        ) from None
