"""How exactly a GPU computes: single precision, or the faster formats of its matrix units."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from hcfl.errors import InputError

Precision = Literal["fp32", "tf32", "bf16"]
"""`tf32` rounds the factors of matrix products, `bf16` (which includes it) also what extractors compute in between.
Parameters, averages, weights and distances are single precision in all."""


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
