"""Runs one function on many inputs, on all cores."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

T = TypeVar("T")


FEW = 2000
"""Up to this many images, one process is faster than starting others."""


def each(
    function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], images: int, workers: int | None = None
) -> Iterator[T]:
    """Yield function(*task) for every task, in order; `images` is the number of images in all tasks together.

    It uses processes, since Pillow's decoders and small NumPy operations hold the interpreter's lock, and joblib's,
    since they also start from notebooks and from scripts without a `__main__` guard.
    """
    if workers is None:
        workers = 1 if images <= FEW else -1
    results: Iterator[T] = Parallel(n_jobs=workers, return_as="generator")(delayed(function)(*task) for task in tasks)
    return results
