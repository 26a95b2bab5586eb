"""Batch normalisation with its activation, of many clients' images, each client with statistics of its own."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hcfl.models.kernels.clients import over_clients
from hcfl.models.kernels.launch import launch

PROGRAMS = 8192
"""How many programs keep a large GPU busy."""


class Statistics(NamedTuple):
    """What normalisation goes by, (clients, C) each."""

    mean: Tensor
    rstd: Tensor


class Form(NamedTuple):
    """What a layer is, apart from its tensors."""

    eps: float
    momentum: float
    ceiling: float | None
    """Where the activation cuts off above 0; None: no activation."""


@triton.jit(do_not_specialize=["pixels", "each", "per"])
def _sums(x, share, out, pixels, each, per, C, P: tl.constexpr, B: tl.constexpr):
    # Σ share·x and Σ share·x² over some pixels.
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    c = tl.program_id(1) * B + tl.arange(0, B)
    x += client * pixels * C
    share += client * (pixels // each)
    there = c < C
    first = tl.zeros((P, B), tl.float32)
    second = tl.zeros((P, B), tl.float32)
    for start in range(part * per, min((part + 1) * per, pixels), P):
        p = start + tl.arange(0, P)
        here = p < min((part + 1) * per, pixels)
        value = tl.load(x + (p * C)[:, None] + c[None, :], mask=here[:, None] & there[None, :], other=0.0)
        weight = tl.load(share + p // each, mask=here, other=0.0) / each
        value = tl.where(weight[:, None] > 0, value.to(tl.float32), 0.0)
        first += weight[:, None] * value
        second += weight[:, None] * value * value
    out += (client * tl.num_programs(0) + part) * 2 * C
    tl.store(out + c, tl.sum(first, 0), mask=there)
    tl.store(out + C + c, tl.sum(second, 0), mask=there)


@triton.jit(do_not_specialize=["count", "samples", "each"])
def _conclude(
    parts, share, mean, rstd, running_mean, running_var, count, samples, each, C, eps, momentum,
    N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # Mean and variance from the sums; the running ones follow.
    client = tl.program_id(1).to(tl.int64)
    c = tl.program_id(0) * B + tl.arange(0, B)
    there = c < C
    first = tl.zeros((B,), tl.float32)
    second = tl.zeros((B,), tl.float32)
    for part in range(count):
        base = parts + (client * count + part) * 2 * C
        first += tl.load(base + c, mask=there, other=0.0)
        second += tl.load(base + C + c, mask=there, other=0.0)
    n = tl.arange(0, N)
    counted = tl.load(share + client * samples + n, mask=n < samples, other=0.0) > 0
    values = tl.sum(counted.to(tl.float32), 0) * each
    var = tl.maximum(second - first * first, 0.0)
    tl.store(mean + client * C + c, first, mask=there)
    tl.store(rstd + client * C + c, 1 / tl.sqrt(var + eps), mask=there)
    pull = tl.where(values > 0, momentum, 0.0)
    before = tl.load(running_mean + client * C + c, mask=there, other=0.0)
    tl.store(running_mean + client * C + c, before + pull * (first - before), mask=there)
    before = tl.load(running_var + client * C + c, mask=there, other=0.0)
    unbiased = var * (values / tl.maximum(values - 1, 1.0))
    tl.store(running_var + client * C + c, before + pull * (unbiased - before), mask=there)


@triton.jit(do_not_specialize=["pixels", "each"])
def _apply(
    x, share, mean, rstd, weight, bias, y, pixels, each, C, ceiling,
    ACTIVE: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.program_id(1) * B + tl.arange(0, B)
    here, there = p < pixels, c < C
    mask = here[:, None] & there[None, :]
    place = client * pixels * C + (p * C)[:, None] + c[None, :]
    row = client * C + c
    scale = tl.load(rstd + row, mask=there, other=0.0) * tl.load(weight + row, mask=there, other=0.0)
    centre = tl.load(mean + row, mask=there, other=0.0)
    shift = tl.load(bias + row, mask=there, other=0.0)
    counts = tl.load(share + client * (pixels // each) + p // each, mask=here, other=0.0) > 0
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
    value = tl.where(counts[:, None], value, 0.0)
    z = (value - centre[None, :]) * scale[None, :] + shift[None, :]
    if ACTIVE:
        z = tl.minimum(tl.maximum(z, 0.0), ceiling)
    tl.store(y + place, z.to(y.dtype.element_ty), mask=mask)


@triton.jit
def _slope(value, slope, centre, rstd, weight, shift, ceiling, ACTIVE: tl.constexpr):
    # The gradient before the activation, and the normalised value.
    unit = (value - centre[None, :]) * rstd[None, :]
    if ACTIVE:
        z = (value - centre[None, :]) * (rstd * weight)[None, :] + shift[None, :]
        slope = tl.where((z > 0) & (z < ceiling), slope, 0.0)
    return unit, slope


@triton.jit(do_not_specialize=["pixels", "each", "per"])
def _slope_sums(
    x, dy, share, mean, rstd, weight, bias, out, pixels, each, per, C, ceiling,
    ACTIVE: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # Σ g and Σ g·x̂ over some pixels: the gradients of bias and weight.
    client = tl.program_id(2).to(tl.int64)
    part = tl.program_id(0)
    c = tl.program_id(1) * B + tl.arange(0, B)
    there = c < C
    row = client * C + c
    centre = tl.load(mean + row, mask=there, other=0.0)
    inverse = tl.load(rstd + row, mask=there, other=0.0)
    gain = tl.load(weight + row, mask=there, other=0.0)
    shift = tl.load(bias + row, mask=there, other=0.0)
    share += client * (pixels // each)
    first = tl.zeros((P, B), tl.float32)
    second = tl.zeros((P, B), tl.float32)
    for start in range(part * per, min((part + 1) * per, pixels), P):
        p = start + tl.arange(0, P)
        here = p < min((part + 1) * per, pixels)
        mask = here[:, None] & there[None, :]
        place = client * pixels * C + (p * C)[:, None] + c[None, :]
        counts = tl.load(share + p // each, mask=here, other=0.0) > 0
        value = tl.where(counts[:, None], tl.load(x + place, mask=mask, other=0.0).to(tl.float32), 0.0)
        slope = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32)
        unit, slope = _slope(value, slope, centre, inverse, gain, shift, ceiling, ACTIVE)
        first += slope
        second += slope * unit
    out += (client * tl.num_programs(0) + part) * 2 * C
    tl.store(out + c, tl.sum(first, 0), mask=there)
    tl.store(out + C + c, tl.sum(second, 0), mask=there)


@triton.jit(do_not_specialize=["pixels", "each"])
def _apply_backward(
    x, dy, share, mean, rstd, weight, bias, sums, dx, pixels, each, C, ceiling,
    ACTIVE: tl.constexpr, P: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    p = tl.program_id(0) * P + tl.arange(0, P)
    c = tl.program_id(1) * B + tl.arange(0, B)
    here, there = p < pixels, c < C
    mask = here[:, None] & there[None, :]
    place = client * pixels * C + (p * C)[:, None] + c[None, :]
    row = client * C + c
    centre = tl.load(mean + row, mask=there, other=0.0)
    inverse = tl.load(rstd + row, mask=there, other=0.0)
    gain = tl.load(weight + row, mask=there, other=0.0)
    shift = tl.load(bias + row, mask=there, other=0.0)
    dbias = tl.load(sums + client * 2 * C + c, mask=there, other=0.0)
    dweight = tl.load(sums + client * 2 * C + C + c, mask=there, other=0.0)
    portion = tl.load(share + client * (pixels // each) + p // each, mask=here, other=0.0) / each
    counts = portion > 0
    value = tl.where(counts[:, None], tl.load(x + place, mask=mask, other=0.0).to(tl.float32), 0.0)
    slope = tl.load(dy + place, mask=mask, other=0.0).to(tl.float32)
    unit, slope = _slope(value, slope, centre, inverse, gain, shift, ceiling, ACTIVE)
    common = portion[:, None] * (dbias[None, :] + unit * dweight[None, :])
    result = tl.where(counts[:, None], (slope - common) * (inverse * gain)[None, :], 0.0)
    tl.store(dx + place, result.to(dx.dtype.element_ty), mask=mask)


class _Tiles(NamedTuple):
    """How the work on (clients, pixels, C) is cut. The sizes were the fastest of those tried on an H200."""

    pixels: int
    channels: int

    def columns(self, channels: int) -> int:
        """How many tiles lie side by side."""
        return -(-channels // self.channels)

    def stretches(self, clients: int, pixels: int, channels: int) -> tuple[int, int]:
        """Into how many stretches a client's pixels are cut for a sum, and how long each is."""
        wanted = max(1, PROGRAMS // (clients * self.columns(channels)))
        parts = min(wanted, triton.cdiv(pixels, self.pixels))
        per = triton.cdiv(triton.cdiv(pixels, parts), self.pixels) * self.pixels
        return triton.cdiv(pixels, per), per

    @property
    def sizes(self) -> dict[str, Any]:
        """As the kernels take them."""
        return {"P": self.pixels, "B": self.channels, "num_warps": 2}


SUMS, SLOPE_SUMS, APPLY = _Tiles(64, 32), _Tiles(16, 64), _Tiles(32, 64)


def _shape(x: Tensor) -> tuple[int, int, int, int]:
    """Clients, pixels of a client, pixels of an image, channels."""
    clients, samples, height, width, channels = x.shape
    return clients, samples * height * width, height * width, channels


def measure(x: Tensor, running_mean: Tensor, running_var: Tensor, share: Tensor, form: Form) -> Statistics:
    """Return the batch's statistics; the running ones are updated in place."""
    clients, pixels, each, channels = _shape(x)
    count, per = SUMS.stretches(clients, pixels, channels)
    parts = x.new_empty(clients, count, 2, channels, dtype=torch.float32)
    launch(
        _sums, (count, SUMS.columns(channels), clients),
        x, share, parts, pixels, each, per, channels, **SUMS.sizes,
    )  # fmt: skip
    mean, rstd = x.new_empty(2, clients, channels, dtype=torch.float32)
    samples = pixels // each
    launch(
        _conclude, (triton.cdiv(channels, 64), clients),
        parts, share, mean, rstd, running_mean, running_var, count, samples, each, channels,
        form.eps, form.momentum, N=triton.next_power_of_2(samples), B=64, num_warps=2,
    )  # fmt: skip
    return Statistics(mean, rstd)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, share: Tensor, form: Form
) -> tuple[Tensor, Statistics]:
    """Normalise by the batch's statistics; the running ones are updated in place."""
    clients, pixels, each, channels = _shape(x)
    statistics, y = measure(x, running_mean, running_var, share, form), torch.empty_like(x)
    launch(
        _apply, (triton.cdiv(pixels, APPLY.pixels), APPLY.columns(channels), clients),
        x, share, *statistics, weight, bias, y, pixels, each, channels, form.ceiling or 0.0,
        ACTIVE=form.ceiling is not None, **APPLY.sizes,
    )  # fmt: skip
    return y, statistics


