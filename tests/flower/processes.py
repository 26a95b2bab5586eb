"""A site's own scripts as processes on this machine, for tests; all of them end with the test."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = Path(sys.executable).parent
"""Where Flower's programs are: beside this Python."""


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on, one after another."""
    for start in range(20_000 + os.getpid() % 1000 * 20, 60_000, number):
        taken = [socket.socket() for _ in range(number)]
        try:
            for offset, one in enumerate(taken):
                one.bind(("127.0.0.1", start + offset))
            return list(range(start, start + number))
        except OSError:
            continue
        finally:
            for one in taken:
                one.close()
    raise AssertionError("no free ports")


def wait_for(what: str, done: Callable[[], object], seconds: float) -> None:
    """Wait until something is the case."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.2)


@dataclass
class Processes:
    """Programs that a test started."""

    logs: Path
    running: dict[str, subprocess.Popen] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        path = f"{PROGRAMS}{os.pathsep}/usr/sbin{os.pathsep}{os.environ['PATH']}"
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        return {**os.environ, **quiet, "PATH": path, "HCFL_VENV": "/nowhere", "PAUSE": "1", "OMP_NUM_THREADS": "1"}

    def start(self, name: str, *command: object) -> None:
        """Start a program in the background; what it says is in a file of its name."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def call(self, *command: object, timeout: float = 120) -> tuple[int, str]:
        """Run a program to its end and end what it leaves behind; return its code and what it said."""
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            process = subprocess.Popen(
                [str(part) for part in command],
                env=self.environment(),
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout)
            finally:
                end(process.pid, signal.SIGKILL)
            said.seek(0)
            return code, said.read()

    def log(self, name: str) -> str:
        """Return what a program said so far."""
        return (self.logs / f"{name}.log").read_text(errors="replace")

    def stop(self) -> None:
        """End everything, politely at first."""
        everybody = {name: [process.pid, *descendants(process.pid)] for name, process in self.running.items()}
        for process in self.running.values():
            process.terminate()
        end_by = time.monotonic() + 10
        for name, process in self.running.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end_by - time.monotonic()))
            for pid in everybody[name]:
                end(pid, signal.SIGKILL)
            process.wait()
        self.running.clear()


def end(pid: int, how: signal.Signals) -> None:
    """Signal a process and the group that it leads, where they are still there."""
    for send in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            send(pid, how)


def descendants(pid: int) -> list[int]:
    """Return all processes that a process started, and that those started."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    parents = dict(map(int, line.split()) for line in table.splitlines())
    found, known = [], {pid}
    while new := [child for child, parent in parents.items() if parent in known and child not in known]:
        found += new
        known |= set(new)
    return found


def kill(pids: list[int]) -> None:
    """End processes without a warning; there has to be one."""
    assert pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes_named(name: str, ancestor: int) -> list[int]:
    """Return the descendants of a process whose command has this name."""
    found = []
    for pid in descendants(ancestor):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(name.encode()) for word in words):
                found.append(pid)
    return found
