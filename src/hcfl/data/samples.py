"""Labelled samples as every reader returns them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl.data.tables.schema import Schema
from hcfl.models.tasks import CLASSES, AnyTask

Rows = NDArray[np.int64]
"""Places of samples, or one whole number for each sample."""


@dataclass(frozen=True)
class Samples:
    """Labelled samples, checked: inputs with a channel axis where they are images, labels 0 … C−1."""

    name: str
    x: NDArray[Any]
    """uint8, int64 or float32: (N, H, W, C), (N, T, D) or (N, D)."""
    y: NDArray[np.int64]
    class_names: tuple[str, ...]
    client: NDArray[Any] | None = None
    """The client of each sample; None where samples are dealt to simulated clients."""
    concept: NDArray[Any] | None = None
    """The true concept of each sample's client, where it is known."""
    group: NDArray[Any] | None = None
    """The group that each sample's client begins in, where a column says so."""
    test: NDArray[np.bool_] | None = None
    """Which samples are the global test set."""
    identity: str | None = None
    """A key of exactly these x for the cache, where they have one."""
    notes: tuple[str, ...] = ()
    """Notes for the user about how they were read."""
    time: NDArray[np.float64] | None = None
    """When each sample was taken, where that is known: clients then hold out their last ones."""
    begin: NDArray[np.float64] | None = None
    """When the input of each sample begins, where it is a window of a series; `time` is then that of the answer."""
    task: AnyTask = CLASSES
    targets: NDArray[np.float32] | None = None
    """What is predicted, where that is no class; y then has the bins of it."""
    schema: Schema | None = None
    """How they became numbers, where they were rows of a table."""
