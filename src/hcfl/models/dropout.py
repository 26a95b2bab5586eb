"""Dropout whose masks are computed, not drawn: the same on every device, in every engine, for any chunk of clients.

Whether a value stays is a hash of (key, step, position of the sample in its batch, feature), in whole numbers that
never exceed 63 bits. So a client's masks depend on nothing but its key and its own steps: not on which clients train
beside it, on how far batches are filled up, or on what was drawn before.

Features are dropped beside the extractor, before heads see them. Dropout layers inside a network are replaced by
layers of ours, which work by the same hash: each layer, and each use of a layer in one pass, has masks of its own.

Nothing here is compiled: torch's compiler multiplies an arange in 32 bits.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from hcfl import rng

Moment = tuple[Tensor | int, Tensor | int]
"""Whose masks, and when: the client's key, and how many steps it has taken before."""

BEGINNING: Moment = (0, 0)
"""For passes that are no step of any client."""

WORD = 0xFFFFFFFF
"""Hashes have 32 bits."""

STRIDE = 0x9E3779B9
"""2³² over the golden ratio: multiples of it lie far apart."""

FACTORS = (0x2C1B3C6D, 0x297A2D39)
"""Odd, and below 2³¹, so that a product with a word still fits a signed 64-bit number."""


def drop(features: Tensor, rate: float, keys: Tensor | int, steps: Tensor | int) -> Tensor:
    """Set a share of the features (…, samples, features) to 0, and scale the others up, so that means stay.

    `keys` and `steps` (…) say which client the features belong to, and how many steps that client has taken before.
    """
    if rate == 0:
        return features
    key, step = (torch.as_tensor(numbers, device=features.device) for numbers in (keys, steps))
    return torch.where(kept(features.shape, rate, key, step), features / (1 - rate), 0)


def kept(shape: Sequence[int], rate: float, keys: Tensor, steps: Tensor) -> Tensor:
    """Return which values of this shape stay; its first axes are those of the keys, its next one is of samples.

    An axis may become longer, for batches that are filled up, and changes nothing for the values that were there.
    """
    *axes, last = shape[keys.ndim :]
    hashes = _mixed(_mixed((keys & WORD) ^ steps) ^ (keys >> 32))
    for size in axes:
        hashes = _mixed(hashes.unsqueeze(-1) ^ torch.arange(size, device=keys.device))
    counters = torch.arange(last, device=keys.device) * STRIDE & WORD
    return _mixed((hashes.unsqueeze(-1) + counters).bitwise_and_(WORD)) >= round(rate * (WORD + 1))


def _mixed(words: Tensor) -> Tensor:
    """Turn 32-bit words into others, one to one, so that close ones become unlike; in place."""
    words ^= words >> 15
    words.mul_(FACTORS[0]).bitwise_and_(WORD)
    words ^= words >> 12
    words.mul_(FACTORS[1]).bitwise_and_(WORD)
    words ^= words >> 15
    return words


class Dropout(nn.Module):
    """A dropout layer inside a network. What it drops in training is known from the moment that `at` sets."""

    def __init__(self, rate: float, number: int, channels: bool) -> None:
        super().__init__()
        self.rate, self.channels = rate, channels
        self.number = number
        """Which of the network's dropout layers it is."""
        self.moment, self.uses = BEGINNING, 0

    def forward(self, x: Tensor) -> Tensor:
        """Drop single values, or whole channels, of each sample: (samples, channels, …)."""
        if not self.training:
            return x
        key, step = self.moment
        mine = key ^ rng.derive(self.number, "dropout layer", self.uses)
        self.uses += 1
        shape = x.shape[:2] if self.channels else x.shape
        stays = kept(shape, self.rate, *(torch.as_tensor(number, device=x.device) for number in (mine, step)))
        return torch.where(stays.view(*shape, *(1,) * (x.ndim - len(shape))), x / (1 - self.rate), 0)

    def extra_repr(self) -> str:
        """Say what it drops."""
        return f"rate={self.rate}, channels={self.channels}"


CHANNELS: dict[type[nn.Module], bool] = {nn.Dropout: False, nn.Dropout1d: True, nn.Dropout2d: True, nn.Dropout3d: True}
"""The layers of torch that are replaced, and whether they drop whole channels."""


def with_computed_masks(extractor: nn.Module, head: nn.Module) -> tuple[nn.Module, nn.Module]:
    """Return both with our dropout layers in the place of torch's, as copies that share all parameters and buffers.

    What has no dropout layer is returned as it is.
    """
    found = [
        part
        for part in (*extractor.modules(), *head.modules())
        if isinstance(part, _DropoutNd) and type(part) in CHANNELS and 0 < part.p < 1
    ]
    if not found:
        return extractor, head
    ours = {id(part): Dropout(part.p, number, CHANNELS[type(part)]) for number, part in enumerate(found)}
    tensors = chain.from_iterable((*module.parameters(), *module.buffers()) for module in (extractor, head))
    # What `deepcopy` finds in its memo it takes for copied already.
    return deepcopy((extractor, head), {**ours, **{id(tensor): tensor for tensor in tensors}})


def dropout_layers(module: nn.Module) -> tuple[Dropout, ...]:
    """Return the layers that `at` is for."""
    return tuple(part for part in module.modules() if isinstance(part, Dropout))


@contextmanager
def at(layers: Sequence[Dropout], moment: Moment) -> Iterator[None]:
    """Let layers drop what belongs to a moment during one pass."""
    for layer in layers:
        layer.moment, layer.uses = moment, 0
    try:
        yield
    finally:
        for layer in layers:
            layer.moment, layer.uses = BEGINNING, 0
