"""Random numbers that do not depend on how the images are cut into chunks."""

import numpy as np

from hcfl import rng


class Streams(dict[str, np.random.Generator]):
    """Random streams by purpose, drawn from image after image.

    A corruption that draws for two purposes in turn would, from one generator, see other numbers for other chunks.
    With a stream for each purpose, the numbers of an image depend only on the images before it.
    """

    def __init__(self, generator: np.random.Generator) -> None:
        super().__init__()
        self._seed = int(generator.integers(2**63))

    def __missing__(self, purpose: str) -> np.random.Generator:
        """Create the stream of a purpose at its first use."""
        self[purpose] = rng.numpy_generator(self._seed, purpose)
        return self[purpose]
