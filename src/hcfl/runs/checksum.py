"""A SHA-256 checksum in the header of the file that it covers.

While the checksum is computed, its own 64 characters count as zeros. So it covers every other byte of header and data,
and the file stays readable for any program that knows its format.
"""

import hashlib
import re
from pathlib import Path

EMPTY = "0" * 64
"""The value of the field until the checksum is written."""

FIELD = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')
"""The checksum in a JSON text that is itself a string in the header; the first match is the file's own."""

CHUNK = 1 << 20


def write(path: Path) -> None:
    """Compute the checksum of a file and write it into its field."""
    position = _position(path)
    assert position is not None, "the header has the field"
    with path.open("r+b") as file:
        file.seek(position)
        file.write(_digest(path, position).encode())


def matches(path: Path) -> bool | None:
    """Whether a file has the bytes of which the checksum was computed; None where it has no checksum."""
    position = _position(path)
    if position is None:
        return None
    with path.open("rb") as file:
        file.seek(position)
        stored = file.read(len(EMPTY))
    return stored == _digest(path, position).encode()


def _position(path: Path) -> int | None:
    """Return the checksum's position in bytes; it is in the header, whose length the first eight bytes tell."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, path.stat().st_size))
    found = FIELD.search(header)
    return None if found is None else 8 + found.start(1)


def _digest(path: Path, position: int) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        sha256.update(file.read(position))
        sha256.update(EMPTY.encode())
        file.seek(len(EMPTY), 1)
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
    return sha256.hexdigest()
