"""Memory that the process keeps for the next step, instead of giving it back to the system after each.

The C library returns large blocks as soon as they are free, and the system fills each with zeros, page by page, when it
is asked for again: hundreds of thousands of pages for one client of a small convolutional network. Clients in threads
wait for each other there, since pages belong to the whole process.
"""

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""What `mallopt` calls them."""

SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
"""Environment variables by which users choose themselves."""

KEPT = 1 << 29
"""Bytes of free memory that a process keeps, at most."""

LARGEST = 1 << 25
"""Bytes of the largest block that is kept; it is the most that all versions of the library take."""


def keep_memory() -> bool:
    """Let the process keep what training frees; return whether the C library can, and the user has not chosen."""
    library = ctypes.CDLL(None) if os.name == "posix" else None
    if not hasattr(library, "mallopt") or any(name in os.environ for name in SETTINGS):
        return False
    assert library is not None
    return bool(library.mallopt(MMAP_THRESHOLD, LARGEST) and library.mallopt(TRIM_THRESHOLD, KEPT))
