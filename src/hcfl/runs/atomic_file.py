"""Files that are there as a whole or not at all, whenever the machine stops.

A file is written beside its place, flushed to the disk and renamed; where that fails, nothing of it stays.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNFINISHED = ".unfinished"
"""What is added to the name of a file that is being written."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give the place where a file is written before it takes the place of what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        yield unfinished
        flush(unfinished)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text, in the place of what was there before."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8", newline="")


def flush(path: Path) -> None:
    """Wait until the disk has a file, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove what a writer that was killed left unfinished."""
    for unfinished in folder.glob(f"*{UNFINISHED}"):
        unfinished.unlink(missing_ok=True)
