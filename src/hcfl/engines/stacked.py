"""Several clients' extractors as one: stacked parameters, one forward pass, compiled where that pays."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hcfl.models import BatchNorm, Network, Params, write_out

Embed = Callable[[Params, Params, Tensor, Tensor], Tensor]
"""(parameters, statistics, inputs, shares), each with a leading axis of clients → features (clients, batch, …)."""


@dataclass
class Program:
    """The forward pass of stacked extractors. Compiled at the first call; what cannot be compiled runs as it is."""

    embed: Embed
    compiled: Embed | None = None

    def __call__(self, parameters: Params, statistics: Params, inputs: Tensor, share: Tensor) -> Tensor:
        """Run it."""
        if self.compiled is not None:
            try:
                return self.compiled(parameters, statistics, inputs, share)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a compiler raises, the same without it is still right
                reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
                warnings.warn(f"the network could not be compiled ({reason}); going on without, slower", stacklevel=2)
                self.compiled = None
        return self.embed(parameters, statistics, inputs, share)


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

        def one(parameters: Params, statistics: Params, inputs: Tensor, share: Tensor) -> Tensor:
            shares = {f"{name}.share": share for name in masked}
            features: Tensor = functional_call(written, {**parameters, **statistics, **shares}, (inputs,))
            return features

        def embed(parameters: Params, statistics: Params, inputs: Tensor, share: Tensor) -> Tensor:
            features: Tensor = vmap(one, randomness="different")(parameters, statistics, inputs, share)
            return features

        self.network.set_mode(written, True)
        compiled: Embed | None = torch.compile(embed, dynamic=False) if self.compiled else None
        object.__setattr__(self, "program", Program(embed, compiled))

    @property
    def fixed(self) -> bool:
        """Whether all steps should have the same shape: each other one would be compiled anew."""
        return self.compiled and not self.alike

    def embed(
        self, parameters: Params, statistics: Params, inputs: Tensor, share: Tensor, rows: Tensor | None
    ) -> Tensor:
        """Return the features of every client's batch by its own extractor; statistics follow, in place."""
        mine = statistics if rows is None else {name: tensor[rows] for name, tensor in statistics.items()}
        with self.network.autocast(inputs.device):
            features = self.program(parameters, mine, inputs, share)
        if rows is not None:
            for name, tensor in mine.items():
                statistics[name][rows] = tensor
        return features.float() if features.dtype == torch.bfloat16 else features

    def logits(self, heads: Params, features: Tensor) -> Tensor:
        """Return the logits of all clients' heads from their features, (clients, batch, heads, classes)."""
        if self.network.plain_head(heads):
            weight, bias = heads["weight"], heads["bias"]
            flat = torch.baddbmm(bias.flatten(1).unsqueeze(1), features, weight.flatten(1, 2).mT)
            return flat.view(*flat.shape[:2], *bias.shape[1:])
        logits: Tensor = vmap(partial(self.network.logits, training=True), randomness="different")(heads, features)
        return logits


@lru_cache(maxsize=4)
def stacked(network: Network, compiled: bool) -> Stacked:
    """Return the network for many clients at once; it is made, and compiled, only once."""
    return Stacked(network, compiled)


@lru_cache(maxsize=4)
def one_by_one(network: Network) -> bool:
    """Whether layers draw random numbers in training, so that each client trains by itself; the user is told, once."""
    found = draws(network)
    if found:
        warnings.warn(
            "the model has dropout layers, so the batched engine trains one client after another, slower; "
            "dropout just before the head needs no layer: extractor.feature_dropout = 0.2 trains all at once",
            stacklevel=3,
        )
    return found


def draws(network: Network) -> bool:
    """Whether layers draw random numbers in training: dropout as modules, not before the heads as hcfl does it."""
    modules = (*(() if network.frozen else network.extractor.modules()), *network.head.modules())
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in modules)


def can_be_batched(network: Network, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> bool:
    """Whether an extractor can train for several clients at once: tried, since torch has no rule for some layers."""
    if draws(network):
        return True  # its clients train one after another anyway, and the user is told
    if network.fixed:
        return True  # only heads are trained
    copies = {name: torch.stack([tensor, tensor]) for name, tensor in network.trained_part(network.extractor).items()}
    statistics = {name: copies.pop(name) for name in list(copies) if name in network.buffers}
    trained = {name: tensor.requires_grad_() for name, tensor in copies.items()}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*batching rule")  # torch goes on sample by sample, very slowly
            features = Stacked(network).embed(
                trained, statistics, torch.zeros(2, 2, *shape, dtype=dtype), torch.full((2, 2), 0.5), None
            )
            torch.autograd.grad(features.sum(), list(trained.values()), allow_unused=True)
    except (RuntimeError, NotImplementedError, UserWarning):
        return False
    return True
