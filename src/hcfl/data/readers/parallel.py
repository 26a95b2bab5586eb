"""The same work on many things, on all cores."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

T = TypeVar("T")


FEW = 2000
"""Images that one process is done with before others have started."""


def each(
    function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], images: int, workers: int | None = None
) -> Iterator[T]:
    """Yield function(*task) for every task, in their order, whoever computes it; `images` is how many there are in all.

    Processes, because neither Pillow's decoders nor small NumPy operations let go of the interpreter's lock; joblib's,
    because they also start from notebooks and from scripts without a `__main__` guard.
    """
    if workers is None:
        workers = 1 if images <= FEW else -1
    results: Iterator[T] = Parallel(n_jobs=workers, return_as="generator")(delayed(function)(*task) for task in tasks)
    return results
