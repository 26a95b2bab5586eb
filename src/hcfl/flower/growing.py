"""A client's own file that grows: what was appended since the last step is new in this step."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl.config import DataConfig
from hcfl.errors import InputError


@dataclass(frozen=True)
class Growth:
    """How many samples a file had at each step; the client keeps it, so that a step that is played again is the same.

    A step without the client has as many as the step before.
    """

    ends: tuple[int, ...]
    checksum: str
    """Of the inputs of all these steps."""


def grown(before: Growth | None, x: NDArray[Any], step: int, where: str) -> Growth:
    """Return the growth of a file up to a step, from 0: a step that is new to the client ends where the file does.

    >>> first = grown(None, np.zeros((4, 2)), 0, "data = mine.npz")
    >>> grown(first, np.zeros((6, 2)), 2, "data = mine.npz").ends
    (4, 4, 6)
    """
    ends = () if before is None else before.ends
    known = ends[-1] if ends else 0
    if before is not None and (len(x) < known or checksum(x[:known]) != before.checksum):
        raise InputError(f"{where}: its first {known} samples are not those of the steps before; append new ones only")
    if before is not None and step < len(ends):
        found = before
    else:
        found = Growth((*ends, *[known] * (step - len(ends)), len(x)), checksum(x))
    if found.ends[step] == (found.ends[step - 1] if step else 0):
        raise InputError(f"{where}: has no new samples for step {step + 1}")
    return found


def checksum(x: NDArray[Any]) -> str:
    """Return a checksum of some inputs."""
    return sha256(np.ascontiguousarray(x).tobytes()).hexdigest()


def check_steps(data: DataConfig) -> None:
    """Refuse drift that is simulated: real clients change by themselves."""
    for name in ("drift", "drift_of", "step_alpha"):
        if (value := getattr(data, name)) != DataConfig.model_fields[name].default:
            raise InputError(f"data.{name} = {value}: is for simulated clients; the files of real ones grow")
