"""Do groups that were found stay found, and is nothing split where nothing differs? Tables of docs/fidelity.md.

    python experiments/groups.py stability --seeds 10
    python experiments/groups.py same --seeds 20
    python experiments/groups.py few-classes --seeds 3

Each federation has 30 clients. Runs that are already in the output folder are not repeated. The rules were decided on
seeds from 100 on (`--seed 100`).
"""

import argparse
import json
from collections.abc import Callable, Mapping
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


def two_kinds(change: Callable[[np.random.Generator], Callable[[np.ndarray], np.ndarray]]) -> Callable[[int], dict[str, Any]]:
    """Digits, iid: half of the clients have another kind of sensor, which changes all its images in one way."""

    def settings(seed: int) -> dict[str, Any]:
        digits, draw = load_digits(), np.random.default_rng(seed)
        x, y = digits.data.astype(np.float32) / 16, digits.target
        client = draw.permutation(len(x)) % CLIENTS
        second = client >= CLIENTS // 2
        x[second] = change(draw)(x[second])
        federation = hcfl.Federation.from_arrays(x, y, client=client, concept=second.astype(int), seed=seed, val_share=0.2)
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


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = {"stability": STABILITY, "same": SAME, "few-classes": FEW_CLASSES}
    parser.add_argument("what", choices=tables)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--methods", nargs="*", default=["hcfl++"], help=f"methods, or {', '.join(VARIANTS)}")
    parser.add_argument("--only", nargs="*", help="only these federations")
    parser.add_argument("--out", type=Path, default=Path("runs/groups"))
    given = parser.parse_args()
    print("| federation | method | Val | Test | K at the end | found | of these, right at the end |\n|---|---|---|---|---|---|---|")
    for federation, settings in tables[given.what].items():
        if given.only and federation not in given.only:
            continue
        for name in given.methods:
            variant = VARIANTS.get(name)
            runs = []
            for seed in range(given.seed, given.seed + given.seeds):
                method = name if variant is None else "hcfl++"
                out = given.out / federation.replace(" ", "-") / f"{name.replace(' ', '-')}-{seed}"
                runs.append(played(method, {**settings(seed), **(variant or {})}, out))
            paths = [agreement(rows) for _, rows in runs]
            found = [path for path in paths if path and max(path) >= RIGHT]
            kept = sum(path[-1] >= RIGHT for path in found)
            val, test = ([100 * summary[key] for summary, _ in runs if summary[key] is not None] for key in ("val_last", "test_last"))
            ends = sorted(summary["clusters_last"] for summary, _ in runs)
            counts = ", ".join(f"{k} × {ends.count(k)}" for k in sorted(set(ends)))
            cells = [federation, name, shown(val), shown(test) if test else "–", counts, f"{len(found)} of {len(runs)}", f"{kept} of {len(found)}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
