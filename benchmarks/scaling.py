"""How time and memory of a round grow: with clients, participants, K and classes; and tier 4 with many participants.

python benchmarks/scaling.py
python benchmarks/scaling.py --most-clients 10000 --rounds 3
python benchmarks/scaling.py --sweeps clients --file FOLDER

With --file, the samples are in `.npz` files in a folder, which it keeps. Large ones are mapped (docs/engines.md): peak
memory then counts pages of files that the system can drop, so memory of the process's own at the end stands beside it.

HCFL+ (FedRC) on random vectors, 20 samples a client, MLP 32-64-C. Every point has a process of its own, so that its
peak resident memory is its own, too.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from steady import hcfl_plus

from hcfl import Federation
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.data.assemble import build
from hcfl.models import mlp
from hcfl.runs.prepare import prepare
from hcfl.tiers.distance import PrototypeDistance
from hcfl.tiers.participants import Participants, Prototypes

SAMPLES, FEATURES = 20, 32
DISTANCE_PARTICIPANTS, DISTANCE_CLASSES, DISTANCE_FEATURES = 2000, 10, 1280


@dataclass(frozen=True)
class Point:
    """One federation to measure."""

    clients: int = 200
    participants: int = 100
    clusters: int = 3
    classes: int = 10


BASE = Point()
SWEEPS: dict[str, list[Point]] = {
    "clients": [replace(BASE, clients=clients) for clients in (200, 1000, 10_000, 100_000, 1_000_000)],
    "participants": [replace(BASE, clients=1000, participants=some) for some in (10, 100, 300, 1000)],
    "clusters": [replace(BASE, clusters=clusters) for clusters in (1, 3, 10)],
    "classes": [replace(BASE, classes=classes) for classes in (10, 100, 500)],
}
"""What is varied → where it is measured."""


def arrays_of(point: Point) -> dict[str, NDArray[Any]]:
    """Return the samples of a point."""
    samples = point.clients * SAMPLES
    return {
        "x": np.random.default_rng(0).standard_normal((samples, FEATURES), dtype=np.float32),
        "y": np.arange(samples) % point.classes,  # every client holds as many classes as fit
        "client": np.arange(point.clients).repeat(SAMPLES),
    }


def own_memory() -> int:
    """Return the bytes of memory of this process that are not pages of files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure_rounds(point: Point, number: int, threads: int, file: Path | None) -> dict[str, float]:
    """Build the federation and play; the first round warms up."""
    arrays = arrays_of(point) if file is None else {}
    started = perf_counter()
    if file is None:
        federation = Federation.from_arrays(**arrays, kind="vector")
    else:
        federation = build(from_flat(data=str(file), kind="vector").data, seed=0)
    built = perf_counter() - started
    config = from_flat(participation=point.participants / point.clients, lr=0.01)
    torch.set_num_threads(threads)
    prepared = prepare(config, federation, partial(mlp, hidden=(64,)), hcfl_plus(point.clusters))
    torch.set_num_threads(prepared.config.threads or threads)
    records = [record for _, record in rounds.play(prepared.setting, prepared.state, number)]
    assert {record.participants for record in records} == {point.participants}
    assert {record.clusters for record in records} == {point.clusters}
    seconds = median([sum(record.seconds.values()) for record in records][1:])
    return {"build": built, "seconds": seconds, "own": own_memory() / 2**20}


def measure_distance(number: int, threads: int) -> dict[str, float]:
    """Compute the distance matrix of many participants; the first time warms up."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    many, classes, features = DISTANCE_PARTICIPANTS, DISTANCE_CLASSES, DISTANCE_FEATURES
    evidence = Prototypes(
        torch.randn(many, classes, features),
        torch.randint(0, 5, (many, classes)).float(),
        torch.randn(many, features),
    )
    participants = Participants(tuple(range(many)), torch.zeros(many, dtype=torch.long), torch.rand(many), evidence)
    seconds = []
    for _ in range(number):
        started = perf_counter()
        PrototypeDistance("ASCP").between(participants)
        seconds.append(perf_counter() - started)
    return {"build": 0.0, "seconds": median(seconds[1:]), "own": own_memory() / 2**20}


def measure(task: Mapping[str, int], number: int, threads: int, folder: Path | None) -> dict[str, float]:
    """Measure a point, or with no settings the distance matrix, in a process of its own."""
    command = [sys.executable, __file__, "--point", json.dumps(task)]
    command += ["--rounds", str(number), "--threads", str(threads)]
    if folder is not None and task:
        file = folder / f"{task['clients']}-{task['classes']}.npz"
        if not file.exists():
            subprocess.run([*command, "--make", str(file)], check=True)
        command += ["--file", str(file)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print the table, then how the end of each sweep compares with its start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="+", choices=[*SWEEPS, "distance"], default=[*SWEEPS, "distance"])
    parser.add_argument("--clients", type=int, nargs="+", help="of the sweep of clients, only these points")
    parser.add_argument("--most-clients", type=int, default=1_000_000, help="leave larger federations out")
    parser.add_argument("--rounds", type=int, default=6, help="the first one does not count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--file", type=Path, metavar="FOLDER", help="read the samples from .npz files there")
    parser.add_argument("--point", help=argparse.SUPPRESS)
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, since the first one does not count")
    if options.point is not None:
        task = json.loads(options.point)
        if options.make is not None:
            np.savez(options.make, **arrays_of(Point(**task)))
            return
        if task:
            found = measure_rounds(Point(**task), options.rounds, options.threads, options.file)
        else:
            found = measure_distance(options.rounds, options.threads)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**found, "peak": peak}))
        return

    ratios = []
    print("| varied | clients | participants | K | classes | s a round | peak MB | own MB at the end | s to build |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.sweeps:
        points = [point for point in SWEEPS.get(name, []) if point.clients <= options.most_clients]
        if name == "clients" and options.clients:
            points = [point for point in points if point.clients in options.clients]
        results = []
        for point in points:
            found = measure(asdict(point), options.rounds, options.threads, options.file)
            results.append(found)
            where = " | ".join(f"{value:,}" for value in asdict(point).values())
            print(
                f"| {name} | {where} | {found['seconds']:.4f} | {found['peak']:,.0f} | {found['own']:,.0f} "
                f"| {found['build']:.2f} |",
                flush=True,
            )
        for point, found in zip(points[1:], results[1:], strict=True):
            what = f"{getattr(point, name):,} / {getattr(points[0], name):,} {name}"
            times, memory = (found[key] / results[0][key] for key in ("seconds", "peak"))
            ratios.append(f"| {what} | {times:.2f} | {memory:.2f} |")
    if "distance" in options.sweeps:
        found = measure({}, options.rounds, options.threads, None)
        where = f"– | {DISTANCE_PARTICIPANTS:,} | – | {DISTANCE_CLASSES}"
        sizes = f"{found['peak']:,.0f} | {found['own']:,.0f}"
        print(f"| distance matrix alone | {where} | {found['seconds']:.4f} | {sizes} | – |")
    if ratios:
        print("\n| ratio | of seconds | of peak memory |\n|---|---|---|", *ratios, sep="\n")


if __name__ == "__main__":
    main()
