"""Matrix products of many clients, each with weights of its own."""

from typing import Any

import torch
from torch import Tensor

from hcfl.models.kernels.clients import over_clients


class Product(torch.autograd.Function):
    """x·Wᵀ for x (clients, rows, inputs) and W (clients, outputs, inputs), rounded to the type of x.

    The gradient of W comes in its own precision and layout, so that it is neither converted nor copied.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """Return the product, (clients, rows, outputs)."""
        rounded = weight.to(x.dtype)
        ctx.save_for_backward(x, rounded)
        ctx.exact = weight.dtype
        return torch.bmm(x, rounded.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the gradients of both factors."""
        x, rounded = ctx.saved_tensors
        dx = torch.bmm(dy, rounded) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return dx, None
        if ctx.exact == x.dtype:
            return dx, torch.bmm(dy.mT, x)
        return dx, torch.bmm(dy.mT, x, out_dtype=ctx.exact)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x·Wᵀ over the last axis of one client's x, inside `torch.func.vmap` over the clients."""
    return over_clients(Product, x.flatten(0, -2), weight).view(*x.shape[:-1], -1)
