"""Links in a run folder that lead out of it: a folder from another user must not decide where this one writes."""

from pathlib import Path

from hcfl.errors import InputError
from hcfl.runs.folder import CHECKPOINT

WRITTEN = ("", CHECKPOINT, "client-states")
"""Folders, as seen from the run folder, whose files a run replaces or extends."""


def check_target(path: Path, folder: Path) -> None:
    """Refuse to write to a path in a run folder if it, or a folder on the way to it, is a link out of the run folder.

    A path that is not in the run folder is the user's own, and passes.
    """
    path, folder = path.absolute(), folder.absolute()
    if folder in path.parents:
        for part in (path, *path.parents[: path.parents.index(folder)]):
            _check(part, folder)


def check_folder(folder: Path) -> None:
    """Refuse a run folder in which a run would write through links."""
    for name in WRITTEN:
        below = folder / name
        if below.is_dir():
            for path in sorted(below.iterdir()):
                _check(path, folder)


def _check(path: Path, folder: Path) -> None:
    try:
        leads_out = path.is_symlink() and not path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a link to itself
        leads_out = True
    if leads_out:
        raise InputError(f"{path}: is a link that leads out of the run folder; remove it")
