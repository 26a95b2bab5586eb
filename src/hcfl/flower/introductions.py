"""Which introductions count: each by itself (`problem_with_introduction`), then all of them together (`unlike_others`).

An introduction decides how everybody's inputs are scaled and which classes there are, so nothing in it is taken on
trust that can be checked.
"""

from collections import Counter
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from hcfl.engines.flower.messages import Introduction

MOST_SAMPLES = 10**9
"""No client has more samples."""

MOST_VALUES = 10**9
"""No input has more values: one would not fit into memory."""

MOST_CLASSES = 10_000
LONGEST_NAME = 500

LARGEST_SCALE = 1000.0
"""A client whose inputs are more than so many times as large as those of most others is refused."""

ROUNDING = 1e-6


def problem_with_introduction(said: Introduction, private: bool) -> str | None:
    """Return why an introduction of a client with its own data cannot be, or None.

    In a private run a client says of its data only which shape they have.
    """
    if said.problem:
        return said.problem
    if not 1 <= said.train <= MOST_SAMPLES:
        return f"says that it has {said.train} samples for training"
    if not 0 <= said.held_out <= MOST_SAMPLES:
        return f"says that it holds out {said.held_out} samples"
    if not said.shape or min(said.shape) < 1 or len(said.shape) > 8 or prod(said.shape) > MOST_VALUES:
        return f"sent a shape that inputs cannot have: {said.shape}"
    if len(said.group) > LONGEST_NAME:
        return f"sent the name of a group with {len(said.group)} characters"
    if private:
        return None
    names = said.class_names
    if not 1 <= len(set(names)) == len(names) <= MOST_CLASSES or max(map(len, names)) > LONGEST_NAME:
        return f"sent names of classes that cannot be ({len(names)} of them)"
    values = said.train * prod(said.shape[:-1])
    if said.values != values:
        return f"sent sums over {said.values} values, but {said.train} samples of this shape have {values}"
    return _problem_with_sums(said)


def _problem_with_sums(said: Introduction) -> str | None:
    """Check Σx and Σx²: real and finite, and (Σx)² ≤ n·Σx², as for any n values."""
    if said.total is None or said.squares is None:
        return "sent no sums"
    for name, tensor in (("total", said.total), ("squares", said.squares)):
        if tensor.dtype != torch.float64:
            return f"sent {name} as {str(tensor.dtype).removeprefix('torch.')}, but float64 is needed"
        if tuple(tensor.shape) != said.shape[-1:]:
            return f"sent {name} of shape {tuple(tensor.shape)}, but {said.shape[-1:]} is needed"
    if not bool(said.total.isfinite().all() & said.squares.isfinite().all()):
        return "sent sums that are not finite"
    possible = said.total.abs() <= (said.values * said.squares.clamp_min(0)).sqrt() * (1 + ROUNDING)
    return None if bool((possible & (said.squares >= 0)).all()) else "sent sums that no values can have"


def unlike_others(said: Mapping[int, Introduction]) -> dict[int, str]:
    """Return which introductions do not fit the others, by their keys: another shape than most, or absurd scales."""
    if not said:
        return {}
    usual, _ = Counter(one.shape for one in said.values()).most_common(1)[0]
    others = {
        key: f"has inputs of shape {one.shape}, but most have {usual}"
        for key, one in said.items()
        if one.shape != usual
    }
    scales = {
        key: (one.squares / one.values).sqrt()
        for key, one in said.items()
        if key not in others and one.squares is not None
    }
    if len(scales) > 1:
        ratios = {key: _times_as_large(key, scales) for key in scales}
        others |= {
            key: f"has inputs that are {ratio:.3g} times as large as those of most others"
            for key, ratio in ratios.items()
            if ratio > LARGEST_SCALE
        }
    return others


def _times_as_large(key: int, scales: Mapping[int, Tensor]) -> float:
    """Return how large a client's inputs are beside the median of the others, in the channel where most so.

    A channel that others hardly use counts as large as their median channel.
    """
    usual = torch.stack([scale for other, scale in scales.items() if other != key]).median(dim=0).values
    middle = usual.median()
    floor = middle if middle > 0 else torch.ones_like(middle)
    return float((scales[key] / usual.maximum(floor)).max())
