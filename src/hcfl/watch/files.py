"""Reads files that other programs write: none outside of the watched folders, and never more than a limit.

A folder may come from another user. No link is followed below a watched folder, only regular files are opened, and a
file that is damaged, endless or growing costs a bounded amount of memory.
"""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Protocol

from hcfl.core.record import Row

DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
FILE = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
NO_LINK = getattr(os, "O_NOFOLLOW", 0)

MOST_BYTES = 64 << 20
"""The most bytes that are read of a file at once; of a log, the rest follows at the next look."""

MOST_ENTRIES = 20_000
"""How many entries of a folder are looked at."""

LONGEST_LINE = 8 << 20
"""The longest line of a log that is read; a longer one counts as damaged."""

MARK = 64
"""How many of the last bytes that were read are remembered, to notice that a log was rewritten."""


class Entry(NamedTuple):
    """A file or folder in a folder; links and devices are not listed."""

    name: str
    is_folder: bool
    size: int


@dataclass(frozen=True)
class Place:
    """A folder below a watched one."""

    root: Path
    """The watched folder, as the user named it."""
    parts: tuple[str, ...] = ()
    """The names of the folders on the way from there."""

    @property
    def path(self) -> Path:
        """The folder's path, to be shown; files are opened by `opened`."""
        return self.root.joinpath(*self.parts)

    @contextmanager
    def entered(self) -> Iterator[int]:
        """Give a descriptor of the folder; a link on the way from the watched folder raises OSError."""
        handle = os.open(self.root, DIRECTORY)
        try:
            for part in self.parts:
                below = os.open(_plain(part), DIRECTORY | NO_LINK, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    @contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """Give a descriptor of a regular file in the folder; anything else raises OSError."""
        with self.entered() as folder:
            if not stat.S_ISREG(os.stat(_plain(name), dir_fd=folder, follow_symlinks=False).st_mode):
                raise OSError(f"{name}: is not a regular file")  # opening a device can do something already
            handle = os.open(name, FILE | NO_LINK, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(f"{name}: is not a regular file")
            yield handle
        finally:
            os.close(handle)

    def below(self, name: str) -> "Place":
        """Return a folder in this one."""
        return Place(self.root, (*self.parts, name))

    def entries(self) -> list[Entry]:
        """List the folder, up to a limit; an empty list where it cannot be read."""
        found = []
        try:
            with self.entered() as handle, os.scandir(handle) as entries:
                for entry in islice(entries, MOST_ENTRIES):
                    about = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(about.st_mode) or stat.S_ISREG(about.st_mode):
                        found.append(Entry(entry.name, stat.S_ISDIR(about.st_mode), about.st_size))
        except OSError:  # gone, or not ours to read
            return []
        return found

    def read(self, name: str, most: int) -> bytes:
        """Return a file's content; a file of more than `most` bytes raises OSError."""
        with self.opened(name) as handle:
            content = _read_up_to(handle, most + 1, 0)
        if len(content) > most:
            raise OSError(f"{name}: has more than {most} bytes")
        return content

    def stamp(self, name: str) -> tuple[int, int, int] | None:
        """Return what changes when a file is written: its inode, size and time; None where there is no such file."""
        try:
            with self.entered() as folder:
                found = os.stat(_plain(name), dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _plain(name: str) -> str:
    """Return the name of an entry of a folder; anything that could lead elsewhere raises OSError."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(f"{name!r}: is not the name of a file")
    return name


def _read_up_to(handle: int, most: int, start: int) -> bytes:
    chunks = []
    while most > 0 and (chunk := os.pread(handle, min(most, 1 << 20), start)):
        chunks.append(chunk)
        most, start = most - len(chunk), start + len(chunk)
    return b"".join(chunks)


class Sink(Protocol):
    """What takes the rows of a log."""

    def add(self, row: Row) -> None:
        """Take one row."""

    def clear(self) -> None:
        """Forget all rows: the log was rewritten."""


@dataclass
class Tail:
    """A log that is read on from where the last look ended; a log that was rewritten, from its beginning."""

    name: str
    sink: Sink
    damaged: int = 0
    """How many lines could not be read."""
    _read: int = 0
    _identity: tuple[int, int] | None = None
    _mark: bytes = b""
    _skipping: bool = field(default=False)
    """Whether the line that is under way is too long, so that the rest of it is left out, too."""

    def look(self, place: Place) -> bool:
        """Pass new complete lines on; return whether there was anything new."""
        try:
            with place.opened(self.name) as handle:
                return self._look(handle)
        except OSError:
            had = self._identity is not None
            self._forget()
            return had

    def _look(self, handle: int) -> bool:
        found = os.fstat(handle)
        identity, marked = (found.st_dev, found.st_ino), self._read - len(self._mark)
        rewritten = self._identity != identity or found.st_size < self._read
        if rewritten or os.pread(handle, len(self._mark), marked) != self._mark:
            self._forget()
            self._identity = identity
        if found.st_size == self._read and not rewritten:
            return False
        content = _read_up_to(handle, MOST_BYTES, self._read)
        *lines, rest = content.split(b"\n")
        for line in lines:
            self._take(line)
            self._skipping = False
        used = len(content) - len(rest)
        if len(rest) > LONGEST_LINE:
            self._skipping, used = True, len(content)
        self._read += used
        self._mark = os.pread(handle, min(MARK, self._read), max(0, self._read - MARK))
        return bool(lines) or rewritten

    def _take(self, line: bytes) -> None:
        try:
            if self._skipping or len(line) > LONGEST_LINE:
                raise ValueError("the line is too long")
            row = json.loads(line)
            row["round"] + 0  # a number
            self.sink.add(row)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ArithmeticError):
            self.damaged += 1

    def _forget(self) -> None:
        self._read, self._identity, self._mark, self._skipping, self.damaged = 0, None, b"", False, 0
        self.sink.clear()
