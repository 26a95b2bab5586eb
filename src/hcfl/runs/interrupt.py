"""SIGINT and SIGTERM for the command line: a run finishes its round, is saved and ends; a second one ends it at once.

Nobody but the command line heeds signals like this, and only while its runs are played. From Python, Ctrl-C is a
KeyboardInterrupt in the middle of a round, as everywhere.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hcfl.core.record import Record
from hcfl.runs import folder as run_folder
from hcfl.runs.loop import OnRound
from hcfl.runs.save import how_to_go_on

SIGNALS = (signal.SIGINT, signal.SIGTERM)

ASKED = b"hcfl: finishing the round, then ending; once more ends it at once\n"


class Interrupted(KeyboardInterrupt):
    """A signal ended a run, or many of them, where `path` is None."""

    def __init__(self, number: int, path: Path | None) -> None:
        super().__init__(number, path)
        self.number, self.path = number, path

    @property
    def exit_code(self) -> int:
        """What shells make of a signal."""
        return 128 + self.number

    def __str__(self) -> str:
        if self.path is None:
            return "interrupted; what was played is saved, and the same command goes on with it"
        if not (self.path / run_folder.CONFIG).exists():
            return "interrupted before the end of the first round, so nothing is kept"
        return f"interrupted; what was played is saved, and this goes on: {how_to_go_on(self.path)}"

    @property
    def at_once(self) -> str:
        """What is said where nothing more is saved."""
        if self.path is None or not (self.path / run_folder.CONFIG).exists():
            return "ended at once; nothing was begun"
        return f"ended at once; from what is saved this goes on: {how_to_go_on(self.path)}"


@contextmanager
def after_the_round(on_round: OnRound, path: Path, elsewhere: bool = False) -> Iterator[OnRound]:
    """Give what is told of each round, and ends the run after one in which a signal came.

    A second signal ends this process where it stands, as if it were killed: torch does not bear an exception at every
    point, and at some it loses it. Where the rounds are played `elsewhere`, those who play them have to be told, so it
    is raised.
    """
    with _heeded(path, patience=1, ends=not elsewhere) as received:

        def tell(record: Record) -> None:
            on_round(record)
            if received:
                raise Interrupted(received[0], path)

        yield tell
        if received:  # after the last round
            raise Interrupted(received[0], path)


@contextmanager
def of_many_runs() -> Iterator[None]:
    """Let a signal interrupt whoever waits for runs in other processes; those finish their rounds."""
    with _heeded(None, patience=0, ends=False):
        yield


@contextmanager
def _heeded(path: Path | None, patience: int, ends: bool) -> Iterator[list[int]]:
    """Collect the signals that come; those after `patience` interrupt, and the system takes any after the second."""
    received: list[int] = []

    def heed(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            os.write(2, ASKED)  # print is not for signal handlers
        else:
            for each in before:
                signal.signal(each, signal.SIG_DFL)
        if len(received) > patience:
            interrupted = Interrupted(received[0], path)
            if ends:
                _end(interrupted)
            raise interrupted

    main = threading.current_thread() is threading.main_thread()  # only there can signals be handled
    wanted = [each for each in SIGNALS if main and signal.getsignal(each) is not signal.SIG_IGN]  # as nohup has it
    before = {each: signal.signal(each, heed) for each in wanted}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _end(interrupted: Interrupted) -> NoReturn:
    """End this process at once; what is on the disk is whole at any moment."""
    if os.isatty(1):
        os.write(1, b"\x1b[?25h\n")  # the cursor, which progress bars hide
    os.write(2, f"hcfl: {interrupted.at_once}\n".encode())
    os._exit(interrupted.exit_code)
