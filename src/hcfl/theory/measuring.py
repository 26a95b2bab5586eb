"""What a curve of distances shows: how fast it falls, where it stays, and whether it is there yet."""

import numpy as np

from hcfl.theory.problem import Array

ROUNDING = 1e-13
"""Below this, distances are rounding errors, and fall no more."""


def rate(distances: Array) -> float | None:
    """Return the mean factor of a step on the way down; None where a curve never comes below half its start.

    The way ends at twice the floor. The mean is geometric: to the power of the steps, it is what they did together.
    """
    steps = int(np.argmax(distances <= 2 * floor(distances)))
    return float((distances[steps] / distances[0]) ** (1 / steps)) if steps else None


def floor(distances: Array) -> float:
    """Return what stays: the mean distance over the last tenth of the steps."""
    return float(distances[-_tenth(distances) :].mean())


def still_falling(distances: Array) -> bool:
    """Say whether the last tenth is clearly below the one before it: then the floor is yet to come."""
    size = _tenth(distances)
    return ROUNDING < floor(distances) < 0.9 * float(distances[-2 * size : -size].mean())


def _tenth(distances: Array) -> int:
    return max(1, len(distances) // 10)
