"""Weather: layers of snow, ice, fog, water and mud over the image, drawn by arithmetic instead of photographed."""

from math import ceil, log2

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from hcfl.data.corruptions.geometry import Images, canvas, fit, interpolate, scale, streak
from hcfl.data.corruptions.streams import Streams

Layer = NDArray[np.float32]
"""(N, h, w): one channel, not yet of the images' size."""

CROSS = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], dtype=bool)
EMBOSS = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
SPARKLESS = np.float32(0.97)
"""Share of the points on which no needle of ice grows."""
WATER, MUD, ICE = (175, 238, 238), (63, 42, 20), (205, 228, 255)
"""Colours, in red, green and blue."""


def luminance(x: Images) -> Images:
    """Return the brightness that people see, one channel."""
    if x.shape[3] == 1:
        return x
    red, green, blue = np.split(x, 3, axis=3)
    seen: Images = 0.299 * red + 0.587 * green + 0.114 * blue
    return seen


def paint(colour: tuple[int, int, int], x: Images) -> Images:
    """Return a colour as the images would show it: grey images show its luminance."""
    rgb = np.array(colour, dtype=np.float32).reshape(1, 1, 1, 3) / np.float32(255)
    return rgb if x.shape[3] == 3 else luminance(rgb)


def snow(
    x: Images,
    streams: Streams,
    mean: float,
    sigma: float,
    size: float,
    threshold: float,
    radius: float,
    blur: float,
    kept: float,
) -> Images:
    """Whiten the image and let flakes fall over it: the peaks of noise, smeared downwards."""
    drawn, height, width = canvas(x)
    cells = streams["flakes"].normal(mean, sigma, (drawn, ceil(height / size) + 1, ceil(width / size) + 1))
    flakes = interpolate(cells.astype(np.float32), np.arange(height) / size, np.arange(width) / size)
    flakes = np.where(flakes < threshold, np.float32(0), np.minimum(flakes, 1))
    angle = streams["angle"].uniform(np.pi / 4, 3 * np.pi / 4, len(x))
    falling = streak(fit(flakes[..., None], x), radius * scale(x), blur * scale(x), angle)
    white = np.maximum(x, luminance(x) * 1.5 + 0.5)
    snowy: Images = kept * x + (1 - kept) * white + falling + falling[:, ::-1, ::-1]
    return snowy


def frost(x: Images, streams: Streams, image: float, texture: float) -> Images:
    """Look through an icy window."""
    return image * x + texture * ice(x, streams) * paint(ICE, x)


def ice(x: Images, streams: Streams) -> Images:
    """Return an ice texture for each image, (N, H, W, 1): needles in directions 60° apart on ice of varying thickness.

    A needle is a spark, one of a few bright points, that is smeared and so tapers off.
    """
    sparks = streams["needles"].random((*canvas(x), 3), dtype=np.float32)
    sparks = np.maximum(sparks - SPARKLESS, 0) / (1 - SPARKLESS)
    sparks[:, [0, -1]] = sparks[:, :, [0, -1]] = 0  # at the edge, smearing would draw a wedge
    sparks = fit(sparks, x)
    angle = streams["angle"].uniform(0, 2 * np.pi, len(x))
    needles = [streak(sparks[..., k : k + 1], 12 * scale(x), 6 * scale(x), angle + k * 2 / 3 * np.pi) for k in range(3)]
    # Smearing over σ = 6 pixels leaves an eighth of the spark at the needle's head.
    crystals = 8 * np.maximum.reduce(needles)
    texture: Images = np.clip(0.1 + 0.6 * plasma(x, streams, 1.5) + 0.7 * crystals, 0, 1)
    return texture


def fog(x: Images, streams: Streams, strength: float, decay: float) -> Images:
    """Add a plasma fractal, then dim the image to its former maximum."""
    peak: Images = x.max(axis=(1, 2, 3), keepdims=True)
    return (x + strength * plasma(x, streams, decay)) * peak / (peak + np.float32(strength))