def backward(
    x: Tensor, dy: Tensor, weight: Tensor, bias: Tensor, share: Tensor, statistics: Statistics, form: Form
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of images, weight and bias."""
    clients, pixels, each, channels = _shape(x)
    count, per = SLOPE_SUMS.stretches(clients, pixels, channels)
    parts = x.new_empty(clients, count, 2, channels, dtype=torch.float32)
    launch(
        _slope_sums, (count, SLOPE_SUMS.columns(channels), clients),
        x, dy, share, *statistics, weight, bias, parts, pixels, each, per, channels, form.ceiling or 0.0,
        ACTIVE=form.ceiling is not None, **SLOPE_SUMS.sizes,
    )  # fmt: skip
    sums = parts.sum(dim=1) if count > 1 else parts.squeeze(1)
    return to_images(x, dy, weight, bias, share, statistics, sums, form.ceiling), sums[:, 1], sums[:, 0]


def to_images(
    x: Tensor,
    dy: Tensor,
    weight: Tensor,
    bias: Tensor,
    share: Tensor,
    statistics: Statistics,
    sums: Tensor,
    ceiling: float | None,
) -> Tensor:
    """Return the gradient of the images, from those of bias and weight, sums (clients, 2, C)."""
    clients, pixels, each, channels = _shape(x)
    dx = torch.empty_like(x)
    launch(
        _apply_backward, (triton.cdiv(pixels, APPLY.pixels), APPLY.columns(channels), clients),
        x, dy, share, *statistics, weight, bias, sums, dx, pixels, each, channels, ceiling or 0.0,
        ACTIVE=ceiling is not None, **APPLY.sizes,
    )  # fmt: skip
    return dx


class Normalise(torch.autograd.Function):
    """All clients' batch normalisation and activation, with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        """Arguments as of `forward` above."""
        weight, bias, _, _, share, form = rest
        y, statistics = forward(x, *rest)
        ctx.save_for_backward(x, weight, bias, share, *statistics)
        ctx.form = form
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of images, weight and bias."""
        x, weight, bias, share, mean, rstd = ctx.saved_tensors
        gradients = backward(x, dy.contiguous(), weight, bias, share, Statistics(mean, rstd), ctx.form)
        return (*gradients, None, None, None, None)


def normalise(
    x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor, share: Tensor, form: Form
) -> Tensor:
    """Normalise one client's images (N, H, W, C), inside `torch.func.vmap` over clients; running statistics follow."""
    return over_clients(Normalise, x, weight, bias, running_mean, running_var, share, form)
