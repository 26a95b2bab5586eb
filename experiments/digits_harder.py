"""HCFL+ and HCFL++ on digits with strong label shift and a fifth of the labels relabelled: a table of docs/fidelity.md.

    python experiments/digits_harder.py --seeds 3

Runs that are already in the output folder are not repeated.
"""

import argparse
import json
from pathlib import Path
from statistics import mean, stdev

import hcfl

SETTINGS = {"alpha": 1.0, "alpha_reading": "total", "beta": 0.2, "clients": 30, "rounds": 60, "threads": 1}


def main() -> None:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=["fedavg", "hcfl+(fedrc)", "hcfl++"])
    parser.add_argument("--out", type=Path, default=Path("runs/digits-harder"))
    options = parser.parse_args()
    print("| method | Val, last | Test, last | K | ARI, affected |")
    print("|---|---|---|---|---|")
    for name in options.methods:
        found = []
        for seed in range(options.seeds):
            path = options.out / f"{name}-seed{seed}"
            if not (path / "summary.json").exists():
                hcfl.run(name, seed=seed, out=path, **SETTINGS)
            found.append(json.loads((path / "summary.json").read_text(encoding="utf-8")))
        cells = []
        for key, scale in (("val_last", 100), ("test_last", 100), ("clusters_last", 1), ("ari_affected_last", 1)):
            values = [scale * summary[key] for summary in found]
            spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.2f}{spread}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
