"""A network is a feature extractor φ and a head; parameters are plain dictionaries, passed in by the caller."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import linear

from hcfl.errors import InputError
from hcfl.models import kernels
from hcfl.models.dropout import BEGINNING, Dropout, Moment, at, dropout_layers, with_computed_masks
from hcfl.models.layers import has_kernels
from hcfl.models.recorded_pass import Passes
from hcfl.models.tasks import CLASSES, Task
from hcfl.own_code import described_error

Params = dict[str, Tensor]
"""Parameters and buffers by name."""

Pair = tuple[nn.Module, nn.Module]
"""An extractor (inputs → features) and a head (features → logits)."""

Builder = Callable[[tuple[int, ...], int], Pair]
"""(shape of one input, number of classes) → freshly initialised extractor and head."""


@dataclass(frozen=True)
class Network:
    """The two modules as templates: of their own tensors, only the extractor's frozen ones are used.

    Their dropout layers are ours, whose masks are computed (`dropout.py`).
    """

    extractor: nn.Module
    head: nn.Module
    half: bool = False
    """Whether the extractor computes in bfloat16; parameters, statistics, features and heads stay in float32."""
    task: Task = CLASSES
    """What its outputs mean."""

    def __post_init__(self) -> None:
        extractor, head = with_computed_masks(self.extractor, self.head)
        object.__setattr__(self, "extractor", extractor)
        object.__setattr__(self, "head", head)

    @cached_property
    def dropout_layers(self) -> tuple[tuple[Dropout, ...], tuple[Dropout, ...]]:
        """Dropout layers of the extractor and of the head."""
        return dropout_layers(self.extractor), dropout_layers(self.head)

    def autocast(self, device: torch.device) -> torch.autocast:
        """Return the context that the extractor computes in."""
        return torch.autocast(device.type, torch.bfloat16, enabled=self.half)

    @cached_property
    def frozen(self) -> frozenset[str]:
        """Names of the extractor's tensors that are not trained: all models share those of the template.

        Parameters without gradients, and the buffers of layers that have no others. Where something is frozen, so are
        buffers of layers without parameters.
        """
        parameters = {
            name for name, tensor in self.extractor.named_parameters(remove_duplicate=False) if not tensor.requires_grad
        }
        buffers = {
            f"{prefix}.{name}" if prefix else name
            for prefix, layer in self.extractor.named_modules()
            for name, _ in layer.named_buffers(recurse=False)
            if parameters and not _learns(layer)
        }
        return frozenset(parameters | buffers)

    @cached_property
    def buffers(self) -> frozenset[str]:
        """Names of the extractor's buffers that follow training: averaged like weights, but never compared."""
        return frozenset(name for name, _ in self.extractor.named_buffers()) - self.frozen

    @property
    def untrained(self) -> frozenset[str]:
        """Names of what the gradient does not change: buffers, and what is frozen."""
        return self.buffers | self.frozen

    @cached_property
    def fixed(self) -> bool:
        """Whether all of the extractor is frozen: then the features of an input never change."""
        return bool(self.frozen) and self.frozen >= self.extractor.state_dict().keys()

    def trained_part(self, extractor: nn.Module) -> Params:
        """Copy what is trained of an extractor like the template."""
        return {name: tensor for name, tensor in parameters_of(extractor).items() if name not in self.frozen}

    def frozen_part(self) -> Params:
        """Return the template's frozen tensors that belong to a state."""
        return {name: tensor for name, tensor in self.extractor.state_dict().items() if name in self.frozen}

    def to(self, device: torch.device) -> "Network":
        """Return the network with its frozen tensors on a device."""
        return replace(self, extractor=deepcopy(self.extractor).to(device))

    def set_mode(self, extractor: nn.Module, training: bool) -> None:
        """Set an extractor like the template to training or evaluation.

        Where something is frozen, only layers that are trained are in training mode: a frozen batch normalisation goes
        by its running statistics, and dropout layers do nothing.
        """
        extractor.train(training)
        if training and self.frozen:
            for layer in extractor.modules():
                layer.training = _learns(layer)

    @property
    def dropout(self) -> float:
        """Share of the features that training leaves out before the heads: the extractor's `feature_dropout`, if any.

        Nothing in the two modules does it: training drops features, anew in every step, where heads see them.
        """
        return float(getattr(self.extractor, "feature_dropout", 0.0))

    def plain_head(self, heads: Params) -> bool:
        """Whether heads are linear layers with a bias: several are then one product."""
        return type(self.head) is nn.Linear and "bias" in heads

    def embed(self, extractor: Params, inputs: Tensor, training: bool = False, moment: Moment = BEGINNING) -> Tensor:
        """Z = φ(x), (samples, features). In training mode running statistics in `extractor` are updated in place."""
        if not training and not torch.is_grad_enabled() and self.has_kernels and kernels.usable(inputs):
            return self.passes(extractor, inputs)
        return self._embed(extractor, inputs, training, moment)

    def _embed(self, extractor: Params, inputs: Tensor, training: bool = False, moment: Moment = BEGINNING) -> Tensor:
        self.set_mode(self.extractor, training)
        with self.autocast(inputs.device), at(self.dropout_layers[0], moment):
            features: Tensor = functional_call(self.extractor, extractor, (inputs,))
        return features.float() if features.dtype == torch.bfloat16 else features

    @cached_property
    def has_kernels(self) -> bool:
        """Whether the extractor runs by our kernels on a GPU."""
        return has_kernels(self.extractor)

    @cached_property
    def passes(self) -> Passes:
        """The extractor's passes where nothing is trained, which a GPU records."""
        return Passes(self._embed)

    def logits(self, heads: Params, features: Tensor, training: bool = False, moment: Moment = BEGINNING) -> Tensor:
        """Logits of all heads from the same features, (samples, heads, classes), as one product.

        Dropout layers in heads drop the same in all of them.
        """
        if self.plain_head(heads):
            weight, bias = heads["weight"], heads["bias"]
            return linear(features, weight.flatten(0, 1), bias.flatten()).view(-1, *bias.shape)

        self.head.train(training)

        def one_head(params: Params) -> Tensor:
            out: Tensor = functional_call(self.head, params, (features,))
            return out

        with at(self.dropout_layers[1], moment):
            logits: Tensor = vmap(one_head, out_dims=1, randomness="different")(heads)
        return logits


