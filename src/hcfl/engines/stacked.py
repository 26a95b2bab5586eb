"""Several clients' extractors as one: stacked parameters, one forward pass, compiled where that pays."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from hcfl.engines.drawing import drawing_layers
from hcfl.models import BatchNorm, Network, Params, write_out
from hcfl.models.dropout import Moment, at, dropout_layers

Embed = Callable[[Params, Params, Tensor, Tensor, Moment], Tensor]
"""(parameters, statistics, inputs, shares, moments), each with a leading axis of clients → features
(clients, batch, …)."""


@dataclass
class Program:
    """The forward pass of stacked extractors. Compiled at the first call; what cannot be compiled runs as it is."""

    embed: Embed
    compiled: Embed | None = None

    def __call__(self, parameters: Params, statistics: Params, inputs: Tensor, share: Tensor, moment: Moment) -> Tensor:
        """Run it."""
        if self.compiled is not None:
            try:
                return self.compiled(parameters, statistics, inputs, share, moment)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler raises, the same without it is still right
                reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                warnings.warn(f"the network could not be compiled ({reason}); going on without, slower", stacklevel=2)
                self.compiled = None
        return self.embed(parameters, statistics, inputs, share, moment)


@dataclass(frozen=True)
class Stacked:
    """A network whose extractor runs for many clients at once."""

    network: Network
    compiled: bool = False
    program: Program = field(init=False)
    alike: bool = field(init=False)
    """Whether only batches of the same size may be put together."""

    def __post_init__(self) -> None:
        written = write_out(self.network.extractor)
        masked = [name for name, module in written.named_modules() if isinstance(module, BatchNorm)]
        with_buffers = {name.rpartition(".")[0] for name in self.network.buffers}
        object.__setattr__(self, "alike", not with_buffers <= set(masked))

        layers = dropout_layers(written)

        def one(parameters: Params, statistics: Params, inputs: Tensor, share: Tensor, moment: Moment) -> Tensor:
            shares = {f"{name}.share": share for name in masked}
            with at(layers, moment) if layers else nullcontext():  # a compiler has nothing to do for none
                features: Tensor = functional_call(written, {**parameters, **statistics, **shares}, (inputs,))
            return features

        def embed(parameters: Params, statistics: Params, inputs: Tensor, share: Tensor, moment: Moment) -> Tensor:
            features: Tensor = vmap(one)(parameters, statistics, inputs, share, moment)
            return features

        self.network.set_mode(written, True)
        compiled: Embed | None = torch.compile(embed, dynamic=False) if self.compiled else None
        object.__setattr__(self, "program", Program(embed, compiled))

    @property
    def fixed(self) -> bool:
        """Whether all steps should have the same shape: each other one would be compiled anew."""
        return self.compiled and not self.alike

    def embed(
        self,
        parameters: Params,
        statistics: Params,
        inputs: Tensor,
        share: Tensor,
        moment: Moment,
        rows: Tensor | None,
    ) -> Tensor:
        """Return the features of every client's batch by its own extractor; statistics follow, in place."""
        mine = statistics if rows is None else {name: tensor[rows] for name, tensor in statistics.items()}
        with self.network.autocast(inputs.device):
            features = self.program(parameters, mine, inputs, share, moment)
        if rows is not None:
            for name, tensor in mine.items():
                statistics[name][rows] = tensor
        return features.float() if features.dtype == torch.bfloat16 else features

    def logits(self, heads: Params, features: Tensor, moment: Moment) -> Tensor:
        """Return the logits of all clients' heads from their features, (clients, batch, heads, classes)."""
        if self.network.plain_head(heads):
            weight, bias = heads["weight"], heads["bias"]
            flat = torch.baddbmm(bias.flatten(1).unsqueeze(1), features, weight.flatten(1, 2).mT)
            return flat.view(*flat.shape[:2], *bias.shape[1:])

        def one(heads: Params, features: Tensor, moment: Moment) -> Tensor:
            return self.network.logits(heads, features, training=True, moment=moment)

        logits: Tensor = vmap(one)(heads, features, moment)
        return logits


@lru_cache(maxsize=4)
def stacked(network: Network, compiled: bool) -> Stacked:
    """Return the network for many clients at once; it is made, and compiled, only once."""
    return Stacked(network, compiled)


def can_be_batched(network: Network, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bool:
    """Whether an extractor can train for several clients at once: tried, since torch has no rule for some layers."""
    if drawing_layers(network, shape, dtype):
        return True  # its clients train one after another anyway, and the user is told
    if network.fixed:
        return True  # only heads are trained
    copies = {name: torch.stack([tensor, tensor]) for name, tensor in network.trained_part(network.extractor).items()}
    statistics = {name: copies.pop(name) for name in list(copies) if name in network.buffers}
    trained = {name: tensor.requires_grad_() for name, tensor in copies.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")  # torch goes on sample by sample, very slowly
            inputs, share, moment = torch.zeros(2, 2, *shape, dtype=dtype), torch.full((2, 2), 0.5), torch.zeros(2)
            features = Stacked(network).embed(trained, statistics, inputs, share, (moment.long(), moment.long()), None)
            torch.autograd.grad(features.sum(), list(trained.values()), allow_unused=True)
    except (RuntimeError, NotImplementedError, UserWarning):
        return False
    return True
