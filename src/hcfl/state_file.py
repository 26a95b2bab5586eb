"""A state as one file: tensors as safetensors, the rest as JSON in its header. Nothing that is read can run code.

A file is there as a whole or not at all, whenever the machine stops: it is written beside its place, flushed to the
disk and renamed.
"""

import json
import os
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hcfl import flat
from hcfl.errors import InputError

T = TypeVar("T")

HEADER = "hcfl"
"""Where the header keeps the tree."""

UNFINISHED = ".unfinished"
"""What is added to the name of a file that is being written."""


def write(path: Path, value: object, version: int) -> None:
    """Write a frozen dataclass, in the place of what was there before."""
    tree, tensors = flat.flatten(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    save_file(
        # clone: a file cannot hold two tensors that share memory
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        unfinished,
        metadata={HEADER: json.dumps({"format": version, "state": tree})},
    )
    _flush(unfinished)
    unfinished.replace(path)
    _flush(path.parent)


def read(kind: type[T], path: Path, version: int, what: str) -> T:
    """Read what `write` wrote; `what` is its name in messages."""
    try:
        with path.open("rb"), safe_open(path, "pt") as file:  # open: says why, where a file cannot be read
            header = json.loads(file.metadata()[HEADER])
            if header["format"] != version:
                raise InputError(f"{what}: has format {header['format']}, this version reads {version}")
        return flat.restore(kind, header["state"], load_file(path))
    except OSError as error:
        raise InputError(f"{what}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what}: is damaged ({type(error).__name__}: {error})") from None


def _flush(path: Path) -> None:
    """Wait until the disk has a file, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
