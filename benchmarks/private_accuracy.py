"""What differential privacy costs in accuracy: Val and Test on digits against the noise, in simulation.

python benchmarks/private_accuracy.py
"""

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import hcfl
from hcfl.privacy.accounting import epsilon_of

CENTRAL = (None, 0.03, 0.3, 1.0, 3.0)
LOCAL = (0.0003, 0.003, 0.03, 0.3)
FIXED = {"adaptation": "fixed", "distance": "none", "clusters": 3}


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    method: str
    mode: str
    fixed: bool
    noise: float | None
    """The multiplier; None: no privacy at all."""


ROWS = (
    *(Row(method, "central-dp", method != "fedavg", z) for method in ("fedavg", "hcfl+(fedrc)") for z in CENTRAL),
    *(Row("fedavg", "local-dp", False, z) for z in LOCAL),
    *(Row("hcfl+(fedrc)", "local-dp", False, z) for z in (None, *LOCAL)),
)


def play(task: tuple[Row, int, int, float]) -> dict[str, Any] | None:
    """Return a run's summary; None where it diverged."""
    row, seed, rounds, clip = task
    private = {} if row.noise is None else {"privacy": row.mode, "noise_multiplier": row.noise, "clip": clip}
    with tempfile.TemporaryDirectory() as folder:
        settings = {**private, **(FIXED if row.fixed else {}), "rounds": rounds, "seed": seed}
        try:
            return hcfl.run(row.method, out=Path(folder) / "run", evaluate_every=rounds, **settings).summary
        except hcfl.InputError as error:
            if "diverged" in str(error):
                return None
            raise


def main() -> None:
    """Print a table: noise multiplier, ε of a client, Val, Test, clusters."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    asked = parser.parse_args()

    print("| method | privacy | noise multiplier | ε at δ = 1e-5 | Val | Test | clusters |")
    print("|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(asked.workers) as pool:
        tasks = [(row, seed, asked.rounds, asked.clip) for row, seed in product(ROWS, range(asked.seeds))]
        summaries = pool.map(play, tasks)
        for row in ROWS:
            found = [next(summaries) for _ in range(asked.seeds)]
            name = f"{row.method}, 3 clusters that stay" if row.fixed else row.method
            spent = "∞" if row.noise is None else f"{epsilon_of(1e-5, row.noise, asked.rounds):,.0f}"
            start = f"| {name} | {'none' if row.noise is None else row.mode} | {row.noise or '–'} | {spent} |"
            if None in found:
                print(f"{start} diverged | diverged | – |", flush=True)
                continue
            val, test = (100 * mean(summary[key] for summary in found) for key in ("val_last", "test_last"))
            clusters = ", ".join(str(summary["clusters_last"]) for summary in found)
            print(f"{start} {val:.1f} | {test:.1f} | {clusters} |", flush=True)


if __name__ == "__main__":
    main()
