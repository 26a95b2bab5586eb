"""A state in one file: tensors as safetensors, the rest as JSON in its header. Reading it cannot run code.

The file is written atomically (`atomic_file`), and a SHA-256 in its header finds any byte that changed (`checksum`).
"""

import json
import os
import re
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hcfl.core import serialization
from hcfl.errors import InputError
from hcfl.regular_files import check_regular, is_odd
from hcfl.runs import checksum
from hcfl.runs.atomic_file import replacing

T = TypeVar("T")

HEADER = "hcfl"
"""The header's key for the JSON tree."""


class DamagedError(InputError):
    """A file cannot be read, or its bytes are not those that were written."""


def write(path: Path, value: object, version: int) -> None:
    """Write a frozen dataclass to `path` and replace an older file; `version` is the version of its layout."""
    tree, tensors = serialization.flatten(value)
    header = {"format": version, "sha256": checksum.EMPTY, "state": tree}
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
        checksum.write(unfinished)


def read(kind: type[T], path: Path, version: int, what: str, older: tuple[int, ...] = ()) -> T:
    """Read a dataclass of type `kind` that `write` wrote; `what` names the file in error messages.

    Layouts of the `older` versions are those of this one without its last fields.
    """
    check_regular(path, what)
    try:
        intact = checksum.matches(path)
        if intact is False:
            raise DamagedError(f"{what}: is damaged (its bytes are not those that were written)")
        header = _header(path)
        if header["format"] not in (version, *older):
            read_here = " and ".join(map(str, (version, *older)))
            raise InputError(f"{what}: has format {header['format']}, this version reads {read_here}")
        if intact is None:
            raise DamagedError(f"{what}: is damaged (it has no checksum)")
        return serialization.restore(kind, header["state"], load_file(path))
    except OSError as error:
        raise DamagedError(f"{what}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise DamagedError(f"{what}: is damaged ({type(error).__name__}: {error})") from None


def peek(path: Path) -> Any:
    """Return the JSON tree of a state without its tensors, and without a look at its checksum; None if that fails."""
    if is_odd(path):
        return None
    try:
        return _header(path)["state"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return None


def _header(path: Path) -> Any:
    with safe_open(path, "pt") as file:
        return json.loads(file.metadata()[HEADER])


def _as_os_error(error: SafetensorError) -> Exception:
    """Return the operating system's error, whose number stands in the message of safetensors."""
    number = re.search(r"\(os error (\d+)\)", str(error))
    return error if number is None else OSError(int(number[1]), os.strerror(int(number[1])))
