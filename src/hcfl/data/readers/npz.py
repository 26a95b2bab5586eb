"""Reads arrays from a `.npz` file; never runs code from it, and refuses arrays whose size differs from their header.

Large arrays that are not compressed are maps of the file (`mapped`).
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hcfl.data.readers.available_memory import check_memory
from hcfl.data.readers.cache import location
from hcfl.data.readers.mapped import can_map, mapped
from hcfl.errors import InputError
from hcfl.regular_files import check_regular

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Readers of an array's header by version; version 3 is for tables with non-Latin column names."""

SUFFIX = ".npy"


def read(
    path: Path, name: str = "data.source", cache_dir: str | None = None, whole: bool = False
) -> dict[str, NDArray[Any]]:
    """Read all arrays of a file. `name` is the setting that named it; copies of maps go to `cache_dir`.

    With `whole` no array is a map: the file may be written anew while the arrays are used.
    """
    where = f"{name} = {str(path)!r}"
    check_regular(path, where)
    try:
        with path.open("rb") as file, ZipFile(file) as archive:
            found = [(member, _Header.of(archive, member)) for member in archive.infolist()]
            read_whole = [member for member, header in found if whole or not can_map(member, header.fortran)]
            check_memory(where, sum(member.file_size for member in read_whole))
            arrays = {member.filename: _array(archive, member) for member in read_whole}
            for member, header in found:
                if member.filename not in arrays:
                    offset, shape, dtype = header.bytes, header.shape, header.dtype
                    arrays[member.filename] = mapped(path, member, offset, shape, dtype, location(cache_dir))
            return {name.removesuffix(SUFFIX): arrays[name] for name in (member.filename for member, _ in found)}
    except FileNotFoundError:
        raise InputError(f"{where}: there is no such file") from None
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged archive can raise nearly anything; none of it is the program's fault
        reason = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
        raise InputError(f"{where}: cannot be read as .npz without objects ({reason})") from None


@dataclass(frozen=True)
class _Header:
    """What stands before the values of an array."""

    bytes: int
    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @staticmethod
    def of(archive: ZipFile, member: ZipInfo) -> "_Header":
        """Read the header of an array, and compare it with the array's size."""
        with archive.open(member) as file:
            version = npy.read_magic(file)
            if version not in HEADERS:
                raise ValueError(f"{member.filename} is of version {version} of numpy's format")
            shape, fortran, dtype = HEADERS[version](file)
            if dtype.hasobject:
                raise ValueError(f"{member.filename} holds objects")
            values = member.file_size - file.tell()
            if min(shape, default=0) < 0 or prod(shape) * dtype.itemsize != values:
                raise ValueError(f"{member.filename} says it has shape {shape}, but has {values} bytes")
            return _Header(file.tell(), shape, fortran, dtype)


def _array(archive: ZipFile, member: ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array
