"""Values of every kind that a state may hold, drawn at random, and how two of them are compared."""

import math
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from hcfl.core.cluster_log import Change, Merge, Move, Removal, Split
from hcfl.tiers import Weights
from hcfl.tiers.gaussians import Moments

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)


@dataclass(frozen=True)
class Everything:
    """Each kind of field that a state may have."""

    tensor: Tensor
    params: dict[str, Tensor]
    changes: tuple[Change, ...]
    name: str
    number: float
    whole: int
    flag: bool
    choice: Literal["split", "full"]
    pair: tuple[int, str]
    by_client: dict[int, Weights] = field(default_factory=dict)
    maybe: Tensor | None = None
    nested: Moments | None = None


def same(one, two) -> bool:
    """Equal in type, and bit by bit."""
    if type(one) is not type(two):
        return False
    if isinstance(one, Tensor):
        return one.dtype == two.dtype and one.shape == two.shape and bits(one) == bits(two)
    if isinstance(one, float):
        return one == two or (math.isnan(one) and math.isnan(two))
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(same, one, two))
    if is_dataclass(one):
        return all(same(getattr(one, part.name), getattr(two, part.name)) for part in fields(one))
    return one == two


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


@st.composite
def tensors(draw) -> Tensor:
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    kind = draw(st.sampled_from(DTYPES))
    raw = draw(st.binary(min_size=8 * 27, max_size=8 * 27))
    values = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    if kind is torch.bool:
        return (values > 127)[: math.prod(shape)].reshape(shape)
    return values.view(kind)[: math.prod(shape)].reshape(shape)  # every pattern of bits: also NaN and infinity


numbers = st.floats(width=64) | st.integers(-(2**62), 2**62)
wholes = st.integers(-(2**62), 2**62)
ids = st.lists(wholes, max_size=3).map(tuple)
rules = st.sampled_from(["halve", "one-hot", "move", "lean"])
changes = st.one_of(
    st.builds(Split, wholes, wholes, wholes, ids, ids, rules, numbers, numbers, numbers),
    st.builds(Removal, wholes, wholes),
    st.builds(Merge, wholes, wholes, wholes, numbers, numbers),
    st.builds(Move, wholes, ids, ids),
)
weights = st.builds(Weights, tensors(), st.none() | tensors(), st.none() | tensors())
everything = st.builds(
    Everything,
    tensor=tensors(),
    params=st.dictionaries(st.text(max_size=5), tensors(), max_size=3),
    changes=st.lists(changes, max_size=3).map(tuple),
    name=st.text(),
    number=numbers,
    whole=wholes,
    flag=st.booleans(),
    choice=st.sampled_from(["split", "full"]),
    pair=st.tuples(wholes, st.text()),
    by_client=st.dictionaries(st.integers(0, 99), weights, max_size=2),
    maybe=st.none() | tensors(),
    nested=st.none() | st.builds(Moments, tensors(), tensors(), tensors()),
)
