"""Engines against each other: the same rounds, sequential and batched, side by side.

python benchmarks/engines.py                                              # digits, one CPU thread
python benchmarks/engines.py --device cuda --model mobilenet-v2 --images --precision tf32 --compile true
"""

import argparse
from dataclasses import replace
from statistics import median
from time import perf_counter

import torch
from workloads import images

from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.engines import Sequential
from hcfl.models.precision import matrix_products
from hcfl.runs.prepare import prepare


def main() -> None:
    """Print seconds a round and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["hcfl+(fedrc)", "fedavg", "fedem"])
    parser.add_argument("--model", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", type=lambda word: word == "true", default=False)
    parser.add_argument("--clients", type=int, default=None, help="default 30, with --images 100")
    parser.add_argument("--clusters", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=6, help="of the batched engine; the first two warm up")
    parser.add_argument("--sequential", type=int, default=3, help="rounds of the sequential engine; 0: none")
    parser.add_argument("--images", action="store_true", help="450 random 32×32 images a client instead of digits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clients = options.clients or (100 if options.images else 30)
    federation = images(clients, 450) if options.images else None
    print("| method | sequential, s a round | batched, s a round | ratio | first batched, s |\n|---|---|---|---|---|")
    for method in options.methods:
        fixed = {} if method == "fedavg" else {"clusters": options.clusters}
        own = {} if options.images else {"clients": clients}
        config = from_flat(
            method=method,
            model=options.model,
            device=options.device,
            precision=options.precision,
            compile=options.compile or None,
            engine="batched",
            lr=0.001,
            **fixed,
            **own,
        )
        prepared = prepare(config, federation)
        with matrix_products(rounded=options.precision != "fp32"):
            started = perf_counter()
            played = rounds.play(prepared.setting, prepared.state, options.rounds)
            next(played)
            first = perf_counter() - started
            batched = median([sum(record.seconds.values()) for _, record in played][1:])
            setting = replace(prepared.setting, engine=Sequential())
            played = rounds.play(setting, prepared.state, options.sequential)
            times = [sum(record.seconds.values()) for _, record in played][1:]
        sequential = (
            f"{median(times):.3f} | {batched:.3f} | {median(times) / batched:.1f}" if times else f"| {batched:.3f} |"
        )
        print(f"| {method} | {sequential} | {first:.1f} |", flush=True)


if __name__ == "__main__":
    main()
