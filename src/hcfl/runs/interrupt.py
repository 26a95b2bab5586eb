"""SIGINT, SIGTERM and SIGHUP on the command line: the first ends a run after its round, the second ends it at once.

After SIGTERM a round has `GRACE` seconds: what sends it (a service manager, a batch system) kills soon after.

SIGHUP comes when a terminal closes. Signals are handled like this only by the command line, and only while it waits for
runs. In Python, Ctrl-C is a KeyboardInterrupt in the middle of a round.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hcfl.runs import folder as run_folder
from hcfl.runs.loop import ShouldStop
from hcfl.runs.save import resume_command

SIGNALS = tuple(signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Windows has no SIGHUP."""

FIRST_SIGNAL_NOTE = b"hcfl: finishing the round, then ending; once more ends it at once\n"


GRACE = 20.0
"""Seconds that a round has to end after SIGTERM, before the run ends at once; the last checkpoint is kept."""


class Interrupted(KeyboardInterrupt):
    """A signal ended the run in the folder `path`, or, where `path` is None, many runs."""

    def __init__(self, number: int, path: Path | None) -> None:
        super().__init__(number, path)
        self.number, self.path = number, path

    @property
    def exit_code(self) -> int:
        """The exit code that shells give to a process that a signal ended."""
        return 128 + self.number

    def __str__(self) -> str:
        if self.path is None:
            return "interrupted; what was played is saved, and the same command goes on with it"
        if not (self.path / run_folder.CONFIG).exists():
            return "interrupted before the end of the first round, so nothing is kept"
        return f"interrupted; what was played is saved, and this goes on: {resume_command(self.path)}"

    @property
    def at_once(self) -> str:
        """The message for a run that ended in the middle of a round, which is not saved."""
        if self.path is None or not (self.path / run_folder.CONFIG).exists():
            return "ended at once; nothing was begun"
        return f"ended at once; from what is saved this goes on: {resume_command(self.path)}"


@contextmanager
def stop_after_round(path: Path, in_other_process: bool = False) -> Iterator[ShouldStop]:
    """Give the function that a run asks after each round whether it must stop; raise Interrupted after it did.

    A second signal ends this process immediately: torch may lose an exception that a signal handler raises. With
    `in_other_process`, the rounds run in other processes, which this one has to end, so Interrupted is raised.
    """
    with _handled(path, tolerated=1, exits=not in_other_process) as received:
        yield lambda: bool(received)
        if received:
            raise Interrupted(received[0], path)


@contextmanager
def of_many_runs() -> Iterator[None]:
    """Raise Interrupted on the first signal while other processes run; they are then told to finish their rounds."""
    with _handled(None, tolerated=0, exits=False):
        yield


@contextmanager
def _handled(path: Path | None, tolerated: int, exits: bool) -> Iterator[list[int]]:
    """Collect signals; those after the first `tolerated` ones exit or raise. The second restores the defaults."""
    received: list[int] = []
    waiting: list[threading.Timer] = []

    def handle(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            _tell(2, FIRST_SIGNAL_NOTE)
            if number == signal.SIGTERM and exits:
                end = threading.Timer(GRACE, _exit, (Interrupted(number, path),))
                end.daemon = True  # a round that ends in time ends the process, and this with it
                end.start()
                waiting.append(end)
        else:
            for each in previous:
                signal.signal(each, signal.SIG_DFL)
        if len(received) > tolerated:
            interrupted = Interrupted(received[0], path)
            if exits:
                _exit(interrupted)
            raise interrupted

    main = threading.current_thread() is threading.main_thread()  # Python handles signals only there
    wanted = [each for each in SIGNALS if main and signal.getsignal(each) is not signal.SIG_IGN]  # nohup ignores them
    previous = {each: signal.signal(each, handle) for each in wanted}
    try:
        yield received
    finally:
        for timer in waiting:
            timer.cancel()
        for each, handler in previous.items():
            signal.signal(each, handler)


def _tell(stream: int, text: bytes) -> None:
    """Write to a stream, as a signal handler may, which must not print; a terminal that was closed takes nothing."""
    with suppress(OSError):
        os.write(stream, text)


def _exit(interrupted: Interrupted) -> NoReturn:
    """End this process at once; the files on disk are complete at any moment."""
    if os.isatty(1):
        _tell(1, b"\x1b[?25h\n")  # show the cursor, which progress bars hide
    _tell(2, f"hcfl: {interrupted.at_once}\n".encode())
    os._exit(interrupted.exit_code)
