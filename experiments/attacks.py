"""Attacks beside defences on digits with three concepts: the tables of docs/faults.md.

    python experiments/attacks.py recommended
    python experiments/attacks.py defences

30 clients, 20 rounds, five seeds. Runs that are already in the output folder are not repeated.
"""

import argparse
import json
from contextlib import suppress
from pathlib import Path
from statistics import mean

import hcfl
from hcfl.errors import InputError
from hcfl.launch import resume

SETTINGS = {"clients": 30, "rounds": 20, "threads": 1, "engine": "batched", "test_on": "tenth"}
LAST = 5
"""Accuracies are means over so many last rounds."""

ATTACKS = {
    "change × −1": "sign={share}",
    "change × −5": "scale={share},factor=-5",
    "change × 10": "scale={share},factor=10",
    "flipped labels, honest prototypes": "disguise={share}",
    "backdoor": "backdoor={share}",
    "colluding copies": "collude={share}",
    "free riders": "free_ride={share}",
}
RECOMMENDED = {"quarantine": 3.0}
DEFENCES = {
    "`mean`": {},
    "`--longest-change 1`": {"longest_change": 1.0},
    "`median`": {"aggregation": "median"},
    "`trimmed-mean`": {"aggregation": "trimmed-mean(share=0.2)"},
    "`multi-krum`": {"aggregation": "multi-krum(share=0.2)"},
    "`--quarantine 3`": RECOMMENDED,
}


def main() -> None:
    """Run one of the tables and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=["recommended", "defences"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/attacks"))
    options = parser.parse_args()
    (recommended if options.table == "recommended" else defences)(options.out, range(options.seeds))


def recommended(out: Path, seeds: range) -> None:
    """Show the recommended defence with and without each attack."""
    plain = [played(out, seed) for seed in seeds]
    print(f"no attack, no defence: {shown(plain)}")
    calm = [played(out, seed, **RECOMMENDED) for seed in seeds]
    print(f"no attack, quarantine: {shown(calm)}\n")
    print("| attack | 10 % attack | 20 % attack |", "|---|---|---|", sep="\n")
    for name, faults in ATTACKS.items():
        cells = []
        for share in (0.1, 0.2):
            runs = [played(out, seed, faults=faults.format(share=share), **RECOMMENDED) for seed in seeds]
            cells.append(shown(runs))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def defences(out: Path, seeds: range) -> None:
    """Show a tenth and a fifth of attackers beside every defence."""
    for share in (0.2, 0.1):
        print(f"| {100 * share:.0f} % attack | {' | '.join(DEFENCES)} |", "|---" * (len(DEFENCES) + 1) + "|", sep="\n")
        for name, faults in {"no attack": None, **ATTACKS}.items():
            attack = {} if faults is None else {"faults": faults.format(share=share)}
            cells = [shown([played(out, seed, **attack, **defence) for seed in seeds]) for defence in DEFENCES.values()]
            print(f"| {name} | {' | '.join(cells)} |", flush=True)
        print()


def played(out: Path, seed: int, **settings: object) -> list[dict]:
    """Run, unless it was already; return the rows of its last rounds, none where training diverged."""
    words = "-".join(f"{key}={value}" for key, value in settings.items())
    path = out / f"{words or 'plain'}-seed{seed}"
    if not (path / "summary.json").exists():
        with suppress(InputError):  # training diverged: what was reached before is there
            if (path / "config.yaml").exists():  # it was interrupted
                resume(path)
            else:
                hcfl.run("hcfl+(fedrc)", seed=seed, out=path, **SETTINGS, **settings)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return rows[-LAST:] if len(rows) == SETTINGS["rounds"] else []


def shown(runs: list[list[dict]]) -> str:
    """Return Test and Val of honest clients, the backdoor's success where there is one, and how many runs diverged."""
    done = [rows for rows in runs if rows]
    words = []
    if done:
        test = [mean(row["test"] for row in rows) for rows in done]
        val = [mean(row.get("val_honest", row["val"]) for row in rows) for rows in done]
        words.append(f"{100 * mean(test):.1f} / {100 * mean(val):.1f}")
        if "backdoor" in done[0][0]:
            successes = [rows[-1]["backdoor"] for rows in done]
            words.append(f"success {100 * mean(successes):.1f} %, at most {100 * max(successes):.1f} %")
    return ", ".join([*words, *([f"{len(runs) - len(done)} diverged"] if len(done) < len(runs) else [])])


if __name__ == "__main__":
    main()
