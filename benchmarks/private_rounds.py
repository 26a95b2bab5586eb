"""What privacy costs on Flower's simulation: seconds of a round and bytes that a client sends in it.

    python benchmarks/private_rounds.py --clients 10 50

The first round is left out (processes start, data are built); the median of the others is shown.
"""

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import hcfl

MODES = ("none", "central-dp", "local-dp", "secagg")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--methods", nargs="+", default=["fedavg", "fedrc"])
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    print("| method | clients | " + " | ".join(MODES) + " |")
    print("|---|---|" + "---|" * len(MODES))
    for method in arguments.methods:
        for clients in arguments.clients:
            cells = []
            for mode in MODES:
                with TemporaryDirectory() as folder:
                    run = hcfl.run(
                        method,
                        clients=clients,
                        model="mlp",
                        rounds=arguments.rounds,
                        privacy=mode,
                        engine="flower",
                        out=Path(folder) / "run",
                    )
                    rows = run.rows[1:]
                    seconds, up = median(row["seconds"] for row in rows), rows[0]["bytes_up"] / clients
                    cells.append(f"{seconds:.2f} s, {up / 1e3:.0f} kB")
            print(f"| {method} | {clients} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
