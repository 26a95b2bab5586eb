"""Atomic writes: a file is complete or does not exist, even if the machine stops in between.

The content goes to a temporary file in the same folder, is flushed to disk, and the file is renamed; where that fails,
the temporary file is removed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished"
"""The suffix of a file that is being written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the path of a temporary file, which replaces `path` when the block ends without an error.

    Where `path` is a link, the link is replaced and what it leads to stays. A file or link that already has the
    temporary name is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def flush(path: Path) -> None:
    """Wait until the disk has stored a file, or the entries of a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for unfinished in folder.glob(f"*{UNFINISHED}"):
        unfinished.unlink(missing_ok=True)
