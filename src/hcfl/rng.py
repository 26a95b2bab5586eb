"""Randomness from (seed, purpose, round, client, …), never from a shared generator.

Every draw in the package names what it is for. The order in which clients are executed, the number of workers and a
resume in the middle of a run therefore cannot change a result.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive(seed: int, *purpose: int | str) -> int:
    """Return the 63-bit seed that belongs to `seed` and this purpose."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def numpy_generator(seed: int, *purpose: int | str) -> np.random.Generator:
    """Return a fresh NumPy generator for this purpose."""
    return np.random.default_rng(derive(seed, *purpose))


def torch_generator(seed: int, *purpose: int | str) -> torch.Generator:
    """Return a fresh CPU generator for this purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


@contextmanager
def scoped(seed: int, *purpose: int | str) -> Iterator[None]:
    """Run code that can only draw from torch's default generator (layer initialisation, dropout), then put it back."""
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(derive(seed, *purpose))
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(derive(seed, *purpose))
        yield
