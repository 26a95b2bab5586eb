"""Depthwise convolution of many clients' images, each client with kernels of its own.

A program reads a patch of the image once and computes all that depends on it. On the way in it can normalise and
activate what it reads (an `Entry`), so that what lies between two layers is never written; on the way back it gives,
in one pass, the gradients of the images, of the taps, and of that normalisation.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hcfl.models.kernels.clients import over_clients
from hcfl.models.kernels.launch import launch

if TYPE_CHECKING:
    from hcfl.models.layers import Window

PROGRAMS = 4096
"""How many programs keep a large GPU busy."""

TILE, WARPS = 256, 4
"""Samples × channels of a program, and the warps that share them: two values for each thread."""

PATCH, PATCH_BACK = 4, 2
"""Pixels of a patch each way, forward (with a stride of 2: half as many) and back, where sums take registers, too."""


class Placement(NamedTuple):
    """Where the kernel lies: stride, padding before the image, size of the output."""

    stride: int
    top: int
    left: int
    height: int
    width: int

    @classmethod
    def of(cls, stride: int, rows: "Window", columns: "Window") -> "Placement":
        """Place it by what it does along each axis."""
        size = rows.reach // stride + 1, columns.reach // stride + 1
        return cls(stride, rows.before, columns.before, *size)


class Entry(NamedTuple):
    """How an image is normalised and activated on its way in. Each is (clients, C), share (clients, samples)."""

    mean: Tensor
    rstd: Tensor
    weight: Tensor
    bias: Tensor
    ceiling: float
    """Where the activation cuts off; below, it cuts off at 0."""
    share: Tensor | None = None
    """What has no share of the batch enters as zeros; None: all samples count."""


@triton.jit
def _loaded(row, client, c, there, C):
    return tl.load(row + client * C + c, mask=there, other=0.0).to(tl.float32)


@triton.jit
def _taps(weight, client, c, there, C, TAPS: tl.constexpr):
    taps = ()
    for k in tl.static_range(TAPS):
        taps = taps + (tl.load(weight + (client * TAPS + k) * C + c, mask=there, other=0.0).to(tl.float32)[None, :],)
    return taps


@triton.jit
def _inside(here, h, w, H, W):
    return tl.where((h >= 0) & (h < H) & (w >= 0) & (w < W), here, False)


@triton.jit(do_not_specialize=["samples", "per"])
def _convolve(
    x, mean, rstd, gain, bias, share, weight, shift, y, samples, per, C, cutoff, ceiling,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    STRIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ENTERED: tl.constexpr, SHARED: tl.constexpr, SHIFTED: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # A unit of work is a patch of PH × PW output pixels of N samples.
    DOWN: tl.constexpr = (HO + PH - 1) // PH
    ACROSS: tl.constexpr = (WO + PW - 1) // PW
    SEEN: tl.constexpr = (PW - 1) * STRIDE + KW
    client = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    there = c < C
    taps = _taps(weight, client, c, there, C, KH * KW)
    if ENTERED:
        centre = _loaded(mean, client, c, there, C)
        scale = (_loaded(rstd, client, c, there, C) * _loaded(gain, client, c, there, C))[None, :]
        lift = _loaded(bias, client, c, there, C)[None, :]
        centre = centre[None, :]
    if SHIFTED:
        raised = _loaded(shift, client, c, there, C)[None, :]
    for step in range(per):  # beyond the last unit, n is beyond the samples
        unit = tl.program_id(0) * per + step
        block, patch = unit // (DOWN * ACROSS), unit % (DOWN * ACROSS)
        up, back = (patch // ACROSS) * PH, (patch % ACROSS) * PW
        n = block * N + tl.arange(0, N)
        here = (n < samples)[:, None] & there[None, :]
        first = client * samples + block * N
        source = x + first * (H * W) * C + (tl.arange(0, N) * (H * W))[:, None] * C + c[None, :]
        target = y + first * (HO * WO) * C + (tl.arange(0, N) * (HO * WO))[:, None] * C + c[None, :]
        if SHARED:
            counts = (tl.load(share + client * samples + n, mask=n < samples, other=0.0) > 0)[:, None]
        seen = ()
        for i in tl.static_range((PH - 1) * STRIDE + KH):
            for j in tl.static_range(SEEN):
                h = up * STRIDE + i - TOP
                w = back * STRIDE + j - LEFT
                inside = _inside(here, h, w, H, W)
                value = tl.load(source + (h * W + w) * C, mask=inside, other=0.0).to(tl.float32)
                if SHARED:
                    value = tl.where(counts, value, 0.0)
                if ENTERED:
                    value = tl.minimum(tl.maximum((value - centre) * scale + lift, 0.0), cutoff)
                    value = tl.where(inside, value, 0.0)
                seen = seen + (value,)
        for a in tl.static_range(PH):
            for b in tl.static_range(PW):
                total = tl.zeros((N, B), tl.float32)
                for i in tl.static_range(KH):
                    for j in tl.static_range(KW):
                        total += seen[(a * STRIDE + i) * SEEN + b * STRIDE + j] * taps[i * KW + j]
                if SHIFTED:
                    total = tl.minimum(tl.maximum(total + raised, 0.0), ceiling)
                inside = _inside(here, up + a, back + b, HO, WO)
                tl.store(target + ((up + a) * WO + back + b) * C, total.to(y.dtype.element_ty), mask=inside)


@triton.jit
def _at(
    slopes, row: tl.constexpr, column: tl.constexpr,
    STRIDE: tl.constexpr, ABOVE: tl.constexpr, BEFORE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    # The gradient of the output pixel that a tap wrote to: row and column as multiples of the stride.
    return slopes[(row // STRIDE + ABOVE) * WIDE + column // STRIDE + BEFORE]


@triton.jit(do_not_specialize=["samples", "per"])
def _convolve_back(
    x, mean, rstd, gain, bias, share, weight, dy, dx, parts, samples, per, C, cutoff,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, TOP: tl.constexpr, LEFT: tl.constexpr,
    STRIDE: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
    ABOVE: tl.constexpr, BEFORE: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    ENTERED: tl.constexpr, SHARED: tl.constexpr, N: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    # A unit of work is a patch of PH × PW input pixels of N samples. The output pixels that they went to are TALL ×
    # WIDE, and begin ABOVE rows and BEFORE columns before the patch's place in the output.
    DOWN: tl.constexpr = (H + PH - 1) // PH
    ACROSS: tl.constexpr = (W + PW - 1) // PW
    client = tl.program_id(2).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    there = c < C
    taps = _taps(weight, client, c, there, C, KH * KW)
    sums = ()
    for _ in tl.static_range(KH * KW + 2):
        sums = sums + (tl.zeros((N, B), tl.float32),)
    if ENTERED:
        inverse = _loaded(rstd, client, c, there, C)
        scale = (inverse * _loaded(gain, client, c, there, C))[None, :]
        centre, lift = _loaded(mean, client, c, there, C)[None, :], _loaded(bias, client, c, there, C)[None, :]
    for step in range(per):  # beyond the last unit, n is beyond the samples
        unit = tl.program_id(0) * per + step
        block, patch = unit // (DOWN * ACROSS), unit % (DOWN * ACROSS)
        up, back = (patch // ACROSS) * PH, (patch % ACROSS) * PW
        n = block * N + tl.arange(0, N)
        here = (n < samples)[:, None] & there[None, :]
        first = client * samples + block * N
        place = first * (H * W) * C + (tl.arange(0, N) * (H * W))[:, None] * C + c[None, :]
        source = dy + first * (HO * WO) * C + (tl.arange(0, N) * (HO * WO))[:, None] * C + c[None, :]
        if SHARED:
            counts = (tl.load(share + client * samples + n, mask=n < samples, other=0.0) > 0)[:, None]
        slopes = ()
        for i in tl.static_range(TALL):
            for j in tl.static_range(WIDE):
                h = up // STRIDE + i - ABOVE
                w = back // STRIDE + j - BEFORE
                inside = _inside(here, h, w, HO, WO)
                slopes = slopes + (tl.load(source + (h * WO + w) * C, mask=inside, other=0.0).to(tl.float32),)
        seen = ()
        total_bias, total_gain = sums[KH * KW], sums[KH * KW + 1]
        for a in tl.static_range(PH):
            for b in tl.static_range(PW):
                inside = _inside(here, up + a, back + b, H, W)
                at = place + ((up + a) * W + back + b) * C
                value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
                slope = tl.zeros((N, B), tl.float32)
                for i in tl.static_range(KH):
                    for j in tl.static_range(KW):
                        if (a + TOP - i) % STRIDE == 0 and (b + LEFT - j) % STRIDE == 0:
                            beyond = _at(slopes, a + TOP - i, b + LEFT - j, STRIDE, ABOVE, BEFORE, WIDE)
                            slope += beyond * taps[i * KW + j]
                if SHARED:
                    value = tl.where(counts, value, 0.0)
                if ENTERED:
                    apart = value - centre
                    entered = apart * scale + lift
                    slope = tl.where(inside & (entered > 0) & (entered < cutoff), slope, 0.0)
                    total_bias += slope
                    total_gain += slope * apart
                    value = tl.where(inside, tl.minimum(tl.maximum(entered, 0.0), cutoff), 0.0)
                tl.store(dx + at, slope.to(dx.dtype.element_ty), mask=inside)
                seen = seen + (value,)
        more = ()
        for i in tl.static_range(KH):
            for j in tl.static_range(KW):
                total = sums[i * KW + j]
                for a in tl.static_range(PH):
                    for b in tl.static_range(PW):
                        if (a + TOP - i) % STRIDE == 0 and (b + LEFT - j) % STRIDE == 0:
                            slope = _at(slopes, a + TOP - i, b + LEFT - j, STRIDE, ABOVE, BEFORE, WIDE)
                            total += seen[a * PW + b] * slope
                more = more + (total,)
        sums = more + (total_bias, total_gain)
    out = parts + (client * tl.num_programs(0) + tl.program_id(0)) * (KH * KW + 2) * C + c
    for k in tl.static_range(KH * KW + 2):
        total = tl.sum(sums[k], 0)
        if ENTERED and k == KH * KW + 1:
            total = total * inverse
        tl.store(out + k * C, total, mask=there)


class _Work(NamedTuple):
    """How the work on all clients' images is cut."""

    samples: int
    """Of a program at a time."""
    channels: int
    columns: int
    programs: int
    per: int
    """Units of a program."""

    @classmethod
    def of(cls, clients: int, samples: int, channels: int, patches: int) -> "_Work":
        """Cut it so that few channels are wasted and all programs have about the same to do."""
        block = 32 if channels % 32 == 0 or channels > 512 else 16
        each = TILE // block
        columns, units = triton.cdiv(channels, block), triton.cdiv(samples, each) * patches
        programs = min(units, max(1, PROGRAMS // (clients * columns)))
        per = triton.cdiv(units, programs)
        return cls(each, block, columns, triton.cdiv(units, per), per)

    def grid(self, clients: int) -> tuple[int, int, int]:
        """Return the programs along each axis."""
        return self.programs, self.columns, clients


def _patch(height: int, width: int, most: int) -> tuple[int, int]:
    """Return a patch's size in an image: powers of two, at most so many pixels each way."""
    return min(most, triton.next_power_of_2(height)), min(most, triton.next_power_of_2(width))


def _shape(x: Tensor, weight: Tensor, place: Placement) -> dict[str, int]:
    return {
        "H": x.shape[2], "W": x.shape[3], "HO": place.height, "WO": place.width, "TOP": place.top, "LEFT": place.left,
        "STRIDE": place.stride, "KH": weight.shape[1], "KW": weight.shape[2],
    }  # fmt: skip


def _entered(x: Tensor, entry: Entry | None) -> tuple[tuple[Tensor, ...], float, dict[str, bool]]:
    """Return what kernels take of an entry; where there is none, any tensor in the place of those it would have."""
    if entry is None:
        return (x,) * 5, 0.0, {"ENTERED": False, "SHARED": False}
    tensors = entry.mean, entry.rstd, entry.weight, entry.bias, x if entry.share is None else entry.share
    return tensors, entry.ceiling, {"ENTERED": True, "SHARED": entry.share is not None}


def forward(
    x: Tensor,
    weight: Tensor,
    place: Placement,
    entry: Entry | None = None,
    shift: Tensor | None = None,
    ceiling: float = float("inf"),
) -> Tensor:
    """(clients, N, H, W, C) by kernels (clients, height, width, C) → (clients, N, H′, W′, C).

    With a shift (clients, C), it is added, and what is below 0 or above the ceiling is cut off.
    """
    clients, samples, _, _, channels = x.shape
    y = x.new_empty(clients, samples, place.height, place.width, channels)
    high, wide = _patch(place.height, place.width, PATCH // place.stride)
    work = _Work.of(clients, samples, channels, triton.cdiv(place.height, high) * triton.cdiv(place.width, wide))
    tensors, cutoff, kind = _entered(x, entry)
    launch(
        _convolve, work.grid(clients),
        x, *tensors, weight, x if shift is None else shift, y, samples, work.per, channels, cutoff, ceiling,
        **_shape(x, weight, place), PH=high, PW=wide, **kind, SHIFTED=shift is not None,
        N=work.samples, B=work.channels, num_warps=WARPS,
    )  # fmt: skip
    return y


class Gradients(NamedTuple):
    """What the way back gives; with an entry, `images` is the gradient before its activation."""

    images: Tensor
    taps: Tensor
    bias: Tensor
    """Of the entry's normalisation, (clients, C), as its weight's."""
    gain: Tensor


def backward(x: Tensor, weight: Tensor, dy: Tensor, place: Placement, entry: Entry | None = None) -> Gradients:
    """Return the gradients of the images, the kernels, and the entry."""
    clients, samples, height, width, channels = x.shape
    high, wide = (max(place.stride, size) for size in _patch(height, width, PATCH_BACK))
    above, tall = _reach(place.top, weight.shape[1], high, place.stride)
    before, across = _reach(place.left, weight.shape[2], wide, place.stride)
    work = _Work.of(clients, samples, channels, triton.cdiv(height, high) * triton.cdiv(width, wide))
    tensors, cutoff, kind = _entered(x, entry)
    dx, number = torch.empty_like(x), weight.shape[1] * weight.shape[2]
    parts = x.new_empty(clients, work.programs, number + 2, channels, dtype=torch.float32)
    launch(
        _convolve_back, work.grid(clients),
        x, *tensors, weight, dy, dx, parts, samples, work.per, channels, cutoff,
        **_shape(x, weight, place), PH=high, PW=wide, ABOVE=above, BEFORE=before, TALL=tall, WIDE=across, **kind,
        N=work.samples, B=work.channels, num_warps=WARPS,
    )  # fmt: skip
    sums = parts.sum(dim=1) if work.programs > 1 else parts.squeeze(1)
    return Gradients(dx, sums[:, :number].view(weight.shape), sums[:, number], sums[:, number + 1])


def _reach(before: int, kernel: int, patch: int, stride: int) -> tuple[int, int]:
    """Return how far ahead of a patch's place the outputs begin that it went to, and how many they are."""
    lowest, highest = -((kernel - 1 - before) // stride), (patch - 1 + before) // stride
    return -lowest, highest - lowest + 1


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
        found = backward(x, weight, dy.contiguous(), ctx.place)
        return found.images, found.taps, None


def taps_last(weight: Tensor) -> Tensor:
    """Weights (C, 1, height, width) with the channels last, (height, width, C)."""
    return weight.squeeze(1).permute(1, 2, 0)


def convolve_clients(x: Tensor, weight: Tensor, place: Placement) -> Tensor:
    """Convolve each channel of one client's images (N, H, W, C), inside `torch.func.vmap` over the clients."""
    return over_clients(Depthwise, x, taps_last(weight), place)


def convolve(
    x: Tensor,
    weight: Tensor,
    place: Placement,
    entry: Entry | None = None,
    shift: Tensor | None = None,
    ceiling: float = float("inf"),
) -> Tensor:
    """Convolve each channel of images (N, H, W, C) by one model, without gradients; arguments as of `forward`."""
    taps = taps_last(weight).contiguous().unsqueeze(0)
    if entry is not None:
        mean, rstd, gain, bias = (part.unsqueeze(0) for part in (entry.mean, entry.rstd, entry.weight, entry.bias))
        entry = Entry(mean, rstd, gain, bias, entry.ceiling)
    shift = None if shift is None else shift.unsqueeze(0)
    return forward(x.contiguous().unsqueeze(0), taps, place, entry, shift, ceiling)[0]
