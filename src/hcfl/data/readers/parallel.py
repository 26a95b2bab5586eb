"""Runs one function on many inputs, on all cores."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, cpu_count, delayed

T = TypeVar("T")


FEW = 2000
"""Up to this many images, one process is faster than starting others."""


def processes(images: int, asked: int | None = None) -> int:
    """Return how many processes decode so many images: as many as asked for, or one for each core if it is worth it."""
    if asked is not None and asked > 0:
        return asked
    return 1 if asked is None and images <= FEW else cpu_count()


def each(function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], workers: int) -> Iterator[T]:
    """Yield function(*task) for every task, in order, with so many processes.

    It uses processes, since Pillow's decoders and small NumPy operations hold the interpreter's lock, and joblib's,
    since they also start from notebooks and from scripts without a `__main__` guard.
    """
    results: Iterator[T] = Parallel(n_jobs=workers, return_as="generator")(delayed(function)(*task) for task in tasks)
    return results
