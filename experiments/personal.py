"""Personal parts on the watch data, on small clients, and under other batches and local epochs.

    python experiments/personal.py watch --seeds 3
    python experiments/personal.py batches --seeds 3
    python experiments/personal.py small --seeds 10

`watch` is a natural federation of `natural.py` (`pip install seglearn`), which has more of them.

The settings were chosen on seeds from 100 on (`--seed 100`), but for one that the page names; the tables in
docs/personal.md are seeds from 0 on.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from natural import compare, options, shown

import hcfl


def on_small_clients(seeds: range, rounds: int, kind: str) -> None:
    """Digits, iid: ten clients with 20 samples for training, and 80 to measure them by."""
    gains = []
    for seed in seeds:
        with TemporaryDirectory() as folder:
            settings = {"clients": 10, "samples": 1000, "partition": "iid", "val_share": 0.8, "beta": 0.0, "seed": seed}
            run = hcfl.run("fedavg", personal=kind, rounds=rounds, out=Path(folder) / "run", **settings)
            gains.append(run.summary["val_personal_last"] - run.summary["val_last"])
    print(f"personal − group: {shown(gains)} points, worst seed {100 * min(gains):.1f}")


def main() -> None:
    """Print one table, or one for each choice of batches and epochs."""
    given = options(__doc__, what_to_measure)
    if given.what == "small":
        on_small_clients(range(given.seed, given.seed + given.seeds), given.rounds, given.personal)
    elif given.what == "watch":
        compare("watch", given)
    else:
        for epochs, batch in ((2, 32), (5, 16), (1, 128)):
            print(f"\n{epochs} local epochs, batches of {batch}\n")
            compare("watch", given, epochs=epochs, batch=batch)


def what_to_measure(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says which table."""
    parser.add_argument("what", choices=("watch", "batches", "small"))


if __name__ == "__main__":
    main()
