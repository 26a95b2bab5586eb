"""A file that knows its own SHA-256: whatever was changed in it since, or cut off, is found.

The digest stands in the file's header, in a place of its own that counts as zeros when the digest is computed, so that
it covers every other byte of header and data, and the file stays one that any reader of its format understands.
"""

import hashlib
import re
from pathlib import Path

OPEN = "0" * 64
"""What stands in the digest's place until the file is sealed."""

PLACE = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')
"""The digest in a JSON text that is itself a string of the header; the first is the file's own."""

CHUNK = 1 << 20


def close(path: Path) -> None:
    """Write the digest of a file into its place."""
    place = _place(path)
    assert place is not None, "the header has a place for it"
    with path.open("r+b") as file:
        file.seek(place)
        file.write(_digest(path, place).encode())


def is_whole(path: Path) -> bool | None:
    """Whether a file is what was sealed; None where it never was."""
    place = _place(path)
    if place is None:
        return None
    with path.open("rb") as file:
        file.seek(place)
        found = file.read(len(OPEN))
    return found == _digest(path, place).encode()


def _place(path: Path) -> int | None:
    """Return where the digest is: in the header, whose length the first eight bytes say."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, path.stat().st_size))
    found = PLACE.search(header)
    return None if found is None else 8 + found.start(1)


def _digest(path: Path, place: int) -> str:
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        sha256.update(file.read(place))
        sha256.update(OPEN.encode())
        file.seek(len(OPEN), 1)
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
    return sha256.hexdigest()
