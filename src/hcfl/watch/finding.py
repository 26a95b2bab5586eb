"""Finds the run folders below the watched folders."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hcfl.runs.folder import CONFIG, METRICS, NODES
from hcfl.watch.files import Place

MOST_RUNS = 2_000
"""How many runs are listed at most."""

MOST_FOLDERS = 20_000
"""How many folders are looked into at most."""

DEEPEST = 5
"""How many folders below a watched folder a run may lie."""


def find(folders: Sequence[Path]) -> dict[str, Place]:
    """Return the run folders by their ids, which become addresses: the watched folder's name and the way below it.

    >>> find([Path("runs")])  # doctest: +SKIP
    {'runs/digits-fedavg-seed0': Place(root=PosixPath('runs'), parts=('digits-fedavg-seed0',))}
    """
    found: dict[str, Place] = {}
    for name, root in zip(names(folders), folders, strict=True):
        for place in _below(Place(root)):
            found["/".join((name, *place.parts))] = place
            if len(found) == MOST_RUNS:
                return found
    return found


def names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each watched folder: its own, and a number where two have the same.

    >>> names([Path("a/runs"), Path("b/runs")])
    ['runs', 'runs-2']
    """
    given: list[str] = []
    for folder in folders:
        name = folder.resolve().name or "root"
        number, unique = 2, name
        while unique in given:
            unique, number = f"{name}-{number}", number + 1
        given.append(unique)
    return given


def _below(start: Place) -> Iterator[Place]:
    """Give the run folders below a folder, itself among them; links are not followed."""
    waiting, seen = [start], 0
    while waiting and seen < MOST_FOLDERS:
        place = waiting.pop()
        seen += 1
        entries = place.entries()
        names = {entry.name for entry in entries if not entry.is_folder}
        if {CONFIG, METRICS} <= names or NODES in names:
            yield place
        elif len(place.parts) < DEEPEST:
            folders = [entry.name for entry in entries if entry.is_folder and not entry.name.startswith(".")]
            waiting += [place.below(name) for name in sorted(folders, reverse=True)]
