"""Whether a path that the user typed exists; an impossible path does not, where `Path` would raise an error."""

from pathlib import Path


def is_file(path: Path) -> bool:
    """Whether it is a file; `Path.is_file` raises where a name is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether it is a folder."""
    try:
        return path.is_dir()
    except OSError:
        return False
