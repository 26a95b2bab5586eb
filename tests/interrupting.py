"""Runs in processes of their own, which can be killed, and what two runs must have in common."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

from hcfl.cli import main
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder

CHANGING = {
    "method": "hcfl+(fedrc)",
    "clusters": 4,
    "rho": 0.1,
    "clients": 8,
    "samples": 600,
    "epochs": 3,
    "participation": 0.8,
    "rounds": 6,
}
"""Clusters are removed after rounds 2 and 4, and one splits after round 5."""

FLAGS = [word for name, value in CHANGING.items() if name != "method" for word in (f"--{name}", str(value))]


def begin(*arguments: str, said: Path) -> multiprocessing.Process:
    """Start the command in a process of its own: a fork, so that nothing is imported again."""
    process = multiprocessing.get_context("fork").Process(target=_command, args=(arguments, said))
    process.start()
    return process


def _command(arguments: tuple[str, ...], said: Path) -> None:
    with said.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1) for stream in (1, 2))
        code = main(arguments)
        sys.stdout.flush()
        os._exit(code)


def wait_for_round(out: Path, number: int) -> None:
    """Wait until a run has written a round down."""
    deadline = time.monotonic() + 60
    while len(run_folder.rows(out, run_folder.METRICS)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def without_seconds(path: Path) -> list[dict[str, object]]:
    """Return the metrics of a run but for what a clock says."""
    rows = run_folder.rows(path, run_folder.METRICS)
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


def assert_same_end(one: Path, two: Path) -> None:
    """Two run folders are the same but for seconds; models to the last bit."""
    assert without_seconds(one) == without_seconds(two)
    for name in ("config.yaml", "events.jsonl", "splits.jsonl", "clients.csv", "classes.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    summaries = [json.loads((path / "summary.json").read_text()) | {"seconds_per_round": 0} for path in (one, two)]
    assert summaries[0] == summaries[1]
    last = [checkpoint.files(path / run_folder.CHECKPOINT)[0] for path in (one, two)]
    assert last[0].name == last[1].name
    assert last[0].read_bytes() == last[1].read_bytes()
    outlines = [path / run_folder.CHECKPOINT / checkpoint.OUTLINE_FILE for path in (one, two)]
    assert outlines[0].read_bytes() == outlines[1].read_bytes()
    for path in (one, two):
        assert not list(path.rglob("*.unfinished"))
