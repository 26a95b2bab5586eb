"""The 20 corruptions with their constants, and the function that applies them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl.data.corruptions import blur, digital, noise, weather
from hcfl.data.corruptions.geometry import Images
from hcfl.data.corruptions.streams import Streams
from hcfl.errors import InputError

Pixels = NDArray[np.uint8]

TABLE: dict[str, tuple[Callable[..., Images], tuple[tuple[Any, ...], ...]]] = {
    "gaussian-noise": (noise.gaussian, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot-noise": (noise.shot, ((500,), (250,), (100,), (75,), (50,))),
    "impulse-noise": (noise.impulse, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "speckle-noise": (noise.speckle, ((0.06,), (0.1,), (0.12,), (0.16,), (0.2,))),
    "defocus-blur": (blur.defocus, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass-blur": (blur.glass, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion-blur": (blur.motion, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom-blur": (blur.zoom, ((1.06,), (1.11,), (1.16,), (1.21,), (1.26,))),
    "gaussian-blur": (blur.gaussian, ((0.4,), (0.6,), (0.7,), (0.8,), (1,))),
    "snow": (
        weather.snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "frost": (weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": (weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": (digital.brightness, ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,))),
    "contrast": (digital.contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "elastic": (
        digital.elastic,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": (digital.pixelate, ((0.95,), (0.9,), (0.85,), (0.75,), (0.65,))),
    "jpeg": (digital.jpeg, ((80,), (65,), (58,), (50,), (40,))),
    "spatter": (
        weather.spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
    ),
    "saturate": (digital.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
}
"""What each corruption does and its constants at severities 1 to 5, as published with CIFAR-10-C."""

CORRUPTIONS = ("original", *TABLE)
"""The names of all corruptions; `original` leaves images as they are."""

SEVERITIES = (1, 2, 3, 4, 5)

SMALLEST = 28
"""The smallest side that images may have."""

CHUNK = 2**20
"""How many values are corrupted at a time: bounds memory, and changes no result."""


def corrupt(images: Pixels, name: str, severity: int, generator: np.random.Generator) -> Pixels:
    """Corrupt images, (N, H, W) or (N, H, W, C) with 1 or 3 channels, all in the same way.

    What is random (noise, directions, flakes) differs between images. Corrupting the first images alone gives the
    same pixels as corrupting all, from generators in the same state.
    """
    _check(images, name, severity)
    if name == "original":
        return images.copy()
    function, constants = TABLE[name][0], TABLE[name][1][SEVERITIES.index(severity)]
    streams = Streams(generator)
    pixels = images[..., None] if images.ndim == 3 else images
    corrupted = np.empty_like(pixels)
    step = max(1, CHUNK // int(np.prod(pixels.shape[1:])))
    for start in range(0, len(pixels), step):
        chunk = np.s_[start : start + step]
        changed = function(pixels[chunk] / np.float32(255), streams, *constants)
        corrupted[chunk] = np.rint(np.clip(changed, 0, 1) * 255)
    return corrupted.reshape(images.shape)


def _check(images: Pixels, name: str, severity: int) -> None:
    if name not in CORRUPTIONS:
        raise InputError(f"corruption = {name!r}: must be one of {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise InputError(f"severity = {severity!r}: must be 1, 2, 3, 4 or 5")
    if images.dtype != np.uint8:
        raise InputError(f"images.dtype = {images.dtype}: must be uint8, values from 0 to 255")
    if images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise InputError(f"images.shape = {images.shape}: must be (N, H, W) or (N, H, W, C) with 1 or 3 channels")
    if min(images.shape[1:3]) < SMALLEST:
        raise InputError(f"images.shape = {images.shape}: height and width must be at least {SMALLEST}")