def _learns(layer: nn.Module) -> bool:
    """Whether a layer has parameters of its own that are trained."""
    return any(tensor.requires_grad for tensor in layer.parameters(recurse=False))


def built_for(task: Task, model: Builder | Pair) -> Builder | Pair:
    """Return a model whose heads have what the task needs."""
    if not callable(model):
        extractor, head = model
        return extractor, task.head(head)

    def build(shape: tuple[int, ...], outputs: int) -> Pair:
        extractor, head = model(shape, outputs)
        return extractor, task.head(head)

    return build


def parameters_of(module: nn.Module) -> Params:
    """Copy a module's parameters and buffers."""
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def check_pair(pair: object, shape: tuple[int, ...], classes: int, dtype: torch.dtype = torch.float32) -> Network:
    """Return a pair as a network; what does not map inputs of this shape and type to one logit per class is refused."""
    if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(part, nn.Module) for part in pair)):
        raise InputError(f"model: must be a pair of modules (extractor, head), not {type(pair).__name__}")
    extractor, head = pair
    if any(True for _ in head.buffers()):
        raise InputError(
            "model: the head has buffers (a normalisation layer, for example), but K heads run as one product; "
            "move such layers into the extractor"
        )
    rate = getattr(extractor, "feature_dropout", 0.0)
    if not (isinstance(rate, int | float) and 0 <= rate < 1):
        raise InputError(f"model: feature_dropout = {rate!r} of the extractor: must be at least 0 and less than 1")
    try:
        with torch.no_grad():
            features = extractor.eval()(torch.zeros(2, *shape, dtype=dtype))
            logits = head.eval()(features)
    except Exception as error:  # whatever a user's module raises is the user's to read
        raise InputError(f"model: it cannot read inputs of shape {shape} ({described_error(error)})") from error
    if not any(True for _ in head.parameters()):
        raise InputError("model: the head has no parameters, so clusters could not differ")
    if not isinstance(features, Tensor) or features.ndim != 2:
        raise InputError(
            f"model: the extractor gives {_described(features)} for two samples, but a flat vector each is needed; "
            "end it with nn.Flatten()"
        )
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        values = logits.shape[-1] if isinstance(logits, Tensor) and logits.ndim else _described(logits)
        raise InputError(f"model: its output has {values} values per sample, but the data need {classes}")
    return Network(extractor, head)


def _described(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
