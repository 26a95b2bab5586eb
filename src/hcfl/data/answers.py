"""What is predicted, as networks and tiers read it: the task, and for each sample a bin and an answer."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hcfl.errors import InputError
from hcfl.models.tasks import AnyTask, Classification, MultiLabel, Regression

BINS = 5
"""Quantile bins of a number: enough to see a shift of the answers, few enough for small clients."""

MOST_SETS = 31
"""The largest number of label sets that are bins; all others share one."""


@dataclass(frozen=True)
class Answers:
    """The answers of some samples."""

    task: AnyTask
    names: tuple[str, ...]
    """Of the classes or bins."""
    bins: NDArray[np.int64]
    """(samples,): classes, or bins of other answers; −1 where the answer is missing."""
    targets: NDArray[np.float32] | None = None
    """What is predicted, where that is no class."""


def fit_regression(where: str, values: NDArray[Any]) -> Regression:
    """Return the task of predicting numbers like these: their scale, and the edges of their quantile bins."""
    known = values[~np.isnan(values)].astype(np.float64)
    if np.isinf(known).any():
        raise InputError(f"{where}: has infinite values, but all must be finite")
    std = float(known.std()) if len(known) else 0.0
    if not std > 0:
        raise InputError(f"{where}: has a single value, so there is nothing to predict")
    edges = np.unique(np.quantile(known, np.arange(1, BINS) / BINS))
    edges = edges[edges > known.min()]
    return Regression(float(known.mean()), std, tuple(edges.tolist()))


def fit_multi_label(labels: Sequence[str], values: NDArray[Any]) -> MultiLabel:
    """Return the task of predicting labels like these, (samples, labels): the common label sets are bins."""
    known = values[~np.isnan(values).any(axis=1)].astype(int)
    counts = Counter("".join(map(str, row)) for row in known.tolist())
    ordered = sorted(counts, key=lambda one: (-counts[one], one))
    return MultiLabel(tuple(labels), tuple(sorted(ordered[:MOST_SETS])), len(ordered) > MOST_SETS)


def bin_names(task: Regression | MultiLabel) -> tuple[str, ...]:
    """Return what the bins are called."""
    if isinstance(task, Regression):
        edges = [f"{edge:.4g}" for edge in task.edges]
        if not edges:
            return ("all",)
        between = [f"{low} … {high}" for low, high in pairwise(edges)]
        return (f"< {edges[0]}", *between, f"≥ {edges[-1]}")
    sets = [
        "+".join(name for name, digit in zip(task.labels, one, strict=True) if digit == "1") or "none"
        for one in task.sets
    ]
    return (*sets, *(["other"] if task.others else []))


def of_numbers(task: Regression, values: NDArray[Any]) -> Answers:
    """Return numbers in the user's unit as answers; NaN is a missing one."""
    tensor = torch.from_numpy(values.astype(np.float64))
    bins = torch.where(tensor.isnan(), -1, task.bins(tensor)).numpy()
    return Answers(task, bin_names(task), bins, task.standardised(tensor).numpy())


def of_labels(task: MultiLabel, values: NDArray[Any]) -> Answers:
    """Return labels (samples, labels), each 0 or 1, as answers; a row with NaN is a missing one."""
    tensor = torch.from_numpy(values.astype(np.float32))
    missing = tensor.isnan().any(dim=1)
    bins = torch.where(missing, -1, task.bins(tensor.nan_to_num())).numpy()
    return Answers(task, bin_names(task), bins, tensor.numpy())


def of_classes(names: tuple[str, ...], labels: NDArray[np.int64]) -> Answers:
    """Return classes as answers."""
    return Answers(Classification(), names, labels)
