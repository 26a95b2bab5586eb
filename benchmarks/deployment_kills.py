"""Kill the server app, the SuperLink and nodes of a deployment at random moments; it must end like an undisturbed one.

    python benchmarks/deployment_kills.py FOLDER
    python benchmarks/deployment_kills.py FOLDER --kills 3 --rounds 3

FOLDER keeps the site and both runs, so a call that was interrupted, or that ended after `--minutes`, is continued by
the same call; all programs are stopped and started again in between. nginx must be installed.
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from hcfl.core import serialization
from hcfl.flower import deploy
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder

CLIENTS = ("north", "south", "west")
SETTINGS = "rho=0.1 batch=16 epochs=2 model=mlp"
ALL_CLIENTS = "quorum=1.0 timeout=120.0 wait=600.0"
KILLS = "kills.jsonl"
VICTIMS = {"server app": "flwr-serverapp", "SuperLink": "flower-superlink"}
CLOCKS = ("seconds", "bytes")
OF_CLIENTS = ("absent", "refused", "joined", "left")
"""Events that say who was there, and when; the others are what happened to the clusters."""

PATIENCE = 30
"""Seconds without a server app after which the run is resumed."""


class TimeIsUpError(Exception):
    """What is left is done by the next call."""


@dataclass
class Deployment:
    """A site whose programs run on this machine, and its operator, who resumes a run whose server app is gone."""

    folder: Path
    end: float
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    seen: float = 0.0
    """When there was a server app, or one was asked for."""

    def start(self, name: str, *command: object) -> None:
        """Start a program; what it says is in a file of its name."""
        path = f"{Path(sys.executable).parent}{os.pathsep}/usr/sbin{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "HCFL_VENV": "/nowhere", "PAUSE": "1", "OMP_NUM_THREADS": "1"}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [str(part) for part in command],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def open(self) -> None:
        """Start the server and the nodes, and let the nodes in."""
        site = self.folder / "site"
        self.start("server", site / "server" / "start.sh")
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            self.start("register", site / "server" / "register.sh")
            if self.running.pop("register").wait() == 0:
                break
            time.sleep(2)
        else:
            raise SystemExit(f"the nodes could not be registered; see {self.folder / 'register.log'}")
        for name in CLIENTS:
            self.start(name, site / "clients" / name / "start.sh", "--data", self.folder / f"{name}.npz")

    def close(self) -> None:
        """End all programs, politely at first."""
        groups = {name: [process.pid, *descendants(process.pid)] for name, process in self.running.items()}
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        kill([pid for pids in groups.values() for pid in pids])

    def victims(self, name: str) -> list[int]:
        """Return the processes of a victim: all that a node started, or one program of the server."""
        if name in CLIENTS:
            return descendants(self.running[name].pid)
        return named(VICTIMS[name], self.running["server"].pid)

    def wait_until(self, out: Path, rounds: int, more: int, until: float = 0.0) -> None:
        """Wait until a run has completed so many rounds and a moment has come; resume it where its server app is gone.

        `more` is how many rounds the run has in all.
        """
        while len(rows(out)) < rounds or time.monotonic() < until:
            if is_complete(out, more):
                return
            if time.monotonic() > self.end:
                raise TimeIsUpError
            if named(VICTIMS["server app"], self.running["server"].pid):
                self.seen = time.monotonic()
            elif time.monotonic() > self.seen + PATIENCE:
                self.resume(out, more)
            time.sleep(0.2)

    def resume(self, out: Path, rounds: int) -> None:
        """Ask for the run, from its last complete round if it has one."""
        self.seen = time.monotonic()
        stream = self.running.pop("run", None)
        if stream is not None:
            kill([*descendants(stream.pid), stream.pid])
            stream.wait()
        server = self.folder / "site" / "server"
        if (out / "config.yaml").exists():
            self.start("run", server / "resume.sh", out, "--run-config", ALL_CLIENTS)
        else:
            told = f"{ALL_CLIENTS} rounds={rounds} settings='{SETTINGS}' out='{out}'"
            self.start("run", server / "run.sh", "--run-config", told)


def main() -> None:
    """Print a line for each kill, and what differs in the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--minutes", type=float, default=120.0, help="end after so many, to be called again")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not (folder / "site").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        deploy.init(folder / "site", deploy.Site(CLIENTS, "127.0.0.1", *free_ports(3)))
    deployment = Deployment(folder, time.monotonic() + 60 * arguments.minutes)
    try:
        deployment.open()
        whole, disturbed = folder / "undisturbed", folder / "killed"
        deployment.wait_until(whole, arguments.rounds + 1, arguments.rounds)
        kill_and_wait(deployment, disturbed, arguments.kills, arguments.rounds, arguments.seed)
    except TimeIsUpError:
        print("time is up; the same call continues")
        raise SystemExit(3) from None
    finally:
        deployment.close()
    differs = differences(whole, disturbed)
    kills = len((folder / KILLS).read_bytes().splitlines())
    print(f"\n{kills} kills, {arguments.rounds} rounds; what differs: {', '.join(differs) or 'nothing'}")


