"""Dropout whose masks are computed, not drawn: the same on every device, in every engine, for any chunk of clients.

Whether a value stays is a hash of (key, step, position of the sample in its batch, feature), in whole numbers that
never exceed 63 bits. So a client's masks depend on nothing but its key and its own steps: not on which clients train
beside it, on how far batches are filled up, or on what was drawn before.

This runs beside the compiled extractor, never in it: torch's compiler multiplies an arange in 32 bits.
"""

import torch
from torch import Tensor

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


def kept(shape: torch.Size, rate: float, keys: Tensor, steps: Tensor) -> Tensor:
    """Return which values of this shape stay."""
    *_, samples, features = shape
    client_hash = _mixed(_mixed((keys & WORD) ^ steps) ^ (keys >> 32)).unsqueeze(-1)
    each = _mixed(client_hash ^ torch.arange(samples, device=keys.device)).unsqueeze(-1)
    counters = torch.arange(features, device=keys.device) * STRIDE & WORD
    return _mixed((each + counters).bitwise_and_(WORD)) >= round(rate * (WORD + 1))


def _mixed(words: Tensor) -> Tensor:
    """Turn 32-bit words into others, one to one, so that close ones become unlike; in place."""
    words ^= words >> 15
    words.mul_(FACTORS[0]).bitwise_and_(WORD)
    words ^= words >> 12
    words.mul_(FACTORS[1]).bitwise_and_(WORD)
    words ^= words >> 15
    return words
