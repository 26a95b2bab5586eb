"""HCFL+ and HCFL++ on digits with strong label shift and a fifth of the labels relabelled: a table of docs/digits.md.

    python experiments/digits_harder.py --seeds 12
    python experiments/digits_harder.py --seeds 12 --warm-up 10 --methods "hcfl+(fedrc)" hcfl++

Runs that are already in the output folder are not repeated.
"""

import argparse
from pathlib import Path

import last_rounds

import hcfl

SETTINGS = {"alpha": 1.0, "alpha_reading": "total", "beta": 0.2, "clients": 30, "rounds": 60, "threads": 1}

OF_METHOD = {"hcfl++": {"adaptation": "split-on-contradiction", "order": "heads-first"}}
"""The rule that the table is of; experiments/groups.py has the same federation with the gain."""


def main() -> None:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=["fedavg", "hcfl+(fedrc)", "hcfl++"])
    parser.add_argument("--warm-up", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/digits-harder"))
    options = parser.parse_args()
    print(last_rounds.head("method"))
    for name in options.methods:
        runs = [options.out / f"{name}-warm-up{options.warm_up}-seed{seed}" for seed in range(options.seeds)]
        for seed, path in enumerate(runs):
            if not (path / "summary.json").exists():
                hcfl.run(name, seed=seed, out=path, warm_up=options.warm_up, **SETTINGS, **OF_METHOD.get(name, {}))
        print(last_rounds.row(name, runs), flush=True)


if __name__ == "__main__":
    main()
