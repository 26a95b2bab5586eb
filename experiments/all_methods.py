"""Every named method on the default digits federation: the table in docs/methods.md.

    python experiments/all_methods.py --seeds 3 --rounds 30 --workers 2

Runs that are already in the output folder are not repeated.
"""

import argparse
import json
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, stdev

import hcfl
from hcfl.methods import METHODS


def run(task: tuple[str, int, int, Path]) -> dict:
    """Run one method with one seed; return its summary."""
    name, seed, rounds, out = task
    path = out / f"{name}-seed{seed}"
    if not (path / "summary.json").exists():
        hcfl.run(name, rounds=rounds, seed=seed, threads=1, out=path)
    return json.loads((path / "summary.json").read_text())


def shown(values: list[float], scale: float = 1.0, digits: int = 1) -> str:
    """Mean ± standard deviation."""
    scaled = [scale * value for value in values]
    spread = stdev(scaled) if len(scaled) > 1 else 0.0
    return f"{mean(scaled):.{digits}f} ± {spread:.{digits}f}"


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("runs/all-methods"))
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    tasks = [(name, seed, options.rounds, options.out) for name in options.methods for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.workers) as pool:
        summaries = list(pool.map(run, tasks))
    print("| method | Val % | Test % | K | ARI | MB per client and round |")
    print("|---|---|---|---|---|---|")
    for name in options.methods:
        mine = [summary for task, summary in zip(tasks, summaries, strict=True) if task[0] == name]
        megabytes = [(s["bytes_up"] + s["bytes_down"]) / s["rounds"] / 30 / 1e6 for s in mine]
        cells = [
            shown([s["val_last"] for s in mine], 100),
            shown([s["test_last"] for s in mine], 100),
            shown([s["clusters_last"] for s in mine]),
            shown([s["ari_last"] for s in mine], digits=2),
            f"{mean(megabytes):.2f}",
        ]
        print(f"| `{name}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
