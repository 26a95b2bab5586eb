"""A picture of every corruption at every severity."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from hcfl import rng
from hcfl.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt

GAP = 2
"""White pixels between two images."""


def plot_corruptions(images: Sequence[NDArray[np.uint8]], seed: int = 0) -> Figure:
    """Draw a row for each corruption; for each image, (H, W) or (H, W, C), a column for each severity."""
    sheets = [_sheet(image, seed) for image in images]
    rows, columns = len(CORRUPTIONS), len(SEVERITIES)
    figure = Figure(figsize=(1.6 + 0.6 * columns * len(images), 0.6 * rows), layout="constrained")
    for axes, sheet in zip(figure.subplots(1, len(images), squeeze=False)[0], sheets, strict=True):
        axes.imshow(sheet, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        middles = [
            np.arange(n) * side / n + side / n / 2 for side, n in zip(sheet.shape, (rows, columns), strict=False)
        ]
        axes.set_yticks(middles[0], CORRUPTIONS if axes.get_subplotspec().is_first_col() else [""] * rows)
        axes.set_xticks(middles[1], [str(severity) for severity in SEVERITIES])
        axes.tick_params(length=0, labeltop=True, labelbottom=False)
        axes.spines[:].set_visible(False)
    figure.supxlabel("severity", y=1.01, va="bottom", fontsize="medium")
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
