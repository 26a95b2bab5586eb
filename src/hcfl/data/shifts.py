"""Concept shift and label noise: how clients' labels are changed."""

from math import floor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]


def concept_maps(
    classes: int, beta: float, concepts: int, reading: Literal["plus-one", "literal"]
) -> NDArray[np.int64]:
    """Return what each concept calls each class, (concepts, classes): always a bijection.

    The first n labels rotate by 0, 1, 2, … modulo n. `plus-one`: n = ⌊C·β⌋ + 1; `literal`: n = ⌊C·β⌋.
    """
    affected = floor(round(classes * beta, 9)) + (reading == "plus-one")
    n = max(1, min(affected, classes))
    labels = np.arange(classes)
    return np.stack([np.where(labels < n, (labels + concept) % n, labels) for concept in range(concepts)])


def distinct(maps: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each concept the first one that means the same: rotations modulo a small n may coincide."""
    return np.array([next(j for j in range(i + 1) if (maps[j] == maps[i]).all()) for i in range(len(maps))])


def deal(clients: int, concepts: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Deal concepts evenly to clients at random."""
    return generator.permutation(np.arange(clients) % concepts)


def flip(
    labels: Labels,
    classes: int,
    noise: Literal["pair", "symmetric"],
    rate: float,
    generator: np.random.Generator,
) -> Labels:
    """Flip each label with probability `rate`: to the next class (pair), or to any other class (symmetric)."""
    flipped = generator.random(len(labels)) < rate
    shift = np.ones(len(labels), dtype=np.int64)
    if noise == "symmetric":
        shift = generator.integers(1, classes, size=len(labels))
    return np.where(flipped, (labels + shift) % classes, labels)
