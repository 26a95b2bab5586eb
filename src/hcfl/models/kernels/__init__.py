"""GPU kernels for layers that torch has for one model, but not for the models of many clients at once.

They are written in Triton, which comes with torch on CUDA. Each has a leading axis of clients everywhere, and agrees
with the plain layer of `hcfl.models.layers`. Images are (clients, N, H, W, C), and sums never use atomic additions,
so that the same inputs give the same bits.
"""

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import relu, relu6

CEILINGS: dict[Callable[..., Tensor] | None, float] = {relu: float("inf"), relu6: 6.0}
"""Activations that kernels apply: nothing below 0, nothing above this."""

LARGEST_DEPTHWISE, LARGEST_STRIDE = 5, 2
"""The widest depthwise kernel, and the largest stride, that the kernels have."""


def usable(x: Tensor) -> bool:
    """Whether the kernels can compute with this tensor: on an NVIDIA GPU, where Triton is installed."""
    return x.is_cuda and available() and not torch.compiler.is_compiling()


@cache
def available() -> bool:
    """Whether Triton is installed, and torch was built for it."""
    return find_spec("triton") is not None and torch.version.cuda is not None


def compile_ahead(work: Callable[[], object]) -> None:
    """Compile the kernels of a piece of work on a GPU together, before it is done; see `launch`."""
    if available():
        from hcfl.models.kernels import launch  # needs Triton

        launch.compile_ahead(work)
