"""What clients train of an extractor: all of it, nothing, some of its parameters, or low-rank adapters (LoRA).

A parameter that is not trained has `requires_grad = False` in the network's template, whose own tensor is used: it is
the same for all clusters and all clients, and no state, upload or average contains it.
"""

from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from math import sqrt

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from hcfl.errors import InputError
from hcfl.models.layers import Convolution
from hcfl.models.network import Builder, Network, Pair

ALL, HEADS, ADAPTERS = "all", "heads", "adapters"

MOST_LISTED = 6
"""The largest number of names in a message."""


class LowRank(nn.Module):
    """W → W + scale·B·A with A (rank, inputs) and B (outputs, rank), as a parametrisation (Hu et al., 2022).

    B starts at 0, so a network with adapters starts as the network without. A starts as a linear layer's weight.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        outputs, inputs = weight.flatten(1).shape
        self.scale = scale
        self.A = nn.Parameter(torch.empty(rank, inputs, device=weight.device))
        self.B = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))
        nn.init.kaiming_uniform_(self.A, a=sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return weight + self.scale * (self.B @ self.A).view_as(weight)


@dataclass(frozen=True)
class TrainedPart:
    """What is trained beside the heads, which always are."""

    names: tuple[str, ...] = (ALL,)
    """all, heads, adapters, or names and patterns of the extractor's parameters."""
    rank: int = 4
    scale: float = 1.0
    layers: tuple[str, ...] = ("*",)
    """Names and patterns of the layers that get adapters."""

    def of(self, model: Builder | Pair) -> Builder | Pair:
        """Return a model of which only this is trained."""
        if self.names == (ALL,):
            return model
        if not callable(model):
            return self._chosen(*deepcopy(model))

        def build(shape: tuple[int, ...], outputs: int) -> Pair:
            return self._chosen(*model(shape, outputs))

        return build

    def network(self, plain: Network) -> Network:
        """Return a network of which only this is trained."""
        if self.names == (ALL,):
            return plain
        extractor, head = self._chosen(*deepcopy((plain.extractor, plain.head)))
        return replace(plain, extractor=extractor, head=head)

    def _chosen(self, extractor: nn.Module, head: nn.Module) -> Pair:
        """Freeze what is not trained, in place, and add adapters."""
        patterns = [name for name in self.names if name not in (HEADS, ADAPTERS)]
        parameters = dict(extractor.named_parameters())
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in parameters):
                raise InputError(f"training.train = {pattern!r}: {_unknown(pattern, list(parameters), 'parameter')}")
        for name, parameter in parameters.items():
            parameter.requires_grad_(any(fnmatchcase(name, pattern) for pattern in patterns))
        if ADAPTERS in self.names:
            self._adapt(extractor)
        return extractor, head

    def _adapt(self, extractor: nn.Module) -> None:
        layers = {name: layer for name, layer in extractor.named_modules() if is_linear(layer)}
        if not layers:
            raise InputError("training.train = 'adapters': the extractor has no linear and no 1×1 layer to adapt")
        for pattern in self.layers:
            if not any(fnmatchcase(name, pattern) for name in layers):
                raise InputError(
                    f"training.lora_layers = {pattern!r}: {_unknown(pattern, list(layers), 'linear or 1×1 layer')}"
                )
        for name, layer in layers.items():
            if any(fnmatchcase(name, pattern) for pattern in self.layers):
                adapter = LowRank(layer.weight, self.rank, self.scale)
                parametrize.register_parametrization(layer, "weight", adapter)


def is_linear(layer: nn.Module) -> bool:
    """Whether a layer is a product with one matrix for every position: linear, or a convolution with a 1×1 kernel."""
    if isinstance(layer, Convolution):
        return layer.kernel == 1 and not layer.depthwise
    if isinstance(layer, nn.modules.conv._ConvNd):
        return set(layer.kernel_size) == {1} and layer.groups == 1 and not layer.transposed
    return isinstance(layer, nn.Linear)


def merge_adapters(module: nn.Module) -> nn.Module:
    """Turn adapted weights into plain ones, in place.

    `parametrize.remove_parametrizations` would take the weight from the module's copies, too: they share a class.
    """
    for layer in [layer for layer in module.modules() if parametrize.is_parametrized(layer, "weight")]:
        if any(isinstance(part, LowRank) for part in layer.modules()):
            weight: Tensor = layer.weight  # type: ignore[assignment]
            layer.__class__ = type(layer).__bases__[0]
            del layer.parametrizations
            layer.register_parameter("weight", nn.Parameter(weight.detach()))
    return module


def _unknown(pattern: str, names: list[str], what: str) -> str:
    close = get_close_matches(pattern, names, n=1)
    listed = ", ".join(names[:MOST_LISTED]) + (", …" if len(names) > MOST_LISTED else "")
    hint = f"did you mean {close[0]}?" if close else f"it has {listed or 'none'}"
    return f"is no {what} of the extractor; {hint}"
