"""Federations of random data that benchmarks share: what they hold costs the same as the real thing."""

import numpy as np

from hcfl import Federation


def images(clients: int, samples: int, classes: int = 10, test: int = 10_000) -> Federation:
    """Return clients with so many 32×32 images each to train on, a tenth beside them held out, and test images."""
    draw, each = np.random.default_rng(0), round(samples / 0.9)
    number = clients * each + test
    x = draw.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8)
    client = np.concatenate([np.repeat(np.arange(clients), each), np.zeros(test, dtype=int)])
    return Federation.from_arrays(
        x, draw.integers(0, classes, number), client=client, test=np.arange(number) >= clients * each
    )


def vectors(clients: int, samples: int, features: int = 64, classes: int = 10) -> Federation:
    """Return clients with so many vectors each to train on, and hardly any held out."""
    draw, number = np.random.default_rng(0), clients * (samples + 1)
    x = draw.normal(size=(number, features)).astype(np.float32)
    client = np.repeat(np.arange(clients), samples + 1)
    return Federation.from_arrays(x, draw.integers(0, classes, number), client=client, val_share=1 / (samples + 1))
