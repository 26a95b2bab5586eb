"""CPU time, wall time and page faults of single rounds: convolutions, and very many participants.

python benchmarks/cpu_rounds.py series                                   # 36 clients × 100 windows, cnn1d, FedAvg
python benchmarks/cpu_rounds.py images --clients 4                       # 450 images each, cnn, FedAvg, batch 50
python benchmarks/cpu_rounds.py participants --method hcfl++ --clients 10000   # 3 vectors each, MLP 32-64-10

CPU time changes little with what else the machine does; it is that of all threads.
"""

import argparse
import resource
from functools import partial
from time import perf_counter, process_time

import numpy as np
import torch

from hcfl import Federation
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.models import mlp
from hcfl.models.precision import threads
from hcfl.runs.loop import Prepared
from hcfl.runs.prepare import prepare

CLASSES, CONCEPTS = 10, 3


def series(method: str, clients: int, engine: str, number: int | None) -> Prepared:
    """Prepare clients that each hold 100 windows of 128 × 9 random values, as of human activity."""
    draw, windows = np.random.default_rng(0), 100 * clients
    x, y = draw.standard_normal((windows, 128, 9), dtype=np.float32), draw.integers(0, 6, windows)
    federation = Federation.from_arrays(x, y, client=np.arange(clients).repeat(100))
    return prepare(from_flat(method=method, model="cnn1d", engine=engine, threads=number), federation)


def images(method: str, clients: int, engine: str, number: int | None) -> Prepared:
    """Prepare clients that each hold 450 random images of 32 × 32 × 3."""
    draw, amount = np.random.default_rng(0), 450 * clients
    x, y = draw.integers(0, 256, (amount, 32, 32, 3), dtype=np.uint8), draw.integers(0, 10, amount)
    federation = Federation.from_arrays(x, y, client=np.arange(clients).repeat(450))
    settings = {"model": "cnn", "batch": 50, "epochs": 1, "engine": engine, "threads": number}
    return prepare(from_flat(method=method, **settings), federation)


def faults() -> int:
    """Return how many pages of memory the system gave this process, each filled with zeros."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def participants(method: str, clients: int, engine: str, number: int | None) -> Prepared:
    """Prepare clients in three concepts that each hold 3 vectors, all of which take part in every round."""
    draw, concept = np.random.default_rng(0), np.arange(clients) % CONCEPTS
    centres = 2 * draw.standard_normal((CLASSES, 32)).astype(np.float32)
    labels = draw.integers(0, CLASSES, (clients, 3))
    x = centres[labels] + draw.standard_normal((clients, 3, 32), dtype=np.float32)
    y = (labels + 3 * concept[:, None]) % CLASSES
    owner = np.arange(clients).repeat(3)
    federation = Federation.from_arrays(
        x.reshape(-1, 32), y.ravel(), client=owner, concept=concept.repeat(3), kind="vector"
    )
    return prepare(from_flat(method=method, engine=engine, threads=number), federation, partial(mlp, hidden=(64,)))


def main() -> None:
    """Print a line for each round."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=("series", "images", "participants"))
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--clients", type=int, default=36)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    build = {"series": series, "images": images, "participants": participants}[options.work]
    torch.set_num_threads(options.threads or torch.get_num_threads())
    prepared = build(options.method, options.clients, options.engine, options.threads)
    config, began, wall, pages = prepared.config, process_time(), perf_counter(), faults()
    print(f"{options.method}, {options.clients} clients, {config.engine} with {config.threads} threads")
    with threads(config.threads):
        for _, record in rounds.play(prepared.setting, prepared.state, options.rounds):
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in record.seconds.items())
            cpu, whole = process_time() - began, perf_counter() - wall
            print(
                f"round {record.round}: CPU {cpu:.1f} s, wall {whole:.1f} s ({phases}), {faults() - pages} page faults"
            )
            began, wall, pages = process_time(), perf_counter(), faults()


if __name__ == "__main__":
    main()
