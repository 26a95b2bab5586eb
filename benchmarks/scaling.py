"""How time and memory of a round grow: with clients, participants, K and classes; and tier 4 with many participants.

python benchmarks/scaling.py
python benchmarks/scaling.py --most-clients 10000 --rounds 3

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
from statistics import median
from time import perf_counter

import numpy as np
import torch
from steady import hcfl_plus

from hcfl import Federation
from hcfl.config import from_flat
from hcfl.core import rounds
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


def measure_rounds(point: Point, number: int, threads: int) -> dict[str, float]:
    """Build the federation and play; the first round warms up."""
    draw, samples = np.random.default_rng(0), point.clients * SAMPLES
    x = draw.standard_normal((samples, FEATURES), dtype=np.float32)
    y = np.arange(samples) % point.classes  # every client holds as many classes as fit
    client = np.arange(point.clients).repeat(SAMPLES)
    started = perf_counter()
    federation = Federation.from_arrays(x, y, client=client, kind="vector")
    built = perf_counter() - started
    config = from_flat(participation=point.participants / point.clients, lr=0.01)
    torch.set_num_threads(threads)
    prepared = prepare(config, federation, partial(mlp, hidden=(64,)), hcfl_plus(point.clusters))
    torch.set_num_threads(prepared.config.threads or threads)
    records = [record for _, record in rounds.play(prepared.setting, prepared.state, number)]
    assert {record.participants for record in records} == {point.participants}
    assert {record.clusters for record in records} == {point.clusters}
    return {"build": built, "seconds": median([sum(record.seconds.values()) for record in records][1:])}


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
    return {"build": 0.0, "seconds": median(seconds[1:])}


def measure(task: Mapping[str, int], number: int, threads: int) -> dict[str, float]:
    """Measure a point, or with no settings the distance matrix, in a process of its own."""
    command = [sys.executable, __file__, "--point", json.dumps(task)]
    command += ["--rounds", str(number), "--threads", str(threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print the table, then how the end of each sweep compares with its start."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sweeps", nargs="+", choices=[*SWEEPS, "distance"], default=[*SWEEPS, "distance"])
    parser.add_argument("--most-clients", type=int, default=1_000_000, help="leave larger federations out")
    parser.add_argument("--rounds", type=int, default=6, help="the first one does not count")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, since the first one does not count")
    if options.point is not None:
        task = json.loads(options.point)
        measured = measure_rounds if task else measure_distance
        found = measured(*([Point(**task)] if task else []), options.rounds, options.threads)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**found, "peak": peak}))
        return

    ratios = []
    print("| varied | clients | participants | K | classes | s a round | peak MB | s to build the federation |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.sweeps:
        points = [point for point in SWEEPS.get(name, []) if point.clients <= options.most_clients]
        results = []
        for point in points:
            found = measure(asdict(point), options.rounds, options.threads)
            results.append(found)
            where = " | ".join(f"{value:,}" for value in asdict(point).values())
            print(
                f"| {name} | {where} | {found['seconds']:.4f} | {found['peak']:,.0f} | {found['build']:.2f} |",
                flush=True,
            )
        for point, found in zip(points[1:], results[1:], strict=True):
            what = f"{getattr(point, name):,} / {getattr(points[0], name):,} {name}"
            times, memory = (found[key] / results[0][key] for key in ("seconds", "peak"))
            ratios.append(f"| {what} | {times:.2f} | {memory:.2f} |")
    if "distance" in options.sweeps:
        found = measure({}, options.rounds, options.threads)
        where = f"– | {DISTANCE_PARTICIPANTS:,} | – | {DISTANCE_CLASSES}"
        print(f"| distance matrix alone | {where} | {found['seconds']:.4f} | {found['peak']:,.0f} | – |")
    if ratios:
        print("\n| ratio | of seconds | of peak memory |\n|---|---|---|", *ratios, sep="\n")


if __name__ == "__main__":
    main()
