"""`--engine flower`: the same run on Flower's simulation, in processes of its own that end with it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from json import loads
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import tomli_w

from hcfl.core.record import Record
from hcfl.errors import InputError
from hcfl.flower import deploy
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.loop import OnRound, Prepared, ShouldStop
from hcfl.runs.run import Run
from hcfl.runs.tables import summarise

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing calls home, and a run cannot fetch other versions of the software."""

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Clients take every core, so a second thread would wait for one; where a run says how many it uses, that holds."""

START, GRACE = 60.0, 10.0
"""Seconds that the SuperLink may take to start, and all of them to end."""


def run(
    prepared: Prepared,
    path: Path,
    on_round: OnRound | None,
    should_stop: ShouldStop | None = None,
    resumed: bool = False,
) -> Run:
    """Run, or resume, an experiment in Flower's simulation; stop after a round where `should_stop()` is true."""
    path = path.absolute()
    _refuse_what_others_cannot_build(prepared)
    stopped = False
    if not resumed:  # say now what would be said later by another process
        run_folder.discard(run_folder.create(path, prepared.config))
    with TemporaryDirectory(prefix="hcfl-flower-") as folder, superlink(Path(folder)) as environment:
        problem = Path(folder) / "problem"
        told = {
            "experiment": prepared.config.to_yaml(),
            "out": str(path),
            "resume": str(path) if resumed else "",
            "problem-file": str(problem),
        }
        app = Path(folder) / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(deploy.app().decode() + tomli_w.dumps(told), encoding="utf-8")
        clients = prepared.setting.federation.clients
        log = Path(folder) / "log"
        with log.open("wb") as file:
            command = [program("flwr"), "run", str(app), "simulation", "--stream", "--federation-config"]
            played = subprocess.Popen(
                [*command, f"num-supernodes={clients} client-resources-num-cpus=1"],
                env=environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                for record in _records(path, played):
                    if on_round is not None:
                        on_round(record)
                    if should_stop is not None and should_stop():
                        stopped = True
                        break
            finally:
                played.terminate()
                played.wait()
        if stopped:
            return _up_to_last_checkpoint(prepared, path)
        if problem.exists():
            raise InputError(problem.read_text(encoding="utf-8"))
        if not (path / run_folder.SUMMARY).exists():
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-15:]
            raise InputError("engine = 'flower': the run ended early; Flower said:\n" + "\n".join(said))
    state, _ = checkpoint.load(path / run_folder.CHECKPOINT)
    metrics = run_folder.rows(path, run_folder.METRICS)
    summary = loads((path / run_folder.SUMMARY).read_text(encoding="utf-8"))
    profiles, setting = checkpoint.load_outline(path / run_folder.CHECKPOINT).profiles, prepared.setting
    return Run(
        path, prepared.config, setting.federation, summary, metrics, state, setting.method, setting.network, profiles
    )


def _up_to_last_checkpoint(prepared: Prepared, path: Path) -> Run:
    """Return a run that was stopped; its last round may have no checkpoint yet, then resuming repeats it."""
    config, setting, rows = prepared.config, prepared.setting, run_folder.rows(path, run_folder.METRICS)
    saved = checkpoint.files(path / run_folder.CHECKPOINT)
    state = checkpoint.read(saved[0]).state if saved else prepared.state
    truth = setting.federation.truth
    summary = summarise(setting.method.name, config, None if truth is None else truth.concepts, rows)
    return Run(path, config, setting.federation, summary, rows, state, setting.method, setting.network, None)


def _refuse_what_others_cannot_build(prepared: Prepared) -> None:
    """Other processes build the parts by their names; what was passed from Python they cannot have."""
    config = prepared.config
    if config.model.name == "custom" or config.device != "cpu":
        raise InputError("engine = 'flower': needs a model with a name or FILE.py:FUNCTION, and device cpu")


@contextmanager
def superlink(folder: Path) -> Iterator[dict[str, str]]:
    """Run a SuperLink for this run alone; give the environment in which `flwr` finds it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = folder / "flwr"
    home.mkdir()
    connection = {"simulation": {"address": f"127.0.0.1:{port}", "insecure": True}}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": connection}), encoding="utf-8")
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", "")])
    environment = {**ONE_THREAD, **os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}
    with (folder / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [program("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in a terminal stops hcfl, which lets Flower finish a round first
        )
    try:
        _wait_until_up(process, port)
        yield environment
    finally:
        end(process)


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all processes that it started: Flower detaches them, Ray's too, and they would run on."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    deadline = time.monotonic() + GRACE
    for each in (*started, process):
        with suppress(psutil.NoSuchProcess):
            each.terminate()
    _, alive = psutil.wait_procs(started, timeout=GRACE)
    with suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    for each in (*alive, process):
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def _wait_until_up(process: "subprocess.Popen[bytes]", port: int) -> None:
    end = time.monotonic() + START
    while process.poll() is None and time.monotonic() < end:
        try:
            urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
            return
        except (URLError, OSError):
            time.sleep(0.2)
    raise InputError(f"engine = 'flower': its SuperLink did not start within {START:g} s")


def _records(path: Path, played: "subprocess.Popen[bytes]") -> Iterator[Record]:
    """Give each round as it appears in the run folder, until the run has ended."""
    seen = len(run_folder.rows(path, run_folder.METRICS))
    while True:
        ended = played.poll() is not None
        rows = run_folder.rows(path, run_folder.METRICS)
        for row in rows[seen:]:
            changed = any(event["round"] == row["round"] for event in run_folder.rows(path, run_folder.EVENTS))
            yield run_folder.read_record(path, row, changed)
        seen = len(rows)
        if ended:
            return
        time.sleep(0.5)


def program(name: str) -> str:
    """Return one of Flower's programs: they are installed beside this Python."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name
