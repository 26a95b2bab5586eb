"""Only regular files are read: a device never ends, and a pipe waits for a writer that may never come."""

import stat
from pathlib import Path

from hcfl.errors import InputError


def is_odd(path: Path) -> bool:
    """Whether there is something at the path, after links, that is neither a regular file nor a folder."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):  # the caller opens it, and reports what is wrong
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def check_regular(path: Path, what: str | None = None) -> None:
    """Refuse a device, a pipe or a socket, also behind a link; `what` names the file in the message."""
    if is_odd(path):
        raise InputError(f"{what or path}: is not a regular file, but a device, a pipe or a socket")
