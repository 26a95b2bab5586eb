"""What a round costs on Flower's simulation, beside the local engines: seconds of a round, by clients and model.

    python benchmarks/flower_rounds.py --clients 10 100 --models mlp cnn

The first round is left out (processes start, data are built); the median of the others is shown.
"""

import argparse
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import hcfl

ENGINES = ("sequential", "batched", "flower")


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--models", nargs="+", default=["mlp", "cnn"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print("| model | clients | " + " | ".join(ENGINES) + " | flower, to start and end |")
    print("|---|---|" + "---|" * (len(ENGINES) + 1))
    for model in arguments.models:
        for clients in arguments.clients:
            cells = []
            for engine in ENGINES:
                with TemporaryDirectory() as folder:
                    began = perf_counter()
                    run = hcfl.run(
                        "hcfl+(fedrc)",
                        clients=clients,
                        model=model,
                        rounds=arguments.rounds,
                        engine=engine,
                        out=Path(folder) / "run",
                    )
                    seconds = [row["seconds"] for row in run.rows]
                    around = perf_counter() - began - sum(seconds[1:])
                    cells.append(f"{median(seconds[1:]):.2f}")
            print(f"| {model} | {clients} | " + " | ".join(cells) + f" | {around:.0f} |", flush=True)


if __name__ == "__main__":
    main()
