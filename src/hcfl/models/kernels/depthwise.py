"""Depthwise convolution of many clients' images, each client with kernels of its own."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hcfl.models.kernels.clients import over_clients

PROGRAMS = 8192
"""How many programs keep a large GPU busy."""


class Placement(NamedTuple):
    """Where the kernel lies: stride, padding before the image, size of the output."""

    stride: int
    top: int
    left: int
    height: int
    width: int


@triton.jit
def _convolve(
    x, weight, shift, y, pixels, H, W, HO, WO, C, top, left, ceiling,
    STRIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SHIFTED: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.program_id(1) * B + tl.arange(0, B)
    n, q = p // (HO * WO), p % (HO * WO)
    row, column = (q // WO) * STRIDE - top, (q % WO) * STRIDE - left
    here, there = p < pixels, c < C
    x += client * (pixels // (HO * WO)) * H * W * C
    first = x + (((n * H + row) * W + column) * C)[:, None] + c[None, :]
    weight += client * KH * KW * C
    total = tl.zeros((P, B), tl.float32)
    for i in tl.static_range(KH):
        inside = here & (row + i >= 0) & (row + i < H)
        for j in tl.static_range(KW):
            mask = (inside & (column + j >= 0) & (column + j < W))[:, None] & there[None, :]
            value = tl.load(first + (i * W + j) * C, mask=mask, other=0.0)
            tap = tl.load(weight + (i * KW + j) * C + c, mask=there, other=0.0)
            total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    if SHIFTED:
        total += tl.load(shift + client * C + c, mask=there, other=0.0).to(tl.float32)[None, :]
        total = tl.minimum(tl.maximum(total, 0.0), ceiling)
    out = y + client * pixels * C + (p * C)[:, None] + c[None, :]
    tl.store(out, total.to(y.dtype.element_ty), mask=here[:, None] & there[None, :])


@triton.jit
def _to_images(
    weight, dy, dx, pixels, H, W, HO, WO, C, top, left,
    STRIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # The gradient of an input pixel, from the output pixels that it went to.
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.program_id(1) * B + tl.arange(0, B)
    n, q = p // (H * W), p % (H * W)
    row, column = q // W + top, q % W + left
    here, there = p < pixels, c < C
    dy += client * (pixels // (H * W)) * HO * WO * C
    weight += client * KH * KW * C
    total = tl.zeros((P, B), tl.float32)
    if STRIDE == 1:
        first = dy + (((n * HO + row) * WO + column) * C)[:, None] + c[None, :]
    for i in tl.static_range(KH):
        up = row - i
        inside = here & (up >= 0) & (up < HO * STRIDE) & (up % STRIDE == 0)
        for j in tl.static_range(KW):
            across = column - j
            mask = inside & (across >= 0) & (across < WO * STRIDE) & (across % STRIDE == 0)
            if STRIDE == 1:
                at = first - (i * WO + j) * C
            else:
                at = dy + (((n * HO + up // STRIDE) * WO + across // STRIDE) * C)[:, None] + c[None, :]
            slope = tl.load(at, mask=mask[:, None] & there[None, :], other=0.0)
            tap = tl.load(weight + (i * KW + j) * C + c, mask=there, other=0.0)
            total += slope.to(tl.float32) * tap.to(tl.float32)[None, :]
    out = dx + client * pixels * C + (p * C)[:, None] + c[None, :]
    tl.store(out, total.to(dx.dtype.element_ty), mask=here[:, None] & there[None, :])


@triton.jit
def _seen(x, at, w, W, C, inside, there, slope):
    # What one tap sees of the image, times the gradient of what it gave.
    mask = (inside & (w >= 0) & (w < W))[:, None] & there[None, :]
    return tl.load(x + at, mask=mask, other=0.0).to(tl.float32) * slope


@triton.jit
def _to_weights(
    x, dy, parts, pixels, per, H, W, HO, WO, C, top, left,
    STRIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # The gradient of one row of taps, up to five, from a stretch of output pixels.
    client = tl.program_id(2).to(tl.int64)
    part, i = tl.program_id(0) // KH, tl.program_id(0) % KH
    c = tl.program_id(1) * B + tl.arange(0, B)
    there = c < C
    x += client * (pixels // (HO * WO)) * H * W * C
    dy += client * pixels * C
    last = tl.minimum((part + 1) * per, pixels)
    first = tl.zeros((P, B), tl.float32)
    second = tl.zeros((P, B), tl.float32)
    third = tl.zeros((P, B), tl.float32)
    fourth = tl.zeros((P, B), tl.float32)
    fifth = tl.zeros((P, B), tl.float32)
    for start in range(part * per, last, P):
        p = start + tl.arange(0, P)
        here = p < last
        n, q = p // (HO * WO), p % (HO * WO)
        h, w = (q // WO) * STRIDE + i - top, (q % WO) * STRIDE - left
        inside = here & (h >= 0) & (h < H)
        at = (((n * H + h) * W + w) * C)[:, None] + c[None, :]
        slope = tl.load(dy + (p * C)[:, None] + c[None, :], mask=inside[:, None] & there[None, :], other=0.0)
        slope = slope.to(tl.float32)
        first += _seen(x, at, w, W, C, inside, there, slope)
        if KW > 1:
            second += _seen(x, at + C, w + 1, W, C, inside, there, slope)
        if KW > 2:
            third += _seen(x, at + 2 * C, w + 2, W, C, inside, there, slope)
        if KW > 3:
            fourth += _seen(x, at + 3 * C, w + 3, W, C, inside, there, slope)
        if KW > 4:
            fifth += _seen(x, at + 4 * C, w + 4, W, C, inside, there, slope)
    out = parts + ((client * (tl.num_programs(0) // KH) + part) * KH + i) * KW * C + c
    tl.store(out, tl.sum(first, 0), mask=there)
    if KW > 1:
        tl.store(out + C, tl.sum(second, 0), mask=there)
    if KW > 2:
        tl.store(out + 2 * C, tl.sum(third, 0), mask=there)
    if KW > 3:
        tl.store(out + 3 * C, tl.sum(fourth, 0), mask=there)
    if KW > 4:
        tl.store(out + 4 * C, tl.sum(fifth, 0), mask=there)


def _channels(channels: int) -> int:
    """How many channels a program takes: multiples of 64 where few are wasted."""
    return 64 if channels % 64 == 0 or channels > 256 else 32


def _sizes(weight: Tensor, place: Placement) -> dict[str, int]:
    return {"STRIDE": place.stride, "KH": weight.shape[1], "KW": weight.shape[2]}


def forward(
    x: Tensor, weight: Tensor, place: Placement, shift: Tensor | None = None, ceiling: float = float("inf")
) -> Tensor:
    """(clients, N, H, W, C) by kernels (clients, height, width, C) → (clients, N, H′, W′, C).

    With a shift (clients, C), it is added, and what is below 0 or above the ceiling is cut off.
    """
    clients, samples, height, width, channels = x.shape
    y = x.new_empty(clients, samples, place.height, place.width, channels)
    pixels, block = samples * place.height * place.width, _channels(channels)
    rows = 1024 // block
    _convolve[(triton.cdiv(pixels, rows), triton.cdiv(channels, block), clients)](
        x, weight, weight if shift is None else shift, y, pixels, height, width, place.height, place.width, channels,
        place.top, place.left, ceiling, SHIFTED=shift is not None, P=rows, B=block, num_warps=2,
        **_sizes(weight, place),
    )  # fmt: skip
    return y


def backward(x: Tensor, weight: Tensor, dy: Tensor, place: Placement) -> tuple[Tensor, Tensor]:
    """Return the gradients of the images and of the kernels."""
    clients, samples, height, width, channels = x.shape
    sizes, block = _sizes(weight, place), _channels(channels)
    shape = height, width, place.height, place.width, channels, place.top, place.left
    dx, pixels, rows = torch.empty_like(x), samples * height * width, 1024 // block
    _to_images[(triton.cdiv(pixels, rows), triton.cdiv(channels, block), clients)](
        weight, dy, dx, pixels, *shape, P=rows, B=block, num_warps=2, **sizes
    )
    pixels, columns, rows = samples * place.height * place.width, triton.cdiv(channels, 32), 32
    wanted = max(1, PROGRAMS // (clients * columns * sizes["KH"]))
    per = triton.cdiv(triton.cdiv(pixels, min(wanted, triton.cdiv(pixels, rows))), rows) * rows
    stretches = triton.cdiv(pixels, per)
    parts = x.new_empty(clients, stretches, *weight.shape[1:], dtype=torch.float32)
    _to_weights[(stretches * sizes["KH"], columns, clients)](
        x, dy, parts, pixels, per, *shape, P=rows, B=32, num_warps=2, **sizes
    )
    return dx, parts.sum(dim=1) if stretches > 1 else parts.squeeze(1)


class Depthwise(torch.autograd.Function):
    """All clients' convolutions, with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, place: Placement) -> Tensor:
        """(clients, N, H, W, C) by kernels (clients, height, width, C)."""
        ctx.save_for_backward(x, weight)
        ctx.place = place
        return forward(x, weight, place)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of images and kernels."""
        x, weight = ctx.saved_tensors
        return *backward(x, weight, dy.contiguous(), ctx.place), None


def _taps(weight: Tensor) -> Tensor:
    """Weights (C, 1, height, width) with the channels last, (height, width, C)."""
    return weight.squeeze(1).permute(1, 2, 0)


def convolve_clients(x: Tensor, weight: Tensor, place: Placement) -> Tensor:
    """Convolve each channel of one client's images (N, H, W, C), inside `torch.func.vmap` over the clients."""
    return over_clients(Depthwise, x, _taps(weight), place)


def convolve(x: Tensor, weight: Tensor, place: Placement, shift: Tensor | None, ceiling: float) -> Tensor:
    """Convolve each channel of images (N, H, W, C) by one model, without gradients; `forward` has shift and ceiling."""
    shift = None if shift is None else shift.unsqueeze(0)
    return forward(x.contiguous().unsqueeze(0), _taps(weight).contiguous().unsqueeze(0), place, shift, ceiling)[0]
