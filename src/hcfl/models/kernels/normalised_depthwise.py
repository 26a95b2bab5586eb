"""Batch normalisation, its activation and a depthwise convolution as one: what lies between them is never written."""

from typing import Any

import torch
from torch import Tensor

from hcfl.models.kernels import depthwise, normalise
from hcfl.models.kernels.clients import over_clients
from hcfl.models.kernels.depthwise import Entry, Placement, taps_last
from hcfl.models.kernels.normalise import Form, Statistics


class NormalisedDepthwise(torch.autograd.Function):
    """All clients' normalisation, activation and depthwise convolution, with gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *rest: Any) -> Tensor:
        """Arguments as of `normalise.forward`, then the taps (clients, height, width, C) and where they lie."""
        weight, bias, running_mean, running_var, share, form, taps, place = rest
        statistics = normalise.measure(x, running_mean, running_var, share, form)
        ctx.save_for_backward(x, weight, bias, share, taps, *statistics)
        ctx.ceiling, ctx.place = form.ceiling, place
        return depthwise.forward(x, taps, place, Entry(*statistics, weight, bias, form.ceiling, share))

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of images, normalisation and taps."""
        x, weight, bias, share, taps, mean, rstd = ctx.saved_tensors
        entry = Entry(mean, rstd, weight, bias, ctx.ceiling, share)
        found = depthwise.backward(x, taps, dy.contiguous(), ctx.place, entry)
        sums = torch.stack([found.bias, found.gain], dim=1)
        dx = normalise.to_images(x, found.images, weight, bias, share, Statistics(mean, rstd), sums, None)
        return dx, found.gain, found.bias, None, None, None, None, found.taps, None


def normalised_depthwise(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    share: Tensor,
    form: Form,
    kernel: Tensor,
    place: Placement,
) -> Tensor:
    """Do it for one client's images, inside `torch.func.vmap` over clients; running statistics follow."""
    normalised_by = weight, bias, running_mean, running_var, share, form
    return over_clients(NormalisedDepthwise, x, *normalised_by, taps_last(kernel), place)
