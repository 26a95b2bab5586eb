"""States and messages ⇄ Flower's records: one ArrayRecord of named tensors, one ConfigRecord with the rest as JSON.

One ArrayRecord, since Flower's privacy mods expect no more. What arrives is not trusted: arrays are checked against
their own size before memory is taken, nothing is unpickled, and `serialization.restore` builds only what is expected.
"""

import json
from io import BytesIO
from math import prod
from typing import TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.lib import format as npy
from torch import Tensor

from hcfl.core import serialization

T = TypeVar("T")

ARRAYS, VALUES, TREE = "arrays", "values", "tree"

WITHOUT_NUMPY = {"bfloat16": torch.bfloat16}
"""Types that numpy does not have; they travel as whole numbers of the same size."""


def pack(value: object) -> RecordDict:
    """Return a frozen dataclass as records."""
    tree, tensors = serialization.flatten(value)
    arrays = {name: _array(tensor) for name, tensor in tensors.items()}
    return RecordDict({ARRAYS: ArrayRecord(arrays), VALUES: ConfigRecord({TREE: json.dumps(tree)})})


def unpack(kind: type[T], records: RecordDict) -> T:
    """Return what was packed; a ValueError says what does not belong to a value of this kind."""
    if set(records) != {ARRAYS, VALUES}:
        raise ValueError(f"records {sorted(records)}: must be {ARRAYS} and {VALUES}")
    arrays, values = records[ARRAYS], records[VALUES]
    if not isinstance(arrays, ArrayRecord) or not isinstance(values, ConfigRecord):
        raise ValueError(f"records {ARRAYS} and {VALUES}: must be an ArrayRecord and a ConfigRecord")
    text = values.get(TREE)
    if not isinstance(text, str):
        raise ValueError(f"{VALUES}.{TREE}: must be JSON")
    try:
        tree = json.loads(text)
    except RecursionError:
        raise ValueError(f"{VALUES}.{TREE}: is nested too deeply") from None
    return serialization.restore(kind, tree, {name: _tensor(name, array) for name, array in arrays.items()})


def payload(records: RecordDict) -> int:
    """Return the bytes of all tensors in a message, without what describes them."""
    return sum(
        len(array.data) - _header(array)[0] for record in records.array_records.values() for array in record.values()
    )


def _array(tensor: Tensor) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    plain = tensor.detach().cpu().contiguous()
    array = Array((plain.view(torch.int16) if name in WITHOUT_NUMPY else plain).numpy())
    array.dtype = name
    return array


def _header(array: Array) -> tuple[int, tuple[int, ...], "np.dtype[np.generic]"]:
    """Return where an array's values begin, its shape and its type."""
    buffer = BytesIO(array.data)
    if npy.read_magic(buffer) != (1, 0):
        raise ValueError("is of another version of numpy's format")
    shape, fortran, dtype = npy.read_array_header_1_0(buffer)
    if dtype.hasobject or fortran:
        raise ValueError("must hold numbers, in C order")
    return buffer.tell(), shape, dtype


def _tensor(name: str, array: Array) -> Tensor:
    try:
        start, shape, dtype = _header(array)
        if len(array.data) - start != prod(shape) * dtype.itemsize:
            raise ValueError("has another size than it says")
        values = np.frombuffer(array.data[start:], dtype=dtype).reshape(shape).copy()
        tensor = torch.from_numpy(values)
        return tensor.view(WITHOUT_NUMPY[array.dtype]) if array.dtype in WITHOUT_NUMPY else tensor
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name}: cannot be read ({error})") from None
