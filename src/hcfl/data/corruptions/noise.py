"""Noise in every value on its own."""

import numpy as np

from hcfl.data.corruptions.geometry import Images
from hcfl.data.corruptions.streams import Streams


def gaussian(x: Images, streams: Streams, sigma: float) -> Images:
    """Add Gaussian noise."""
    return x + sigma * streams["noise"].standard_normal(x.shape, dtype=np.float32)


def shot(x: Images, streams: Streams, rate: float) -> Images:
    """Count photons: a Poisson number with mean x·rate, in units of the rate."""
    return (streams["noise"].poisson(x * rate) / rate).astype(np.float32)


def impulse(x: Images, streams: Streams, share: float) -> Images:
    """Replace a share of the values, half of them by 0 and half by 1."""
    draw = streams["noise"].random(x.shape, dtype=np.float32)
    return np.where(draw < share, np.float32(0) + (draw < share / 2), x)


def speckle(x: Images, streams: Streams, sigma: float) -> Images:
    """Add Gaussian noise in proportion to the value."""
    return x + x * (sigma * streams["noise"].standard_normal(x.shape, dtype=np.float32))
