"""A network is a feature extractor φ and a head; parameters are plain dictionaries, passed in by the caller."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import linear

from hcfl.errors import InputError

Params = dict[str, Tensor]
"""Parameters and buffers by name."""

Pair = tuple[nn.Module, nn.Module]
"""An extractor (inputs → features) and a head (features → logits)."""

Builder = Callable[[tuple[int, ...], int], Pair]
"""(shape of one input, number of classes) → freshly initialised extractor and head."""


@dataclass(frozen=True)
class Network:
    """The two modules as templates: their own tensors are never used, only their code."""

    extractor: nn.Module
    head: nn.Module

    @property
    def buffers(self) -> frozenset[str]:
        """Names of the extractor's buffers: averaged like weights, but neither trained nor compared."""
        return frozenset(name for name, _ in self.extractor.named_buffers())

    def embed(self, extractor: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Z = φ(x), (samples, features). In training mode running statistics in `extractor` are updated in place."""
        self.extractor.train(training)
        features: Tensor = functional_call(self.extractor, extractor, (inputs,))
        return features

    def logits(self, heads: Params, features: Tensor) -> Tensor:
        """Logits of all heads from the same features, (samples, heads, classes), as one product."""
        if type(self.head) is nn.Linear and "bias" in heads:
            weight, bias = heads["weight"], heads["bias"]
            return linear(features, weight.flatten(0, 1), bias.flatten()).view(-1, *bias.shape)

        def one_head(params: Params) -> Tensor:
            out: Tensor = functional_call(self.head, params, (features,))
            return out

        logits: Tensor = vmap(one_head, out_dims=1)(heads)
        return logits


def parameters_of(module: nn.Module) -> Params:
    """Copy a module's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def check_pair(pair: Pair, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a pair of modules that does not map inputs of this shape to one logit per class."""
    extractor, head = pair
    if any(True for _ in head.buffers()):
        raise InputError(
            "model: the head has buffers (a normalisation layer, for example), but K heads run as one product; "
            "move such layers into the extractor"
        )
    try:
        with torch.no_grad():
            features = extractor.eval()(torch.zeros(2, *shape))
            logits = head.eval()(features)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"model: it cannot read inputs of shape {shape}: {reason}") from error
    if features.ndim != 2:
        raise InputError(
            f"model: the extractor gives features of shape {tuple(features.shape[1:])} per sample, "
            "but a flat vector is needed; end it with nn.Flatten()"
        )
    if logits.shape != (2, classes):
        raise InputError(
            f"model: its output has {logits.shape[-1]} values per sample, but the data have {classes} classes"
        )
