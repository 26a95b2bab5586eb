"""Engines against each other: the same rounds, sequential and batched, side by side.

python benchmarks/engines.py                                              # digits, one CPU thread
python benchmarks/engines.py --device cuda --model mobilenet-v2 --clients 100 --images
"""

import argparse
from dataclasses import replace
from statistics import median

import numpy as np
import torch

from hcfl import Federation, rounds
from hcfl.config import from_flat
from hcfl.experiment import ENGINES, prepare


def main() -> None:
    """Print seconds a round and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=["hcfl+(fedrc)", "fedavg", "fedem"])
    parser.add_argument("--model", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--images", action="store_true", help="500 random 32×32 images a client instead of digits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    federation = None
    if options.images:
        draw, number = np.random.default_rng(0), 500 * options.clients
        x, y = draw.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8), draw.integers(0, 10, number)
        federation = Federation.from_arrays(x, y, clients=options.clients, partition="iid", beta=0.2)
    print("| method | sequential, s a round | batched, s a round | ratio |\n|---|---|---|---|")
    for method in options.methods:
        settings = {} if options.images else {"clients": options.clients}
        config = from_flat(method=method, model=options.model, device=options.device, lr=0.01, **settings)
        prepared = prepare(config, federation)
        seconds = []
        for engine in ("sequential", "batched"):
            setting = replace(prepared.setting, engine=ENGINES[engine])
            played = rounds.play(setting, prepared.state, options.rounds)
            seconds.append(median([record.seconds for _, record in played][1:]))  # the first one warms up
        print(f"| {method} | {seconds[0]:.3f} | {seconds[1]:.3f} | {seconds[0] / seconds[1]:.1f} |")


if __name__ == "__main__":
    main()
