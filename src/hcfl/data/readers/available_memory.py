"""How much memory is free; arrays that would not fit are refused before they are read."""

from pathlib import Path

import psutil

from hcfl.errors import InputError

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

CONTAINERS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)
"""A container's memory limit, its use, and the kinds of use, in Linux's cgroups of version 2 and 1.

psutil knows only the machine."""

OWN_GROUP, GROUPS = "/proc/self/cgroup", "/sys/fs/cgroup"
"""Where Linux names the group of this process (version 2), and the folder of all groups."""


def free_memory() -> int:
    """Return the bytes that this process can still take: of the machine, its container or its own limit, the fewest."""
    files = [*(tuple(map(Path, names)) for names in CONTAINERS), *_of_own_groups()]
    limits = [_of_process(), *(_of_container(*group) for group in files)]
    machine = int(psutil.virtual_memory().available)
    return min([machine, *(free for free in limits if free is not None)])


def _of_process() -> int | None:
    """Return the bytes of addresses below the limit that `ulimit -v` sets; None where there is no limit."""
    if resource is None:
        return None
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if most == resource.RLIM_INFINITY else max(1, most - int(psutil.Process().memory_info().vms))


def _of_own_groups() -> list[tuple[Path, Path, Path]]:
    """Return the files of this process's group and of those around it, as systemd has them outside of containers."""
    try:
        lines = Path(OWN_GROUP).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    name = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    parts = [part for part in name.split("/") if part]
    folders = [Path(GROUPS, *parts[:depth]) for depth in range(1, len(parts) + 1)]
    return [(path / "memory.max", path / "memory.current", path / "memory.stat") for path in folders]


def _of_container(limit: Path, used: Path, details: Path) -> int | None:
    """Return the bytes below a container's limit; Linux counts cached files as used, but frees them when needed."""
    try:
        most, now = (int(path.read_text(encoding="ascii")) for path in (limit, used))
        kinds = dict(line.split() for line in details.read_text(encoding="ascii").splitlines())
        return max(1, most - now + int(kinds.get("inactive_file", 0)))
    except (OSError, ValueError):  # there is no container, or no limit: "max" is not a number
        return None


def format_bytes(size: float) -> str:
    """Return a number of bytes with its unit.

    >>> format_bytes(2.5e9)
    '2.5 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"


def check_memory(what: str, needed: int) -> None:
    """Refuse an array that needs more bytes than are free: a small file can unpack to more than any machine has."""
    free = free_memory()
    if needed > free:
        raise InputError(f"{what}: would take {format_bytes(needed)} of memory, but {format_bytes(free)} are free")
