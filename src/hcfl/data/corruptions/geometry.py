"""Sampling images at other places: linear interpolation, streaks, sizes relative to CIFAR's 32 pixels."""

from math import ceil

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

Images = NDArray[np.float32]
"""(N, H, W, C), values from 0 to 1."""
Coordinates = NDArray[np.floating]

SIDE = 32
"""The side, in pixels, that all published lengths refer to."""


def scale(x: Images) -> float:
    """Return how much longer lengths are in these images than in CIFAR's.

    Never shorter: the mildest blurs are of less than a pixel, and would vanish.
    """
    side: int = min(x.shape[1:3])
    return max(1.0, side / SIDE)


def canvas(x: Images) -> tuple[int, int, int]:
    """Return (N, h, w) of layers that are drawn for images of CIFAR's size: a shorter side of at most 32 pixels."""
    return len(x), round(x.shape[1] / scale(x)), round(x.shape[2] / scale(x))


def fit(layer: Images, x: Images) -> Images:
    """Stretch a layer from its canvas to the size of the images."""
    height, width = (
        (np.arange(side) + 0.5) * drawn / side - 0.5 for side, drawn in zip(x.shape[1:3], layer.shape[1:3], strict=True)
    )
    return interpolate(layer, height, width)


def interpolate(x: Images, rows: Coordinates, columns: Coordinates) -> Images:
    """Return the images on the grid rows × columns, linearly interpolated; beyond the edge, the edge."""
    return _along(_along(x, rows, 1), columns, 2)


def _along(x: Images, places: Coordinates, axis: int) -> Images:
    places = np.clip(places, 0, x.shape[axis] - 1)
    low = np.floor(places).astype(np.intp)
    high = np.minimum(low + 1, x.shape[axis] - 1)
    share = (places - low).astype(np.float32).reshape(-1, *[1] * (x.ndim - axis - 1))
    first = x.take(low, axis)
    mixed: Images = first + share * (x.take(high, axis) - first)
    return mixed


def sample(x: Images, rows: Coordinates, columns: Coordinates) -> Images:
    """Return each image at its own places, (N, H, W) each, linearly interpolated; mirrored beyond the edge."""
    height, width = x.shape[1:3]
    rows, columns = _mirror(rows, height), _mirror(columns, width)
    top, left = np.floor(rows).astype(np.intp), np.floor(columns).astype(np.intp)
    bottom, right = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    down, across = ((rows - top).astype(np.float32)[..., None], (columns - left).astype(np.float32)[..., None])
    each = np.arange(len(x))[:, None, None]
    upper = (1 - across) * x[each, top, left] + across * x[each, top, right]
    lower = (1 - across) * x[each, bottom, left] + across * x[each, bottom, right]
    mixed: Images = (1 - down) * upper + down * lower
    return mixed


def _mirror(places: Coordinates, side: int) -> Coordinates:
    """Fold places into 0 … side − 1, the edge pixel being the mirror."""
    folded: Coordinates = np.abs((places + side - 1) % (2 * side - 2) - (side - 1))
    return folded


def streak(x: Images, radius: float, sigma: float, angle: NDArray[np.float64]) -> Images:
    """Smear each image in its own direction (radians), as ImageMagick does: half a Gaussian of 2·radius + 1 pixels.

    Every pixel becomes the weighted mean of itself and the pixels along a ray, each rounded to the grid; beyond the
    edge, the edge.
    """
    # Beyond 4σ all weights together are less than a fiftieth of a grey level.
    length = min(2 * round(radius), ceil(4 * sigma)) + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2 * sigma**2)).astype(np.float32)
    weights /= weights.sum()
    reach = length - 1
    channels_first = np.moveaxis(x, 3, 1)
    padded = np.pad(channels_first, ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    windows = sliding_window_view(padded, x.shape[1:3], axis=(2, 3))
    smeared = np.zeros(channels_first.shape, dtype=np.float32)
    for step, weight in enumerate(weights):
        down, across = (np.rint(step * part(angle)).astype(np.intp) for part in (np.sin, np.cos))
        smeared += weight * windows[np.arange(len(x)), :, reach + down, reach + across]
    return np.moveaxis(smeared, 1, 3)
