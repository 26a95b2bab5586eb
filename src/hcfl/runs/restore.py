"""Opens the folder of an interrupted run, to resume it from its newest intact checkpoint."""

import json
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from hcfl.config import Config
from hcfl.core.record import Row
from hcfl.core.state import RunState, ServerState
from hcfl.errors import InputError
from hcfl.runs import atomic_file, best_round, checkpoint, client_blocks
from hcfl.runs.folder import CHECKPOINT, CONFIG, EVENTS, LOCK, LOGS, METRICS
from hcfl.runs.links import check_folder
from hcfl.runs.save import saving
from hcfl.runs.state_file import DamagedError

CHANGEABLE = ("training.rounds", "checkpoint_every", "checkpoints_kept", "data.cache_dir", "evaluation.serve")
"""Settings that a user may change before resuming a run: they do not change the rounds that it has completed."""


@dataclass(frozen=True)
class Reopened:
    """What a run needs to resume."""

    config: Config
    metrics: list[Row]
    """The rows of the rounds up to the checkpoint."""
    state: RunState | None
    """The state of the checkpoint; None where there is no checkpoint, so that the run begins with round 1."""
    notes: tuple[str, ...]
    """A sentence for the user about each checkpoint that could not be used."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock a run folder while this process writes into it; the lock ends with the process."""
    try:
        (path / CONFIG).open("rb").close()
    except OSError as error:
        raise InputError(f"run = {str(path)!r}: has no {CONFIG} that can be read ({error.strerror})") from None
    check_folder(path)
    lock = FileLock(path / LOCK, timeout=0)
    with saving(path):
        try:
            lock.acquire()
        except Timeout:
            raise InputError(f"run = {str(path)!r}: is under way, another process is playing it") from None
        _sign(path / LOCK)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows removes it on release
            (path / LOCK).unlink()
        lock.release()


def _sign(lock: Path) -> None:
    """Write into the lock file which process holds it, for `hcfl watch`."""
    mine = {"pid": os.getpid(), "started": psutil.Process().create_time(), "host": socket.gethostname()}
    with suppress(PermissionError):  # Windows locks the content, too
        lock.write_text(json.dumps(mine), encoding="utf-8")


def reopen(path: Path) -> Reopened:
    """Find the newest intact checkpoint and remove the lines that the logs have of later rounds.

    Damaged checkpoints are skipped, with a note. A checkpoint of another version or configuration is refused.
    """
    check_folder(path)
    config = as_it_was(Config.load(path / CONFIG))
    logs = {name: _Log.read(path / name) for name in LOGS}
    state, notes = None, []
    files = checkpoint.files(path / CHECKPOINT)
    while files:
        file = files[0]
        try:
            found = checkpoint.read(file)
            saved = as_it_was(Config.from_yaml(found.config))
            chosen = min(one.personal.after or 0 for one in (config, saved))
            ahead = ("personal.after",) if chosen >= found.state.server.round else ()  # no client has chosen yet
            _check_config(config, saved, path, (*CHANGEABLE, *ahead))
            _check_logs(logs, found.state.server, path)
        except DamagedError as error:
            notes.append(str(error))
            del files[0]
            continue
        state = found.state
        break
    round_ = 0 if state is None else state.server.round
    with saving(path):
        atomic_file.sweep(path)
        atomic_file.sweep(path / CHECKPOINT)
        kept = [*files, path / CHECKPOINT / best_round.FILE]
        client_blocks.sweep(path / CHECKPOINT, kept, damaged=True)  # a round that is repeated writes them again
        for name, log in logs.items():
            atomic_file.write_text(path / name, "".join(line for row, line in log.lines if row["round"] <= round_))
    where = f"from round {round_}" if round_ else "from the beginning"
    told = tuple(f"{note}; the run goes on {where}" for note in notes)
    return Reopened(config, [row for row, _ in logs[METRICS].lines if row["round"] <= round_], state, told)


def as_it_was(config: Config) -> Config:
    """Return the configuration of a folder that an older version may have begun.

    Test was a tenth of the test set, whose clients were one newcomer together, and Val of all clients. What clients set
    aside to choose their personal parts by did not come back; nor can it after more rounds than the user now wants.
    """
    if config.personal.kind != "none":
        rounds = config.training.rounds
        config = config.updated("personal", after=min(config.personal.after or rounds, rounds))
    config = config if config.evaluation.val_clients else config.updated("evaluation", val_clients="all")
    config = config if config.data.test_on else config.updated("data", test_on="tenth")
    natural = config.data.partition == "natural"
    return config.updated("data", test_clients="together") if natural and not config.data.test_clients else config


@dataclass(frozen=True)
class _Log:
    """The readable part of a log."""

    lines: list[tuple[Row, str]]
    """Rows and their text, up to the first damaged line."""
    last: float
    """The last round whose lines are certainly complete; infinite where no line is damaged."""

    @staticmethod
    def read(path: Path) -> "_Log":
        """Read a log; a last line without a line end was being written when its process was killed."""
        try:
            text = path.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return _Log([], inf)
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        found: list[tuple[Row, str]] = []
        for line in text.split("\n")[:-1]:
            try:
                row = json.loads(line)
                row["round"] + 0  # a number
            except (ValueError, TypeError, LookupError, RecursionError):
                return _Log(found, found[-1][0]["round"] - 1 if found else 0)
            found.append((row, line + "\n"))
        return _Log(found, inf)


def _check_logs(logs: dict[str, _Log], server: ServerState, path: Path) -> None:
    """Skip a checkpoint if the logs lack one of its rounds, or one of the changes of clusters that it knows."""
    round_ = server.round
    changes = Counter((type(change).__name__.lower(), change.round) for change in server.changes)
    events = Counter((str(row.get("event")), row["round"]) for row, _ in logs[EVENTS].lines)
    for name, log in logs.items():
        logged = [row["round"] for row, _ in log.lines if row["round"] <= round_]
        if (
            log.last < round_
            or (name == METRICS and logged != list(range(1, round_ + 1)))
            or (name == EVENTS and not changes <= events)
        ):
            raise DamagedError(f"{path / name}: is damaged before round {round_}, that of the last checkpoint")


def _check_config(config: Config, saved: Config, path: Path, changeable: tuple[str, ...]) -> None:
    """Refuse a configuration that differs from the checkpoint's where it may not, and name the differences."""
    now, then = _flat(config.model_dump()), _flat(saved.model_dump())
    changed = [name for name in now | then if name not in changeable and now.get(name) != then.get(name)]
    if changed:
        each = ", ".join(
            f"{name} = {then.get(name)!r} in the checkpoint, {now.get(name)!r} in {CONFIG}" for name in changed
        )
        raise InputError(
            f"run = {str(path)!r}: its configuration was changed ({each}); put it back, or begin a new run"
        )


def _flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return flat
