"""The rate and the floor of a curve of distances, and whether the curve is still falling."""

import numpy as np

from hcfl.theory.problem import Array

ROUNDING = 1e-13
"""Below this, distances are rounding errors."""


def rate(distances: Array) -> float | None:
    """Return the geometric mean of distance(t+1) / distance(t), from the start until the distance is twice the floor.

    None where the curve starts below twice its floor.
    """
    steps = int(np.argmax(distances <= 2 * floor(distances)))
    return float((distances[steps] / distances[0]) ** (1 / steps)) if steps else None


def floor(distances: Array) -> float:
    """Return the floor: the mean distance over the last tenth of the steps."""
    return float(distances[-_tenth(distances) :].mean())


def still_falling(distances: Array) -> bool:
    """Whether the mean of the last tenth is below 0.9 times that of the tenth before: the floor is not reached yet."""
    size = _tenth(distances)
    return ROUNDING < floor(distances) < 0.9 * float(distances[-2 * size : -size].mean())


def _tenth(distances: Array) -> int:
    return max(1, len(distances) // 10)
