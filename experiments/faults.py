"""Faults and poisoned minorities on digits: the tables of docs/faults.md.

    python experiments/faults.py dropping
    python experiments/faults.py poisoned

Runs that are already in the output folder are not repeated.
"""

import argparse
import json
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev

import hcfl
from hcfl.errors import InputError

SETTINGS = {"clients": 30, "rounds": 30, "evaluate_every": 30, "threads": 1, "engine": "batched"}
SMALLER = {"clients": 20, "rounds": 20, "evaluate_every": 20, "epochs": 2}
"""Of the many runs with poisoners."""
ONE_CONCEPT = {"alpha": 10.0, "beta": 0.0}
"""A federation whose clients agree; the default one has three concepts."""

FAULTS = "drop=0.4,nan=0.1"
ATTACKS = {
    "no attack": None,
    "flip labels": "flip=0.2",
    "change × 10": "scale=0.2,factor=10",
    "change × −10": "scale=0.2,factor=-10",
}
AVERAGES = ("mean", "median", "trimmed-mean(share=0.2)", "clip", "multi-krum(share=0.2)")


def main() -> None:
    """Run one of the tables and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["dropping", "poisoned"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"))
    options = parser.parse_args()
    if options.table == "dropping":
        dropping(options.out, options.seeds)
    else:
        poisoned(options.out, options.seeds)


def dropping(out: Path, seeds: int) -> None:
    """Let 40 % of the clients drop out in every round, and 10 % send NaN."""
    print("| method | Test, no faults | Test, faults | difference, seed by seed | uploads that count | refused |")
    print("|---|---|---|---|---|---|")
    for method in ("fedavg", "hcfl+(fedrc)", "hcfl+(fedem)"):
        without = [played(out, method, seed) for seed in range(seeds)]
        faulty = [played(out, method, seed, faults=FAULTS) for seed in range(seeds)]
        tests = [[100 * summary(path)["test_last"] for path in paths] for paths in (without, faulty)]
        apart = ", ".join(f"{two - one:+.1f}" for one, two in zip(*tests, strict=True))
        rows = [row for path in faulty for row in lines(path / "metrics.jsonl")]
        events = [row for path in faulty for row in lines(path / "events.jsonl")]
        counted = mean(row["participants"] for row in rows)
        refused = sum(row["event"] == "refused" for row in events)
        print(f"| {method} | {shown(tests[0])} | {shown(tests[1])} | {apart} | {counted:.1f} | {refused} |", flush=True)


def poisoned(out: Path, seeds: int) -> None:
    """Let a fifth of the clients poison one model, with several averages."""
    print("\nfedavg, one concept: Test / Val, last\n")
    print(f"| a fifth | {' | '.join(AVERAGES)} |", "|---" * (len(AVERAGES) + 1) + "|", sep="\n")
    for attack, faults in ATTACKS.items():
        cells = []
        for average in AVERAGES:
            more = {**SMALLER, **ONE_CONCEPT, **({"faults": faults} if faults else {})}
            paths = [played(out, "fedavg", seed, aggregation=average, **more) for seed in range(seeds)]
            measured = [shown([percent(summary(path)[key]) for path in paths]) for key in ("test_last", "val_last")]
            cells.append(" / ".join(measured))
        print(f"| {attack} | {' | '.join(cells)} |", flush=True)


def played(out: Path, method: str, seed: int, **settings: object) -> Path:
    """Run, unless it was already; return the folder."""
    words = "-".join(f"{key}={value}" for key, value in settings.items() if key not in SMALLER)
    path = out / f"{method}-{words}-seed{seed}".replace(" ", "")
    if not (path / "summary.json").exists():
        with suppress(InputError):  # training diverged: what was reached before is there, and not measured
            hcfl.run(method, seed=seed, out=path, **{**SETTINGS, **settings})
    return path


def lines(path: Path) -> list[dict]:
    """Read a log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def summary(path: Path) -> dict:
    """Read a run's result."""
    return json.loads((path / "summary.json").read_text(encoding="utf-8"))


def percent(value: float | None) -> float | None:
    """Return an accuracy for people; None where a run diverged before it was measured."""
    return None if value is None else 100 * value


def shown(values: list[float | None]) -> str:
    """Return mean and deviation, and how many runs diverged."""
    known = [value for value in values if value is not None]
    words = [f"{mean(known):.1f}" + (f" ± {stdev(known):.1f}" if len(known) > 1 else "")] if known else []
    return ", ".join(words + ([f"{len(values) - len(known)} diverged"] if len(known) < len(values) else []))


if __name__ == "__main__":
    main()
