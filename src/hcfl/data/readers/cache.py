"""A disk cache of arrays that are expensive to compute: written atomically, with checksums, read as memory maps."""

import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

FACTS, PARTIAL = "entry.json", "partial-"
ABANDONED = 24 * 3600
"""Seconds after which the unfinished folder of a process that was killed is removed."""


@dataclass(frozen=True)
class Entry:
    """Arrays by name, and facts about them (anything that JSON can hold)."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Any]


def location(setting: str | None) -> Path:
    """Return the cache folder: the setting, $HCFL_CACHE, or `hcfl` in the user's cache folder."""
    if chosen := setting or os.environ.get("HCFL_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "hcfl"


def identity(*parts: Any) -> str:
    """Return a key of values: a hash of their `repr`, of arrays a hash of their content."""
    digest = blake2b(digest_size=10)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(repr((part.dtype.str, part.shape)).encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(repr(part).encode())
    return digest.hexdigest()


def files_identity(folder: Path, files: list[Path], *settings: Any) -> str:
    """Return a key of files by their paths, sizes and times of modification.

    Hashing their content would also notice a change that keeps size and time, but costs as much as reading them.
    """
    stats = [(path.relative_to(folder).as_posix(), path.stat()) for path in files]
    return identity(str(folder.resolve()), [(name, s.st_size, s.st_mtime_ns) for name, s in stats], settings)


def get(root: Path, name: str, make: Callable[[], Entry]) -> tuple[Entry, tuple[str, ...]]:
    """Return the entry `name`, computed by `make` the first time, and notes for the user."""
    folder, notes = root / name, []
    if folder.exists():
        if (found := _load(folder)) is not None:
            return found, ()
        notes.append(f"the cache {folder} was damaged and is made anew")
        shutil.rmtree(folder, ignore_errors=True)
    entry = make()
    try:
        _store(root, folder, entry)
        entry = _load(folder) or entry
    except OSError as error:
        notes.append(f"{name} cannot be kept in the cache {root} ({error.strerror or error})")
    return entry, tuple(notes)


def _load(folder: Path) -> Entry | None:
    """Map an entry's arrays into memory; None where a checksum does not match.

    The maps are copy-on-write: changes of the arrays do not reach the files.
    """
    try:
        stored = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        expected = stored["checksums"]
        if stored["checksum"] != _facts_checksum(expected, stored["facts"]) or not all(map(str.isidentifier, expected)):
            return None
        arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in expected}
        intact = all(_checksum(array) == expected[name] for name, array in arrays.items())
        return Entry(arrays, stored["facts"]) if intact else None
    except Exception:  # a damaged header can raise nearly anything
        return None


def _store(root: Path, folder: Path, entry: Entry) -> None:
    """Write into a temporary folder and rename it; of two processes that write the same entry, the first wins."""
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    partial = Path(mkdtemp(prefix=PARTIAL, dir=root))
    try:
        for name, array in entry.arrays.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        checksums = {name: _checksum(array) for name, array in entry.arrays.items()}
        facts = json.loads(json.dumps(dict(entry.facts)))  # as they will be read
        stored = {"checksum": _facts_checksum(checksums, facts), "checksums": checksums, "facts": facts}
        (partial / FACTS).write_text(json.dumps(stored), encoding="utf-8")
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _sweep(root: Path) -> None:
    for path in root.glob(f"{PARTIAL}*"):
        with suppress(OSError):  # another process has just renamed it
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)


def _facts_checksum(checksums: Mapping[str, int], facts: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps([checksums, facts], sort_keys=True).encode())


def _checksum(array: NDArray[Any]) -> int:
    """CRC-32 finds damage, not malice, at more than a gigabyte a second."""
    return zlib.crc32(repr((array.dtype.str, array.shape)).encode(), zlib.crc32(np.ascontiguousarray(array).data))
