"""Large arrays of a `.npz` file as maps of the file: the system reads what is used, and drops it when it must.

Maps are copy-on-write: changes of an array do not reach the file. numpy writes arrays at any byte of the archive, but
torch may end the process where a 32-bit number does not begin at a multiple of four. Such an array is copied once to a
file without a name in the cache folder, piece by piece; the system removes it when the process ends, however it ends.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from hcfl.data.readers.available_memory import check_memory

LARGE = 1 << 28
"""Arrays of at least so many bytes are mapped; smaller ones are read."""

PIECE = 1 << 24
"""How many bytes are looked at together."""

LOCAL = struct.Struct("<4s5H3I2H")
"""What stands before each member of an archive: marks, sizes, and the lengths of its name and of its extra field."""


def can_map(member: ZipInfo, fortran: bool) -> bool:
    """Whether a member is large, and its bytes are those of an array."""
    stored = member.compress_type == ZIP_STORED and member.compress_size == member.file_size
    return member.file_size >= LARGE and stored and not member.flag_bits & 1 and not fortran


def mapped(
    path: Path, member: ZipInfo, header: int, shape: tuple[int, ...], dtype: np.dtype[Any], cache: Path
) -> NDArray[Any]:
    """Return a member's array, which begins `header` bytes after the member; the sizes were compared before."""
    start = _start(path, member)
    if start + member.file_size > path.stat().st_size:
        raise BadZipFile(f"{member.filename} is longer than its file")
    bytes_ = np.memmap(path, np.uint8, "c", start, (member.file_size,))
    crc = 0
    for piece in _pieces(bytes_):
        crc = zlib.crc32(piece.data, crc)
    if crc != member.CRC:
        raise BadZipFile(f"Bad CRC-32 for file {member.filename!r}")
    array = np.ndarray(shape, dtype, bytes_, header)
    return array if array.flags.aligned else np.ndarray(shape, dtype, _aligned(bytes_[header:], cache))


def _start(path: Path, member: ZipInfo) -> int:
    """Return where the bytes of a member begin."""
    with path.open("rb") as file:
        file.seek(member.header_offset)
        fields = LOCAL.unpack(file.read(LOCAL.size))
    if fields[0] != b"PK\x03\x04" or fields[3] != ZIP_STORED:
        raise BadZipFile(f"{member.filename} has another header than the archive says")
    return int(member.header_offset + LOCAL.size + fields[9] + fields[10])


def _aligned(bytes_: NDArray[np.uint8], cache: Path) -> NDArray[np.uint8]:
    """Return the same bytes at a multiple of a page: in a file without a name, or in memory where that cannot be."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=cache) as file:
            for piece in _pieces(bytes_):
                file.write(piece.data)
            file.flush()
            return np.memmap(file, np.uint8, "c", 0, bytes_.shape)
    except OSError:
        check_memory("data.source", bytes_.nbytes)
        return bytes_.copy()


def _pieces(bytes_: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    for first in range(0, len(bytes_), PIECE):
        yield bytes_[first : first + PIECE]
