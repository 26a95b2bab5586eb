"""Feature shift: each client's images have one corruption, as if each client had its own camera."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl import rng
from hcfl.data import corruptions
from hcfl.data.corruptions.table import SMALLEST
from hcfl.data.readers import cache
from hcfl.data.readers.parallel import each, processes
from hcfl.errors import InputError

ORIGINAL = "original"
"""The name of no corruption."""


@dataclass(frozen=True)
class Corruption:
    """The corruption of all images of a client; `original` leaves them unchanged at any severity."""

    name: str
    severity: int

    def __str__(self) -> str:
        return self.name if self.name == ORIGINAL else f"{self.name} {self.severity}"


def draw(clients: int, seed: int, share: float | None = None) -> tuple[Corruption, ...]:
    """Draw each client's corruption and severity, `original` among them.

    With a share, exactly round(share·clients) of them, drawn by the seed, have a real corruption; the others have none.
    """
    if share is None:
        return tuple(_drawn(corruptions.CORRUPTIONS, seed, client) for client in range(clients))
    order = rng.numpy_generator(seed, "corrupted clients").permutation(clients)
    chosen = set(order[: round(share * clients)].tolist())
    real = tuple(name for name in corruptions.CORRUPTIONS if name != ORIGINAL)
    return tuple(_drawn(real if client in chosen else (ORIGINAL,), seed, client) for client in range(clients))


def _drawn(names: Sequence[str], seed: int, client: int) -> Corruption:
    generator = rng.numpy_generator(seed, "corruption", client)
    name = names[int(generator.integers(len(names)))]
    return Corruption(name, int(generator.integers(1, 6)))


def check(x: NDArray[Any]) -> None:
    """Refuse arrays that are not images of bytes, and images that are too small."""
    if x.ndim == 4 and min(x.shape[1:3]) < SMALLEST:
        raise InputError(
            f"data.corruptions = random: the images have {x.shape[2]}×{x.shape[1]} pixels, "
            f"but at least {SMALLEST}×{SMALLEST} are needed"
        )
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[-1] not in (1, 3):
        raise InputError(
            "data.corruptions = random: needs images of bytes with 1 or 3 channels, "
            f"but x has type {x.dtype} and shape {x.shape}"
        )


def apply(
    x: NDArray[np.uint8],
    parts: Sequence[NDArray[np.int64]],
    drawn: Sequence[Corruption],
    seed: int,
    identity: str | None,
    root: Path,
    workers: int | None = None,
) -> tuple[NDArray[np.uint8], tuple[str, ...]]:
    """Return x with each client's rows corrupted, from the cache if possible, and notes for the user.

    Other rows, such as the test images, stay clean. `identity` is a key of x for the cache; None hashes x itself.
    """
    key = cache.identity(identity or x, _version(), seed, drawn, *parts)

    def make() -> cache.Entry:
        tasks = [(x[part], one, seed, client) for client, (part, one) in enumerate(zip(parts, drawn, strict=True))]
        number = sum(len(part) for part in parts)
        result = np.array(x)
        for part, images in zip(parts, each(_corrupt, tasks, processes(number, workers)), strict=True):
            result[part] = images
        return cache.Entry({"x": result}, {})

    entry, notes = cache.get(root, f"corrupted-{key}", make)
    return entry.arrays["x"], notes


def _corrupt(images: NDArray[np.uint8], corruption: Corruption, seed: int, client: int) -> NDArray[np.uint8]:
    generator = rng.numpy_generator(seed, "corrupted pixels", client)
    return corruptions.corrupt(images, corruption.name, corruption.severity, generator)


def _version() -> str:
    """Return a hash of the code that corrupts, so that the cache does not outlive it."""
    digest = blake2b(digest_size=8)
    for path in sorted(Path(corruptions.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
