"""Whether a path that somebody typed is there; one that no file system could have is not."""

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
