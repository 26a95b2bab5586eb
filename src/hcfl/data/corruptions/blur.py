"""Blurs: the lens, the glass before it, the hand that holds it."""

from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from hcfl.data.corruptions.geometry import Images, interpolate, scale, streak
from hcfl.data.corruptions.streams import Streams


def gaussian(x: Images, streams: Streams, sigma: float) -> Images:
    """Average with Gaussian weights; beyond the edge, the edge."""
    spread = sigma * scale(x)
    blurred: Images = ndimage.gaussian_filter(x, (0, spread, spread, 0), mode="nearest")
    return blurred


def defocus(x: Images, streams: Streams, radius: float, alias: float) -> Images:
    """Average over a disk with a softened rim."""
    kernel = disk(radius, alias, scale(x))
    averaged: Images = ndimage.correlate(x, kernel[None, :, :, None], mode="mirror")
    return averaged


def disk(radius: float, alias: float, scale: float) -> NDArray[np.float64]:
    """Return the kernel of a disk.

    For 32 pixels, where a disk is a few pixels, it is the published one: all pixels within the radius, smoothed by a
    Gaussian of deviation `alias` that is cut off after one pixel. For larger images it is a disk that blurs as much
    relative to the image: of the same variance.
    """
    reach = ceil(radius) + 1
    line = np.arange(-reach, reach + 1)
    kernel = (np.hypot(line[:, None], line) <= radius).astype(float)
    rim = np.exp(-(np.array([-1, 0, 1]) ** 2) / (2 * alias**2))
    for axis in (0, 1):
        kernel = ndimage.correlate1d(kernel, rim, axis, mode="constant")
    if scale > 1:
        variance = (kernel * line**2).sum() / kernel.sum()
        radius = 2 * scale * sqrt(variance)  # a disk's variance is a quarter of its radius squared
        line = np.arange(-ceil(radius), ceil(radius) + 1)
        kernel = np.clip(radius + 0.5 - np.hypot(line[:, None], line), 0, 1)
    normalised: NDArray[np.float64] = kernel / kernel.sum()
    return normalised


def glass(x: Images, streams: Streams, sigma: float, shift: int, iterations: int) -> Images:
    """Blur, replace every pixel away from the edge by one nearby, blur again.

    Published code means to swap the two pixels, but overwrites one before it reads it: what it computes is a copy.
    """
    height, width = x.shape[1:3]
    far = round(shift * scale(x))
    rows, columns = np.arange(far + 1, height - far + 1), np.arange(far + 1, width - far + 1)
    moves = streams["shift"].integers(-far, far, size=(len(x), iterations, 2, len(rows), len(columns)))
    x = gaussian(x, streams, sigma)
    for down, across in moves.transpose(1, 2, 0, 3, 4):
        nearby = x[np.arange(len(x))[:, None, None], rows[:, None] + down, columns + across]
        x[:, rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = nearby
    return gaussian(x, streams, sigma)


def motion(x: Images, streams: Streams, radius: float, sigma: float) -> Images:
    """Smear along a direction within 45° of the horizontal, another one for each image."""
    angle = streams["angle"].uniform(-np.pi / 4, np.pi / 4, len(x))
    return streak(x, radius * scale(x), sigma * scale(x), angle)


def zoom(x: Images, streams: Streams, most: float) -> Images:
    """Average the image with itself zoomed by 1, 1.01, … up to `most`."""
    factors = np.arange(100, round(100 * most) + 1) / 100
    total = x.copy()
    for factor in factors:
        rows, columns = ((np.arange(side) - (side - 1) / 2) / factor + (side - 1) / 2 for side in x.shape[1:3])
        total += interpolate(x, rows, columns)
    return total / np.float32(len(factors) + 1)
