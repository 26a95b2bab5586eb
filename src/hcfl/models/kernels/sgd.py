"""A step of stochastic gradient descent for stacked models, of which some take none."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from hcfl.models.kernels.launch import launch

BLOCK = 1024


@triton.jit
def _descend(
    value, velocity, slope, target, idle, length, lr, momentum, decay, pull,
    PROXIMAL: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * B + tl.arange(0, B)
    mask = (i < length) & (tl.full((B,), 0, tl.int8) == tl.load(idle + row))
    at = row * length + i
    here = tl.load(value + at, mask=mask)
    step = tl.load(slope + at, mask=mask) + decay * here
    if PROXIMAL:
        step += pull * (here - tl.load(target + at, mask=mask))
    step += momentum * tl.load(velocity + at, mask=mask)
    tl.store(velocity + at, step, mask=mask)
    tl.store(value + at, here - lr * step, mask=mask)


def descend(
    values: Sequence[Tensor],
    velocities: Sequence[Tensor],
    slopes: Sequence[Tensor],
    targets: Sequence[Tensor],
    idle: Tensor,
    lr: float,
    momentum: float,
    decay: float,
    proximal: float,
) -> None:
    """Take torch.optim.SGD's step in place, in all rows of stacked tensors but the idle ones (rows,)."""
    skipped = idle.to(torch.int8)
    for value, velocity, slope, target in zip(values, velocities, slopes, targets, strict=True):
        rows, length = len(value), value[0].numel()
        launch(
            _descend, (triton.cdiv(length, BLOCK), rows),
            value, velocity, slope.contiguous(), target.contiguous() if proximal else value, skipped, length,
            lr, momentum, decay, proximal, PROXIMAL=proximal > 0, B=BLOCK, num_warps=4,
        )  # fmt: skip
