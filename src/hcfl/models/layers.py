"""Layers for images (N, H, W, C): channels stay last from the input to the features.

Every layer has two forms that compute the same. By default it calls torch's own kernels on permuted views, which is
fastest for one model, on a CPU above all. `write_out` turns it into plain arithmetic (matrix products, shifted
products, means), which `torch.func.vmap` and `torch.compile` batch over many clients' models without turning them into
slow grouped convolutions. Parameters have the names and shapes of torch's layers in both.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import gcd
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, group_norm, linear, pad, relu

from hcfl.errors import InputError
from hcfl.models import kernels

NormName = Literal["batch", "group"]
"""How units are normalised."""

StemName = Literal["original", "small"]
"""`small`: the first layers keep the resolution of the image instead of reducing it."""

MOMENTUM = 0.1
"""How much of a batch goes into the running statistics."""

FEW_CHANNELS = 4
"""The most channels of an image, as cameras take it."""

GROUP = 16
"""Channels that are normalised together by group normalisation: 16, or 8 where the width is no multiple of it."""


class Layer(nn.Module):
    """A layer with two forms."""

    written_out: bool = False


def write_out(module: nn.Module) -> nn.Module:
    """Return a copy that computes the same by plain arithmetic, the form to batch over clients on an accelerator."""
    copy = deepcopy(module)
    for layer in copy.modules():
        if isinstance(layer, Layer):
            layer.written_out = True
        if isinstance(layer, BatchNorm):
            layer.register_buffer("share", torch.empty(0), persistent=False)
    return copy


def has_kernels(module: nn.Module) -> bool:
    """Whether all convolutions and batch normalisations are ours, so that a GPU needs no compiler for many clients."""
    foreign = (nn.modules.conv._ConvNd, nn.modules.batchnorm._BatchNorm)
    parts = list(module.modules())
    return any(isinstance(part, Layer) for part in parts) and not any(isinstance(part, foreign) for part in parts)


class Window(NamedTuple):
    """What a kernel does along one axis: the taps that ever meet the image, and the padding that these need."""

    taps: slice
    before: int
    after: int
    reach: int
    """Where the last window starts, counted from the first."""

    @property
    def width(self) -> int:
        """The number of taps."""
        taps: int = self.taps.stop - self.taps.start
        return taps


def window(size: int, kernel: int, stride: int, same: bool) -> Window:
    """Place an odd kernel so that ⌈size / stride⌉ values come out.

    Padding is kernel // 2 before the image as torch users write it, or with `same` what TensorFlow calls SAME: the
    least that is needed, the odd pixel after the image. Deep in a network for small images most taps meet nothing but
    padding (3×3 on a single pixel: eight of nine); leaving them out saves their work and changes nothing.
    """
    reach = (-(-size // stride) - 1) * stride
    before = max(reach + kernel - size, 0) // 2 if same else kernel // 2
    start, stop = max(0, before - reach), min(kernel, size + before)
    after = max(0, reach + stop - size - before)
    return Window(slice(start, stop), before - start, after, reach)


class Convolution(Layer):
    """A convolution without bias: dense, or depthwise (one kernel per channel)."""

    def __init__(
        self,
        before: int,
        after: int,
        kernel: int = 1,
        stride: int = 1,
        depthwise: bool = False,
        same: bool = False,
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.depthwise, self.same = kernel, stride, depthwise, same
        self.weight = nn.Parameter(torch.empty(after, 1 if depthwise else before, kernel, kernel))
        nn.init.kaiming_normal_(self.weight, mode="fan_out")

    def forward(
        self,
        x: Tensor,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        activation: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """(N, H, W, C) → (N, ⌈H/stride⌉, ⌈W/stride⌉, C′), each channel scaled and shifted where that is given."""
        rows, columns = self.windows(x)
        weight = self.weight if scale is None else self.weight * scale.view(-1, 1, 1, 1)
        weight = weight[:, :, rows.taps, columns.taps]
        if kernels.usable(x) and self._has_kernel():
            return self._launch(x, weight, shift, activation, rows, columns)
        y = self._plain(x, weight.to(x.dtype), None if shift is None else shift.to(x.dtype), rows, columns)
        return y if activation is None else activation(y)

    def _has_kernel(self) -> bool:
        """Whether there is one for many clients at once (written out), or for one model where nothing is trained."""
        if self.depthwise:
            return self.has_depthwise_kernel and (self.written_out or not torch.is_grad_enabled())
        return self.written_out or (self._is_stem and not torch.is_grad_enabled())

    @property
    def _is_stem(self) -> bool:
        """Whether it is dense and reads few channels, a case that libraries are slow at."""
        return not self.depthwise and self.kernel > 1 and self.weight.shape[1] <= FEW_CHANNELS

    @property
    def has_depthwise_kernel(self) -> bool:
        """Whether it is depthwise, of a size and stride that our kernels have."""
        return self.depthwise and self.kernel <= kernels.LARGEST_DEPTHWISE and self.stride <= kernels.LARGEST_STRIDE

    def windows(self, x: Tensor) -> tuple[Window, Window]:
        """Return what the kernel does along rows and columns."""
        rows, columns = (window(size, self.kernel, self.stride, self.same) for size in x.shape[1:3])
        return rows, columns

    def _plain(self, x: Tensor, weight: Tensor, shift: Tensor | None, rows: Window, columns: Window) -> Tensor:
        if weight.shape[2:] == (1, 1):
            x, weight = x[:, :: self.stride, :: self.stride], weight.flatten(1)
            if not self.depthwise:
                return linear(x, weight, shift)
            return x * weight.squeeze(1) if shift is None else torch.addcmul(shift, x, weight.squeeze(1))
        return (self._products if self.written_out else self._convolve)(x, weight, shift, rows, columns)

    def _launch(
        self,
        x: Tensor,
        weight: Tensor,
        shift: Tensor | None,
        activation: Callable[[Tensor], Tensor] | None,
        rows: Window,
        columns: Window,
    ) -> Tensor:
        """Do it by kernels: written out, for many clients; else for one model's depthwise convolution."""
        from hcfl.models.kernels.depthwise import Placement, convolve, convolve_clients  # needs Triton
        from hcfl.models.kernels.product import product

        place = Placement.of(self.stride, rows, columns)
        if not self.written_out and self.depthwise:
            ceiling = kernels.CEILINGS.get(activation)
            if shift is not None and ceiling is not None:
                return convolve(x, weight, place, shift=shift, ceiling=ceiling)
            y = convolve(x, weight, place)
        elif self.depthwise:
            y = convolve_clients(x, weight, place)
        else:
            # Cast first, so that shifted copies of the image are small ones.
            x = x.to(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else x
            y = (product if self.written_out else linear)(*self._unfolded(x, weight, rows, columns))
        y = y if shift is None else y + shift.to(y.dtype)
        return y if activation is None else activation(y)

    def _unfolded(self, x: Tensor, weight: Tensor, rows: Window, columns: Window) -> tuple[Tensor, Tensor]:
        """Return images and weights as factors of one product; rows of both are filled up to 16 bytes."""
        if weight.shape[2:] == (1, 1):
            return x[:, :: self.stride, :: self.stride], weight.flatten(1)
        weight = weight.permute(0, 2, 3, 1).flatten(1)
        missing = -weight.shape[1] % 8
        return self._seen(x, rows, columns, missing), pad(weight, (0, missing))

    def _seen(self, x: Tensor, rows: Window, columns: Window, missing: int) -> Tensor:
        """Return what all taps see of the image side by side, (N, H′, W′, taps · C + missing)."""
        if not self._is_stem:
            shifted = self._shifted(x, rows, columns)
            if missing:
                shifted.append(x.new_zeros(()).expand(*shifted[0].shape[:-1], missing))
            return torch.cat(shifted, dim=-1)
        # Pieces of three values would be copied one tap after another: slide a window over the image instead.
        x = _padded(x, rows, columns)[:, : rows.reach + rows.width, : columns.reach + columns.width]
        windows = x.unfold(1, rows.width, self.stride).unfold(2, columns.width, self.stride)
        return pad(windows.movedim(3, -1).flatten(3), (0, missing))

    def _convolve(self, x: Tensor, weight: Tensor, shift: Tensor | None, rows: Window, columns: Window) -> Tensor:
        padding = rows.before, columns.before
        if rows.after > rows.before or columns.after > columns.before:  # conv2d itself pads both sides alike
            x, padding = _padded(x, rows, columns), (0, 0)
        groups = x.shape[-1] if self.depthwise else 1
        return conv2d(x.movedim(-1, 1), weight, shift, self.stride, padding, 1, groups).movedim(1, -1)

    def _products(self, x: Tensor, weight: Tensor, shift: Tensor | None, rows: Window, columns: Window) -> Tensor:
        shifted = self._shifted(x, rows, columns)
        if self.depthwise:
            first, *others = (part * tap for part, tap in zip(shifted, weight.flatten(1).unbind(1), strict=True))
            y = sum(others, first)
        else:
            y = torch.cat(shifted, dim=-1) @ weight.permute(2, 3, 1, 0).flatten(0, 2)
        return y if shift is None else y + shift

    def _shifted(self, x: Tensor, rows: Window, columns: Window) -> list[Tensor]:
        """Return what each tap of the kernel sees of the image."""
        x, taps = _padded(x, rows, columns), range(self.kernel)
        return [
            x[:, i : i + rows.reach + 1 : self.stride, j : j + columns.reach + 1 : self.stride]
            for i, _ in enumerate(taps[rows.taps])
            for j, _ in enumerate(taps[columns.taps])
        ]


def _padded(x: Tensor, rows: Window, columns: Window) -> Tensor:
    return pad(x, (0, 0, columns.before, columns.after, rows.before, rows.after))


class BatchNorm(Layer):
    """Batch normalisation. In training mode it updates the running statistics in place, wherever they were passed in.

    Under `vmap` each client's statistics are updated, as long as they are stacked like the parameters. Written out, it
    can be told each sample's `share` of the batch: what has none counts nothing, as if it were not there.
    """

    running_mean: Tensor
    running_var: Tensor
    share: Tensor
    """Written out: (samples,), or nothing, where all count alike."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel over samples and pixels."""
        return self.activated(x, None)

    def activated(self, x: Tensor, activation: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Normalise, then apply an activation."""
        if self.has_kernel(x):
            return self._launch(x, activation)
        y = self._normalised(x)
        return y if activation is None else activation(y)

    def has_kernel(self, x: Tensor) -> bool:
        """Whether kernels normalise by the batch's statistics: written out, for many clients."""
        return self.written_out and self.training and self.share.numel() > 0 and kernels.usable(x)

    def of_kernels(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return what kernels normalise by."""
        return self.weight, self.bias, self.running_mean, self.running_var, self.share

    def _launch(self, x: Tensor, activation: Callable[[Tensor], Tensor] | None) -> Tensor:
        from hcfl.models.kernels.normalise import Form, normalise  # needs Triton

        ceiling = kernels.CEILINGS.get(activation)
        y = normalise(x, *self.of_kernels(), Form(self.eps, MOMENTUM, ceiling))
        return y if activation is None or ceiling is not None else activation(y)

    def _normalised(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if not self.written_out:
            channels_first = x.movedim(-1, 1)
            y = batch_norm(channels_first, mean, var, self.weight, self.bias, self.training, MOMENTUM, self.eps)
            return y.movedim(1, -1)
        exact = x.float() if x.dtype == torch.bfloat16 else x
        if self.training:
            if self.share.numel():  # what counts nothing is normalised by nothing of its own: it could grow for ever
                exact = torch.where(self.share.view(-1, 1, 1, 1) > 0, exact, 0)
            mean, var = self._measure(exact)
        scale = self.weight * torch.rsqrt(var + self.eps)
        return ((exact - mean) * scale + self.bias).to(x.dtype)

    def fixed(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift of each channel by the running statistics."""
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        return scale, self.bias - self.running_mean * scale

    def _measure(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the batch; the running ones follow."""
        pixels = x.shape[1] * x.shape[2]
        share = self.share if self.share.numel() else x.new_full((len(x),), 1 / len(x))
        each = (share / pixels).view(-1, 1, 1, 1)
        mean = (x * each).sum(dim=(0, 1, 2))
        var = ((x - mean).square() * each).sum(dim=(0, 1, 2))
        with torch.no_grad():  # out of place, then copied: no intermediate is written to under vmap
            values = (share > 0).sum() * pixels
            momentum = MOMENTUM * (values > 0)
            unbiased = var * (values / (values - 1).clamp_min(1))
            self.running_mean.copy_(self.running_mean + momentum * (mean - self.running_mean))
            self.running_var.copy_(self.running_var + momentum * (unbiased - self.running_var))
        return mean, var


class GroupNorm(nn.Module):
    """Group normalisation: of each sample by itself, so there are no running statistics to average."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.groups, self.eps = channels // gcd(channels, GROUP), eps
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise groups of channels over the sample's pixels."""
        return group_norm(x.movedim(-1, 1), self.groups, self.weight, self.bias, self.eps).movedim(1, -1)


class Unit(nn.Module):
    """Convolution, normalisation, activation."""

    def __init__(self, conv: Convolution, norm: nn.Module, activation: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.conv, self.norm, self.activation = conv, norm, activation

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, C) → (N, H′, W′, C′)."""
        if isinstance(self.norm, BatchNorm) and not self.norm.training:  # then the convolution can do it on its way
            y: Tensor = self.conv(x, *self.norm.fixed(), self.activation)
            return y
        if isinstance(self.norm, BatchNorm):
            return self.norm.activated(self.conv(x), self.activation)
        y = self.norm(self.conv(x))
        return y if self.activation is None else self.activation(y)


@dataclass(frozen=True)
class Style:
    """What all units of a network have in common."""

    norm: NormName = "batch"
    eps: float = 1e-5
    same: bool = False
    activation: Callable[[Tensor], Tensor] = relu

    def unit(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, depthwise: bool = False, active: bool = True
    ) -> Unit:
        """Build one."""
        conv = Convolution(before, after, kernel, stride, depthwise, self.same)
        norm = (BatchNorm if self.norm == "batch" else GroupNorm)(after, self.eps)
        return Unit(conv, norm, self.activation if active else None)


def unit_names(here: str, conv: str, norm: str) -> dict[str, str]:
    """Return a unit's modules → what they are called elsewhere."""
    return {f"{here}.conv": conv, f"{here}.norm": norm}


def check_image(model: str, shape: tuple[int, ...]) -> None:
    """Refuse inputs that are no images."""
    if len(shape) != 3:
        raise InputError(f"model.name = {model}: reads images (H, W, C), but the inputs have shape {shape}")
