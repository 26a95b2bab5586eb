"""Errors in code of the user's own (a network, a loss, a tier), told in one sentence with the file and the line."""

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hcfl.errors import InputError

T = TypeVar("T")

LIBRARIES = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))


class OwnCodeError(InputError):
    """A user's own code failed; called again, it would fail again."""


def described_error(error: BaseException) -> str:
    """Return an error of a user's code in a line, with the file and the line of that code that raised it."""
    reason = f"{type(error).__name__}: {error}".strip().splitlines()[0].rstrip(": ")
    frames = _own_frames(error)
    return f"{reason}, in {frames[-1].filename}, line {frames[-1].lineno}" if frames else reason


@contextmanager
def naming_the_line(doing: str) -> Iterator[None]:
    """Raise an error that came from a user's code as one sentence; errors of other code stay what they are."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # whatever a user's code raises is the user's to read
        if not _own_frames(error):
            raise
        raise OwnCodeError(f"{doing}: your code failed ({described_error(error)})") from error


def each_naming_the_line(items: Iterator[T], doing: str) -> Iterator[T]:
    """Give the items of an iterator; what a user's code raises while it makes one becomes one sentence."""
    while True:
        with naming_the_line(doing):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of the traceback that are neither of an installed package nor of this one."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]


def _is_library(filename: str) -> bool:
    path = Path(filename)
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    ours = Path(__file__).parent in path.parents
    return filename.startswith("<") or bool(installed) or ours or any(root in path.parents for root in LIBRARIES)
