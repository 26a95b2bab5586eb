"""How participants changed the models that they got: edited, measured, shortened."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from hcfl.core.state import Update
from hcfl.models import Params
from hcfl.models.ensemble import Ensemble, mix

Edit = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From what tensors of several models began with, (models, …), what they became, and whose they are, (models,)."""


@dataclass(frozen=True)
class Part:
    """One tensor of all trained models: before, after, and the position of the participant that each belongs to."""

    begun: Tensor
    trained: Tensor
    owners: Tensor

    @property
    def change(self) -> Tensor:
        """How each model changed, (models, numbers)."""
        return (self.trained - self.begun).reshape(len(self.trained), -1)


def extractor_parts(received: Ensemble, update: Update, buffers: frozenset[str]) -> Iterator[Part]:
    """Yield every parameter of the trained extractors: one for each participant (split), or for each model (full)."""
    for name, tensor in update.models.extractors.items():
        if name not in buffers and tensor.is_floating_point():
            yield Part(*_extractor(received, update, name))


def head_parts(received: Ensemble, update: Update) -> Iterator[Part]:
    """Yield every parameter of the trained heads, one for each model."""
    for name, tensor in update.models.heads.items():
        yield Part(mix(update.started.to(tensor), received.heads[name]), tensor, update.row_participants)


def _extractor(received: Ensemble, update: Update, name: str) -> tuple[Tensor, Tensor, Tensor]:
    tensor, shared = update.models.extractors[name], received.topology == "split"
    started = torch.ones(len(tensor), 1) if shared else update.started
    owners = torch.arange(len(update.clients)) if shared else update.row_participants
    return mix(started.to(tensor), received.extractors[name]), tensor, owners


def edited(received: Ensemble, update: Update, edit: Edit) -> Update:
    """Edit every tensor of the models, running statistics included; counters stay."""

    def extractor(name: str, tensor: Tensor) -> Tensor:
        return edit(*_extractor(received, update, name)) if tensor.is_floating_point() else tensor

    def head(name: str, tensor: Tensor) -> Tensor:
        return edit(mix(update.started.to(tensor), received.heads[name]), tensor, update.row_participants)

    models = update.models
    extractors: Params = {name: extractor(name, tensor) for name, tensor in models.extractors.items()}
    heads: Params = {name: head(name, tensor) for name, tensor in models.heads.items()}
    return replace(update, models=Ensemble(extractors, heads, models.topology))


def lengthened(received: Ensemble, update: Update, factors: Tensor) -> Update:
    """Multiply how each participant changed the models that it got, by factors (participants,)."""

    def times(begun: Tensor, trained: Tensor, owners: Tensor) -> Tensor:
        factor = factors[owners].to(trained).view(-1, *(1,) * (trained.ndim - 1))
        return torch.where(factor == 1, trained, begun + factor * (trained - begun))

    return edited(received, update, times)


def lengths(received: Ensemble, update: Update, buffers: frozenset[str]) -> Tensor:
    """‖Δ_i‖₂ of each participant over everything that it trained, (participants,), without running statistics."""
    squares = torch.zeros(len(update.clients), dtype=torch.float64)
    for part in chain(extractor_parts(received, update, buffers), head_parts(received, update)):
        squares.index_add_(0, part.owners, torch.linalg.vector_norm(part.change, dim=1).double().square().cpu())
    return squares.sqrt()


def shortened(received: Ensemble, update: Update, buffers: frozenset[str], longest: float) -> Update:
    """Shorten every change to `longest` times the round's median length; shorter changes stay as they are.

    The median adapts to the round, and less than half of the clients cannot move it beyond what others send. Of two
    lengths in the middle, it is the smaller.
    """
    found = lengths(received, update, buffers)
    most = longest * found.median()
    if not bool((found > most).any()):
        return update
    return lengthened(received, update, torch.where(found > most, most / found, 1.0))
