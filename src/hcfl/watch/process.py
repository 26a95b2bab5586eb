"""The process that plays a run, as its lock file names it."""

import json
import socket
from dataclasses import dataclass

import psutil

from hcfl.runs.folder import LOCK
from hcfl.watch.files import Place


@dataclass(frozen=True)
class Player:
    """The process that holds a run's lock file, or held it when it was killed."""

    pid: int
    here: bool
    """Whether it is, or was, a process of this machine."""
    alive: bool
    """Whether it is running; of another machine that is not known."""
    memory: int | None
    """Bytes that it occupies."""


def player(place: Place) -> Player | None:
    """Return the process that a run's lock file names; None where there is no lock file, so that no process is left."""
    try:
        said = json.loads(place.read(LOCK, 4096) or b"{}")
        pid, started, host = int(said["pid"]), float(said["started"]), str(said["host"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError):
        return Player(0, False, False, None)
    if host != socket.gethostname():
        return Player(pid, False, False, None)
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - started) > 2:  # another process has the number now
            return Player(pid, True, False, None)
        return Player(pid, True, process.status() != psutil.STATUS_ZOMBIE, int(process.memory_info().rss))
    except psutil.Error:
        return Player(pid, True, False, None)
