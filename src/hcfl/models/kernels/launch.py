"""How kernels are started, and compiled before that: all at the same time, since one after another takes half a minute.

A network has a kernel for each size of its images. Triton compiles one when it is first started, on one core.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton

COMPILING: ContextVar[bool] = ContextVar("compiling", default=False)
"""Whether kernels are compiled instead of started."""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start a kernel, or compile it only, inside `compile_ahead`."""
    if COMPILING.get():
        kernel.warmup(*arguments, grid=grid, **options)
    else:
        kernel[grid](*arguments, **options)


def compile_ahead(work: Callable[[], object]) -> None:
    """Compile all kernels of a piece of work together. Everything else in it is done.

    Where kernels would write, memory stays as it was allocated, so nothing that work gives may be used. Versions of
    Triton that cannot compile side by side do nothing here: they compile each kernel when it is started.
    """
    if not hasattr(triton, "AsyncCompileMode"):
        return
    with (
        ThreadPoolExecutor(os.cpu_count()) as cores,
        triton.AsyncCompileMode(cores),
        _compiling(),
        torch.autograd.set_multithreading_enabled(False),  # another thread would not know that it must not start them
    ):
        work()


@contextmanager
def _compiling() -> Iterator[None]:
    token = COMPILING.set(True)
    try:
        yield
    finally:
        COMPILING.reset(token)
