"""A state as one file: tensors as safetensors, the rest as JSON in its header. Nothing that is read can run code.

A file is there as a whole or not at all (`atomic_file`), and any byte of it that is not as it was written is found
(`checksum`).
"""

import json
import os
import re
from pathlib import Path
from typing import TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hcfl.core import serialization
from hcfl.errors import InputError
from hcfl.runs import checksum
from hcfl.runs.atomic_file import replacing

T = TypeVar("T")

HEADER = "hcfl"
"""Where the header keeps the tree."""


class DamagedError(InputError):
    """A file cannot be read, or is not what was written."""


def write(path: Path, value: object, version: int) -> None:
    """Write a frozen dataclass, in the place of what was there before."""
    tree, tensors = serialization.flatten(value)
    header = {"format": version, "sha256": checksum.OPEN, "state": tree}
    with replacing(path) as unfinished:
        try:
            save_file(
                # clone: a file cannot hold two tensors that share memory
                {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
                unfinished,
                metadata={HEADER: json.dumps(header)},
            )
        except SafetensorError as error:
            raise _as_os_error(error) from None
        checksum.close(unfinished)


def read(kind: type[T], path: Path, version: int, what: str) -> T:
    """Read what `write` wrote; `what` is its name in messages."""
    try:
        whole = checksum.is_whole(path)
        if whole is False:
            raise DamagedError(f"{what}: is damaged (its bytes are not those that were written)")
        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()[HEADER])
        if header["format"] != version:
            raise InputError(f"{what}: has format {header['format']}, this version reads {version}")
        if whole is None:
            raise DamagedError(f"{what}: is damaged (it has no checksum)")
        return serialization.restore(kind, header["state"], load_file(path))
    except OSError as error:
        raise DamagedError(f"{what}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedError(f"{what}: is damaged ({type(error).__name__}: {error})") from None


def _as_os_error(error: SafetensorError) -> Exception:
    """Return what the operating system said, which safetensors only quotes."""
    said = re.search(r"\(os error (\d+)\)", str(error))
    return error if said is None else OSError(int(said[1]), os.strerror(int(said[1])))
