"""A picture of every corruption at every severity."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hcfl import rng
from hcfl.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt

GAP = 2
"""White pixels between two images."""


CELL = 68 / 120
"""Inches of an image and its gap: saved at 120 dots per inch, a pixel of an image of 32 is exactly two by two dots."""
LABELS = 1.5
"""Inches for the names of the corruptions."""


def plot_corruptions(images: Sequence[NDArray[np.uint8]], seed: int = 0) -> Figure:
    """Draw a row for each corruption; for each image, (H, W) or (H, W, C), a column for each severity."""
    rows, columns = len(CORRUPTIONS), len(SEVERITIES)
    width, height = LABELS + CELL * (columns + 0.5) * len(images), CELL * (rows + 1)
    figure = Figure(figsize=(width, height))
    for number, image in enumerate(images):
        left = LABELS + CELL * (columns + 0.5) * number
        axes = figure.add_axes((left / width, 0, CELL * columns / width, CELL * rows / height))
        axes.imshow(
            _sheet(image, seed),
            extent=(0, columns, rows, 0),
            aspect="auto",
            cmap="gray",
            vmin=0,
            vmax=255,
            interpolation="nearest",
        )
        axes.set_xticks(np.arange(columns) + 0.5, [str(severity) for severity in SEVERITIES])
        axes.set_xlabel("severity")
        axes.xaxis.set_label_position("top")
        axes.set_yticks(np.arange(rows) + 0.5, CORRUPTIONS if number == 0 else [""] * rows)
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    return figure


def _sheet(image: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    border = [(0, GAP), (0, GAP), (0, 0)][: image.ndim]
    rows = []
    for name in CORRUPTIONS:
        draws = [rng.numpy_generator(seed, "picture", name) for _ in SEVERITIES]
        drawn = [
            corrupt(image[None], name, severity, draw)[0] for severity, draw in zip(SEVERITIES, draws, strict=True)
        ]
        rows.append(np.concatenate([np.pad(one, border, constant_values=255) for one in drawn], axis=1))
    return np.concatenate(rows)
