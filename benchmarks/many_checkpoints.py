"""What a checkpoint costs where very many clients took part: all states in one file, and only the blocks that are new.

python benchmarks/many_checkpoints.py
python benchmarks/many_checkpoints.py --clients 1000000 --rounds 20 --without-before

Every client has a state (weights of three clusters, for itself and for each of 20 samples). Then rounds of 100
participants are played, a checkpoint follows each of them, and both layouts are written side by side. The time of a
round is that of putting new states into the table; nothing is trained.
"""

import argparse
import gc
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import psutil
import torch
from steady import hcfl_plus

from hcfl import Federation
from hcfl.config import Config, from_flat
from hcfl.core.client_table import ClientTable
from hcfl.core.state import ClientState, RunState
from hcfl.models import mlp
from hcfl.models.inputs import Scaling
from hcfl.runs import checkpoint, client_blocks, state_file
from hcfl.runs.checkpoint import Checkpoint
from hcfl.runs.prepare import prepare
from hcfl.tiers import Weights

CLUSTERS, SAMPLES = 3, 20


def states(clients: list[int], round_: int) -> dict[int, ClientState]:
    """Return new states of some clients."""
    weights = [Weights(torch.rand(1, CLUSTERS), torch.rand(SAMPLES, CLUSTERS)) for _ in clients]
    known = tuple(range(CLUSTERS))
    return {client: ClientState(round_, known, one) for client, one in zip(clients, weights, strict=True)}


def begin(clients: int) -> tuple[RunState, Scaling, Config]:
    """Return the state of a run before its first round."""
    x = np.random.default_rng(0).standard_normal((clients * 2, 8), dtype=np.float32)
    federation = Federation.from_arrays(x, np.arange(len(x)) % 10, client=np.arange(clients).repeat(2), kind="vector")
    config = from_flat(participation=100 / clients, lr=0.01, engine="sequential", threads=1)
    prepared = prepare(config, federation, partial(mlp, hidden=(64,)), hcfl_plus(CLUSTERS))
    return prepared.state, federation.scaling, prepared.config


def resident() -> int:
    """Return the bytes of memory of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)


def main() -> None:
    """Print what each layout takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--without-before", action="store_true", help="leave out one file of all states")
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    state, scaling, config = begin(asked.clients)
    before = resident()
    table = ClientTable()
    for first in range(0, asked.clients, 10_000):
        table = table.after(states(list(range(first, min(asked.clients, first + 10_000))), 1))
    print(f"{asked.clients:,} clients in memory: {(resident() - before) / asked.clients:.0f} bytes each", flush=True)
    seconds: dict[str, list[float]] = {"table": [], "new blocks": [], "one file": []}
    written: dict[str, list[int]] = {"new blocks": [], "one file": []}
    with TemporaryDirectory() as name:
        folder, whole = Path(name) / "checkpoint", Path(name) / "whole.safetensors"
        for round_ in range(2, asked.rounds + 2):
            new = states(sorted(draw.choice(asked.clients, 100, replace=False).tolist()), round_)
            began = perf_counter()
            table = table.after(new)
            seconds["table"].append(perf_counter() - began)
            state = replace(state, server=replace(state.server, round=round_), clients=table)
            there = set(folder.glob("*"))
            began = perf_counter()
            checkpoint.save(folder, state, scaling, config)
            client_blocks.sweep(folder, checkpoint.files(folder))
            seconds["new blocks"].append(perf_counter() - began)
            written["new blocks"].append(sum(path.stat().st_size for path in set(folder.glob("*")) - there))
            if not asked.without_before and round_ % 10 == 2:
                loose = replace(state, clients=dict(table))
                began = perf_counter()
                state_file.write(whole, Checkpoint(loose, scaling, config.to_yaml()), checkpoint.FORMAT)
                seconds["one file"].append(perf_counter() - began)
                written["one file"].append(whole.stat().st_size)
        began = perf_counter()
        checkpoint.load(folder)
        loaded = perf_counter() - began
        there_now = sum(path.stat().st_size for path in folder.glob("*"))
    print("\n| a checkpoint | median s | mean s | longest s | mean MB |\n|---|---|---|---|---|")
    for what in ("one file", "new blocks"):
        if taken := seconds[what][1:]:  # the first one writes everything
            sizes = mean(written[what][1:]) / 1e6
            print(f"| {what} | {median(taken):.3f} | {mean(taken):.3f} | {max(taken):.3f} | {sizes:.2f} |")
    print(f"\nthe first one: {seconds['new blocks'][0]:.2f} s, {written['new blocks'][0] / 1e6:.1f} MB")
    print(f"the folder: {there_now / 1e6:.1f} MB; loading: {loaded:.2f} s")
    print(f"new states into the table: median {1000 * median(seconds['table']):.2f} ms a round", flush=True)


if __name__ == "__main__":
    main()
