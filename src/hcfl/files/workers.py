"""The same work on many things, on all cores."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from joblib import Parallel, delayed

T = TypeVar("T")


def each(function: Callable[..., T], tasks: Sequence[tuple[Any, ...]], workers: int | None = None) -> Iterator[T]:
    """Yield function(*task) for every task, in their order, whoever computes it.

    Processes, because neither Pillow's decoders nor small NumPy operations let go of the interpreter's lock; joblib's,
    because they also start from notebooks and from scripts without a `__main__` guard.
    """
    results: Iterator[T] = Parallel(n_jobs=min(workers or -1, len(tasks)) or 1, return_as="generator")(
        delayed(function)(*task) for task in tasks
    )
    return results
