"""How exactly a GPU computes, and how many CPU threads a run uses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hcfl.config import Precision
from hcfl.errors import InputError


def check_precision(precision: Precision, device: torch.device) -> None:
    """Refuse a format that the device does not have."""
    if precision == "tf32" and device.type != "cuda":
        raise InputError(f"precision = 'tf32': is a format of NVIDIA GPUs; on {device.type} use fp32 or bf16")


@contextmanager
def matrix_products(rounded: bool) -> Iterator[None]:
    """Let products of single-precision matrices on a GPU round their factors, or not; then as before."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = rounded
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Run with this many CPU threads, then put the process's own number back."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
