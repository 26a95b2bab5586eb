"""How a function of many clients' tensors is reached from code that is written for one client, under `vmap`."""

from typing import Any

import torch
from torch import Tensor


def over_clients(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    """Call a function whose tensors have a leading axis of clients, from inside `torch.func.vmap` over the clients."""
    result: Tensor = _OverClients.apply(function, *arguments)  # type: ignore[no-untyped-call]
    return result


class _OverClients(torch.autograd.Function):
    """One client's view of a function of all clients."""

    @staticmethod
    def forward(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
        raise RuntimeError(f"{function.__name__} is for many clients at once: call it under torch.func.vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Nothing to keep: what is differentiated is the function of all clients."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], function: type[torch.autograd.Function], *arguments: Any
    ) -> tuple[Tensor, int]:
        """Put the clients first and call it."""
        lined = [
            _clients_first(argument, dim, info.batch_size) if isinstance(argument, Tensor) else argument
            for argument, dim in zip(arguments, in_dims[1:], strict=True)
        ]
        result: Tensor = function.apply(*lined)  # type: ignore[no-untyped-call]
        return result, 0


def _clients_first(tensor: Tensor, dim: int | None, clients: int) -> Tensor:
    first = tensor.expand(clients, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return first.contiguous()
