"""Personal parts on a natural federation, on small clients, and under other batches and local epochs.

The natural federation is the `watch` data of PyPI's seglearn (18 MB, inside the package; `pip install seglearn`): ten
people did seven shoulder exercises with a smart watch on the left and on the right arm. A client is one arm of one
person, a sample two seconds, as spectra of the six sensors. Four arms are held back as the new clients of Test; each
seed holds back others.

    python experiments/personal.py watch --seeds 3
    python experiments/personal.py batches --seeds 3
    python experiments/personal.py small --seeds 10

The settings were chosen on seeds from 100 on (`--seed 100`), but for one that the page names; the tables in
docs/personal.md are seeds from 0 on.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

import numpy as np

import hcfl
from hcfl.studies.comparison import accuracy_of_clients, share_worse_off

WINDOW = 100
"""Measurements in a sample: two seconds at 50 Hz."""

HELD_BACK = 4
"""Arms that train nothing, and are Test."""

METHODS = ("local", "fedavg", "fedrep", "fedper", "hcfl+(fedem)", "hcfl+(fedrc)", "hcfl++")


def watch(seed: int) -> hcfl.Federation:
    """Build the federation of arms."""
    package = find_spec("seglearn")
    if package is None or package.origin is None:
        raise SystemExit("pip install seglearn: its package holds the data")
    raw = np.load(Path(package.origin).parent / "data" / "watch_dataset.npy", allow_pickle=True).item()
    samples, labels, arms = [], [], []
    arm_of_each = (2 * raw["subject"] + raw["side"]).astype(int)
    for series, label, arm in zip(raw["X"], raw["y"], arm_of_each, strict=True):
        number = len(series) // WINDOW
        windows = np.asarray(series, dtype=np.float64)[: number * WINDOW].reshape(number, WINDOW, -1)
        spectra = np.log1p(np.abs(np.fft.rfft(windows - windows.mean(axis=1, keepdims=True), axis=1))[:, 1:16])
        samples.append(np.concatenate([windows.mean(axis=1), windows.std(axis=1), spectra.reshape(number, -1)], axis=1))
        labels += [int(label)] * number
        arms += [arm] * number
    arms = np.array(arms)
    back = np.random.default_rng(seed).permutation(np.unique(arms))[:HELD_BACK]
    x = np.concatenate(samples).astype(np.float32)
    test = np.isin(arms, back)
    # A tenth would be twelve samples a client: each would count eight points.
    return hcfl.Federation.from_arrays(x, labels, client=arms, test=test, name="watch", seed=seed, val_share=0.3)


def shown(values: list[float]) -> str:
    """Return mean ± deviation in percent."""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def on_watch(seeds: range, given: argparse.Namespace, methods: Sequence[str], **settings: int) -> None:
    """Compare methods, without and with personal parts, on the same arms; runs that are there are not repeated."""
    columns = ("method", "Val %", "personal Val %", "Test %", "K", "worst 10%", "below local %", "the same, means")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    alone: dict[int, dict[str, float]] = {}
    label = "-".join(f"{name}{value}" for name, value in {"rounds": given.rounds, **settings}.items())
    for method in methods:
        kind = "none" if method == "local" else given.personal  # alone, a client needs to set nothing aside
        parts: dict[str, str | int] = {"personal": kind}
        if given.after and kind != "none":
            parts["personal_after"] = given.after
        named = "-".join(str(value) for value in parts.values())
        found, accuracies = [], {}
        for seed in seeds:
            out = given.out / f"{method}-{named}-{label}-seed{seed}"
            if not (out / "summary.json").exists():
                chosen = {"rounds": given.rounds, "evaluate_every": given.rounds, **settings}
                hcfl.run(method, watch(seed), seed=seed, threads=1, out=out, **parts, **chosen)
            accuracies[seed] = accuracy_of_clients(out)
            if method == "local":
                alone[seed] = accuracies[seed]
            summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
            found.append({**summary, "below": share_worse_off(accuracies[seed], alone[seed])})
        keys = ("val_last", "val_personal_last", "test_last")
        worst = "val_worst_tenth" if kind == "none" else "val_personal_worst_tenth"
        cells = ["–" if found[0][key] is None else shown([row[key] for row in found]) for key in keys]
        cells.append(f"{mean(row['clusters_last'] for row in found):.1f}")
        cells += [shown([row[key] for row in found]) for key in (worst, "below")]
        cells.append(shown([share_worse_off(over_seeds(accuracies), over_seeds(alone))]))
        print(f"| `{method}` | {' | '.join(cells)} |", flush=True)


def over_seeds(accuracies: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Return the mean accuracy of each arm over the seeds in which it trains."""
    arms = {arm for found in accuracies.values() for arm in found}
    return {arm: mean(found[arm] for found in accuracies.values() if arm in found) for arm in arms}


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
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("watch", "batches", "small"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--personal", default="auto")
    parser.add_argument("--after", type=int, help="the round after which clients choose; default half of the rounds")
    parser.add_argument("--out", type=Path, default=Path("runs/personal"))
    parser.add_argument(
        "--methods", nargs="*", default=METHODS, help="local is the first, since others are compared with it"
    )
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.seeds)
    if given.what == "small":
        on_small_clients(seeds, given.rounds, given.personal)
    elif given.what == "watch":
        on_watch(seeds, given, given.methods)
    else:
        for epochs, batch in ((2, 32), (5, 16), (1, 128)):
            print(f"\n{epochs} local epochs, batches of {batch}\n")
            on_watch(seeds, given, given.methods, epochs=epochs, batch=batch)


if __name__ == "__main__":
    main()