def kill_and_wait(deployment: Deployment, out: Path, kills: int, rounds: int, seed: int) -> None:
    """Kill as often as asked, spread over all rounds but the last, and wait for the end of the run."""
    log, moments = deployment.folder / KILLS, random.Random(seed)
    done = len(log.read_bytes().splitlines()) if log.exists() else 0
    seconds = 2 * float(np.median([row["seconds"] for row in rows(deployment.folder / "undisturbed")]))
    planned = sorted((number * (rounds - 1) // kills, moments.uniform(0, seconds)) for number in range(kills))
    chosen = [moments.choice([*VICTIMS, moments.choice(CLIENTS)]) for _ in planned]
    began = time.monotonic()
    if not is_complete(out, rounds):
        deployment.resume(out, rounds)
    for number, ((round_, after), victim) in enumerate(zip(planned, chosen, strict=True)):
        if number < done:
            continue
        deployment.wait_until(out, round_, rounds)
        began = began if number and planned[number - 1][0] == round_ else time.monotonic()
        deployment.wait_until(out, round_, rounds, began + after)
        while not (pids := deployment.victims(victim)) and not is_complete(out, rounds):  # it is being started again
            deployment.wait_until(out, round_, rounds, time.monotonic() + 0.2)
        kill(pids)
        row = {"kill": number + 1, "round": len(rows(out)) + 1, "after": round(after, 2), "victim": victim}
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{row['kill']:4}: {victim}, {after:.2f} s after round {round_}, in round {row['round']}", flush=True)
        if victim == "server app":
            deployment.resume(out, rounds)
    deployment.wait_until(out, rounds + 1, rounds)


def differences(one: Path, two: Path) -> list[str]:
    """Return what is not the same in two runs: models to the last bit, clusters, metrics without clocks, events."""
    found = []
    states = [serialization.flatten(checkpoint.load(path / "checkpoint")[0]) for path in (one, two)]
    tensors = [stored for _, stored in states]
    if states[0][0] != states[1][0] or tensors[0].keys() != tensors[1].keys():
        found.append("state")
    elif differ := [name for name in tensors[0] if not torch.equal(tensors[0][name], tensors[1][name])]:
        found.append(f"{len(differ)} of {len(tensors[0])} tensors")
    if metrics(one) != metrics(two):
        found.append("metrics.jsonl")
    if events(one) != events(two):
        found.append("events.jsonl")
    found += [name for name in ("clients.csv", "classes.csv") if (one / name).read_bytes() != (two / name).read_bytes()]
    return found


def metrics(path: Path) -> list[dict[str, object]]:
    """Return the rounds without what a clock says."""
    return [{key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in rows(path)]


def events(path: Path) -> list[dict[str, object]]:
    """Return what happened to the clusters."""
    return [row for row in run_folder.rows(path, "events.jsonl") if row["event"] not in OF_CLIENTS]


def is_complete(path: Path, rounds: int) -> bool:
    """Whether a run has its last files; a run that is told to stop has them, too, but of fewer rounds."""
    summary = path / run_folder.SUMMARY
    return summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["rounds"] == rounds


def rows(path: Path) -> list[dict[str, object]]:
    """Return the rounds that are written down."""
    return run_folder.rows(path, run_folder.METRICS) if path.exists() else []


def write_data(folder: Path) -> None:
    """Write a file for each client, one of whom labels otherwise than the others."""
    digits = load_digits()
    chosen = np.random.default_rng(0).permutation(len(digits.target))[:450]
    x, y, client = digits.images[chosen].astype(np.uint8), digits.target[chosen], np.arange(450) % len(CLIENTS)
    y[client == 2] = (y[client == 2] + 1) % 10
    for number, name in enumerate(CLIENTS):
        np.savez(folder / f"{name}.npz", x=x[client == number], y=y[client == number])


def free_ports(number: int) -> list[int]:
    """Return ports on which no program listens; the last is followed by free ones for the other nodes."""
    wanted = number + len(CLIENTS) - 1
    for start in range(21_000, 60_000, wanted):
        sockets = [socket.socket() for _ in range(wanted)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("127.0.0.1", start + offset))
            return list(range(start, start + number))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise SystemExit("there are no free ports")


def kill(pids: list[int]) -> None:
    """End processes without a warning."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return all processes that a process started, and that those started."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            number, rest = stat.read_text(errors="replace").split(" (", 1)
            parents[int(number)] = int(rest.rsplit(") ", 1)[1].split()[1])
    found, known = [], {pid}
    while new := [child for child, parent in parents.items() if parent in known and child not in known]:
        found += new
        known |= set(new)
    return found


def named(name: str, ancestor: int) -> list[int]:
    """Return the descendants of a process whose command has this name."""
    found = []
    for pid in descendants(ancestor):
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(name.encode()) for word in words):
                found.append(pid)
    return found


if __name__ == "__main__":
    main()