def plasma(x: Images, streams: Streams, decay: float) -> Images:
    """Return a plasma fractal for each image, (N, H, W, 1) from 0 to 1, by the diamond-square algorithm on a torus.

    Each point is the mean of four known neighbours plus noise, whose amplitude falls by decay² when the grid halves.
    """
    side = 2 ** ceil(log2(max(x.shape[1:3])))
    noise = streams["plasma"].uniform(-1, 1, (len(x), side, side)).astype(np.float32)
    heights = np.zeros_like(noise)
    step, amplitude = side, 1.0
    while step > 1:
        half = step // 2
        corners, centres = np.s_[:, ::step, ::step], np.s_[:, half::step, half::step]
        tops, lefts = np.s_[:, ::step, half::step], np.s_[:, half::step, ::step]
        pairs = heights[corners] + np.roll(heights[corners], -1, 1)
        heights[centres] = (pairs + np.roll(pairs, -1, 2)) / 4 + amplitude * noise[centres]
        for target, across, along in ((tops, 1, 2), (lefts, 2, 1)):
            around = heights[centres] + np.roll(heights[centres], 1, across)
            ends = heights[corners] + np.roll(heights[corners], -1, along)
            heights[target] = (around + ends) / 4 + amplitude * noise[target]
        step, amplitude = half, amplitude / decay**2
    low, high = (limit(heights, axis=(1, 2), keepdims=True) for limit in (np.min, np.max))
    fractal: Images = (heights - low) / (high - low)
    return fractal[:, : x.shape[1], : x.shape[2], None]


def spatter(
    x: Images,
    streams: Streams,
    mean: float,
    sigma: float,
    blur: float,
    threshold: float,
    strength: float,
    mud: bool,
) -> Images:
    """Throw drops on the lens: bright water with a shaded rim, or opaque mud."""
    liquid = streams["drops"].normal(mean, sigma, canvas(x)).astype(np.float32)
    liquid = ndimage.gaussian_filter(liquid, (0, blur, blur), mode="nearest")
    liquid[liquid < threshold] = 0
    if not mud:
        return x + fit(strength * _shaded(liquid), x)[..., None] * paint(WATER, x)
    cover = ndimage.gaussian_filter((liquid > 0).astype(np.float32), (0, strength, strength), mode="nearest")
    cover = fit(np.where(cover < 0.8, np.float32(0), cover), x)[..., None]
    return x * (1 - cover) + cover * paint(MUD, x)


def _shaded(liquid: Layer) -> Layer:
    """Return drops as if lit from one side: the distance to their rims, embossed; at most 1 in each image."""
    rims = (liquid > 0) & ~ndimage.binary_erosion(liquid > 0, CROSS[None])
    # One transform for all images: they are a thousand pixels apart, so the nearest rim is one of the same image.
    distance = ndimage.distance_transform_edt(~rims, sampling=(1000, 1, 1)).astype(np.float32)
    relief = ndimage.uniform_filter(np.minimum(distance, 20), (1, 3, 3), mode="mirror")
    relief = np.clip(ndimage.correlate(_equalised(relief), EMBOSS[None], mode="mirror"), 0, 255)
    lit: Layer = liquid * ndimage.uniform_filter(relief, (1, 3, 3), mode="mirror")
    brightest: Layer = np.maximum(lit.max(axis=(1, 2), keepdims=True), np.float32(1e-9))
    return lit / brightest


def _equalised(relief: Layer) -> Layer:
    """Spread the whole numbers of each image over 0 … 255, so that all of these are about equally frequent."""
    levels, images = relief.astype(np.intp), np.arange(len(relief))[:, None, None]
    counts = np.bincount((levels + 32 * images).ravel(), minlength=32 * len(relief)).reshape(-1, 32)
    below = np.cumsum(counts, axis=1)
    lowest = np.take_along_axis(counts, (counts > 0).argmax(axis=1)[:, None], axis=1)
    table = 255 * (below - lowest) / np.maximum(below[:, -1:] - lowest, 1)
    equalised: Layer = table.astype(np.float32)[images, levels]
    return equalised
