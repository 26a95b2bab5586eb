"""How much memory is free, and arrays that would not fit."""

import os
from pathlib import Path

from hcfl.errors import InputError

MEMORY = Path("/proc/meminfo")

CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""Where Linux tells a container its limit, what it uses, and of what: the second and the first version of cgroups."""


def free_memory() -> int | None:
    """Return the bytes that are free, or can be freed at once; None where the system does not say."""
    known = [free for free in (_of_machine(), *(_of_container(*map(Path, files)) for files in CONTAINERS)) if free]
    return min(known, default=None)


def _of_machine() -> int | None:
    try:
        lines = MEMORY.read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # what is free, few systems tell
    except (OSError, ValueError):
        return None


def _of_container(limit: Path, used: Path, details: Path) -> int | None:
    """Return what a limit leaves; files that are only cached count as used there, but give way."""
    try:
        most, now = (int(path.read_text(encoding="ascii")) for path in (limit, used))
        kinds = dict(line.split() for line in details.read_text(encoding="ascii").splitlines())
        return max(1, most - now + int(kinds.get("inactive_file", 0)))
    except (OSError, ValueError):  # no container, or no limit: "max" is not a number
        return None


def in_words(size: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def check_room(what: str, needed: int) -> None:
    """Refuse what cannot be held: a small file can claim, or unpack to, more than any machine has."""
    free = free_memory()
    if free is not None and needed > free:
        raise InputError(f"{what}: would take {in_words(needed)} of memory, but {in_words(free)} are free")
