"""Clients that change: methods on staggered, recurring and no drift (digits), and on SEA with four concepts.

    python experiments/drift.py
    python experiments/drift.py --seeds 5 --only sea
    python experiments/drift.py --only cifar10-features cifar10-features-recurring --data-dir FOLDER
    python experiments/drift.py --seeds 1 --only cifar10-staggered cifar10-recurring --data-dir FOLDER   # on a GPU

Every run is a folder below `--out`; runs that ended are not played again. Each table is written to
`experiments/results/drift-SCENARIO.md`. `oracle` is told each client's concept in every round, and has a model for
each.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import hcfl
from hcfl.config import DataConfig, from_flat
from hcfl.core.record import Row
from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.data import Federation
from hcfl.data.sources import read
from hcfl.launch import execute
from hcfl.methods import Method
from hcfl.models.mobile import efficientnet_lite0
from hcfl.runs import folder as run_folder
from hcfl.runs.json_files import read_object
from hcfl.runs.prepare import prepare
from hcfl.tiers import Conditional, EStepInputs, Weights
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting import best_cluster, one_hot
from hcfl.tiers.weighting.weights import hard_weights

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "drift.png"

RESULTS = Path(__file__).parent / "results"

REPORT_PICTURE = PICTURE.with_name("drift-report.png")

DIGITS = {"data": "digits", "clients": 9, "steps": 6, "rounds_per_step": 5, "val_share": 0.25}

CIFAR10 = {
    "data": "cifar10",
    "clients": 30,
    "partition": "iid",
    "beta": 0.9,
    "concepts": 3,
    "steps": 6,
    "rounds_per_step": 10,
    "val_share": 0.2,
    "model": "cnn",
    "epochs": 2,
    "device": "cuda",
    "precision": "tf32",
    "evaluate_every": 5,
}

FEATURES = {
    "cifar10-features": {"drift": "staggered", "steps": 6},
    "cifar10-features-recurring": {"drift": "recurring", "steps": 8},
}
"""What a CPU can play of CIFAR-10."""

SCENARIOS: dict[str, dict[str, Any]] = {
    "staggered": {**DIGITS, "drift": "staggered"},
    "recurring": {**DIGITS, "drift": "recurring", "steps": 8},
    "none": {**DIGITS, "drift": "none"},
    "sea": {"rounds_per_step": 5},
    **{name: {"rounds_per_step": 5, "lr": 0.003} for name in FEATURES},
    "cifar10-staggered": {**CIFAR10, "drift": "staggered"},
    "cifar10-recurring": {**CIFAR10, "drift": "recurring", "steps": 8},
}
"""Settings of the federations; `sea` and `cifar10_features` build theirs.

Recurring drift has eight steps, so that each concept stays for two: prequential Val, which goes by the weights of the
step before, rewards following only where a concept stays."""

METHOD_SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        name: (name, {})
        for name in (
            *("local", "fedavg", "ifca", "fesem", "fedem", "fedgmm", "fedrc", "fedsoft", "cfl", "icfl", "stocfl"),
            *("flux", "fedgwc", "auxo", "cfl-gp", "clove", "feddrift", "feddaa"),
            *("hcfl+(fesem)", "hcfl+(fedem)", "hcfl+(fedrc)", "hcfl++"),
        )
    },
    "hcfl++, follows = false": (
        "hcfl++",
        {"follows": False, "adaptation": "split-on-contradiction", "order": "heads-first"},
    ),
    "hcfl++, split-on-gain": ("hcfl++", {"adaptation": "split-on-gain"}),
    "feddrift, jump = 2": ("feddrift", {"jump": 2.0}),
}
"""What is compared: a name for the table, the method and its settings."""

ELSEWHERE = ("hcfl++, split-on-gain", "feddrift, jump = 2")

DIGITS_METHODS = tuple(name for name in METHOD_SETTINGS if name not in ELSEWHERE)

BEST = ("fedavg", "ifca", "feddrift", "hcfl++")

METHODS_OF = {
    "sea": ("local", *BEST, "hcfl++, split-on-gain"),
    **dict.fromkeys(FEATURES, ("local", "fedavg", "ifca", "feddrift, jump = 2", "hcfl++")),
    "cifar10-staggered": BEST,
    "cifar10-recurring": BEST,
}
"""What is played elsewhere than on digits; the oracle is played everywhere."""


@dataclass(frozen=True)
class Told:
    """Clients are in the cluster that they are told."""

    hard: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take what they are told."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Stay there."""
        return hard_weights(weights.client.argmax(dim=1), inputs)

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(inputs), inputs)[0].client


@dataclass(frozen=True)
class Telling:
    """An engine that tells clients their true concept before each round."""

    engine: Engine
    concepts: int

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Put every client into the cluster of its concept."""
        truth = task.setting.federation.truth
        assert truth is not None
        rows = one_hot(torch.from_numpy(truth.concept).clamp_min(0), self.concepts)
        states = {client: replace(one, weights=Weights(rows[[client]])) for client, one in task.states.items()}
        return self.engine.execute(replace(task, states=states, broadcast=replace(task.broadcast, weights=rows)))


def sea(seed: int, clients: int = 10, steps: int = 10, samples: int = 100) -> Federation:
    """SEA: x uniform in [0, 10]³, y = (x₁ + x₂ ≤ θ), a tenth of the labels flipped; θ is that of the client's concept.

    All clients begin with concept 0, and go through the four concepts, each client one step later than the one before.
    """
    generator = np.random.default_rng(seed)
    thresholds = np.array([9.0, 8.0, 7.0, 9.5])
    client, step = np.meshgrid(np.arange(clients), np.arange(steps), indexing="ij")
    concept = np.clip((step - client % 4) // 2, 0, 3)
    client, step, concept = (np.repeat(part.ravel(), samples) for part in (client, step, concept))
    x = generator.uniform(0, 10, size=(len(client), 3))
    y = (x[:, 0] + x[:, 1] <= thresholds[concept]) ^ (generator.random(len(x)) < 0.1)
    table = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": x[:, 2], "y": y.astype(int)})
    table = table.assign(client=client, step=step, concept=concept)
    settings = {"time": "step", "truth": "concept", "steps": steps, "val_share": 0.25}
    return Federation.from_frame(table, label="y", client="client", name="sea", seed=seed, **settings)


def features(data_dir: str | None, kept: Path, train: int = 6000, test: int = 1000) -> dict[str, NDArray[Any]]:
    """Return features of CIFAR-10 at 64 pixels by EfficientNet-Lite0 with ImageNet's weights, computed once."""
    if not kept.exists():
        images = read(DataConfig(source="cifar10", data_dir=data_dir, resize=64))
        assert images.test is not None
        rows = np.concatenate([np.flatnonzero(~images.test)[:train], np.flatnonzero(images.test)[:test]])
        x, y = torch.from_numpy(images.x[rows]).float(), images.y[rows]
        own = x[:train].flatten(0, 2)
        x = (x - own.mean(dim=0)) / own.std(dim=0)
        extractor, _ = efficientnet_lite0(tuple(x.shape[1:]), 10, pretrained="imagenet")
        with torch.inference_mode():
            found = torch.cat([extractor.eval()(batch) for batch in x.split(250)])
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, x=found.numpy(), y=y, test=np.arange(len(y)) >= train)
    with np.load(kept) as arrays:
        return dict(arrays)


def cifar10_features(seed: int, drifting: dict[str, Any], data_dir: str | None, out: Path) -> Federation:
    """CIFAR-10 by features that nothing trains: 12 clients, three concepts."""
    dealt = {"clients": 12, "partition": "iid", "beta": 0.9, "concepts": 3, "val_share": 0.2}
    arrays = features(data_dir, out / "cifar10-features.npz")
    return Federation.from_arrays(**arrays, name="cifar10-features", seed=seed, **dealt, **drifting)


def head_alone(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    """Build a network for features: it trains a head alone."""
    return nn.Flatten(), nn.Linear(shape[-1], classes)


def played(name: str, out: Path, seed: int, federation: Federation | None, settings: dict[str, Any]) -> Row:
    """Play one run, unless it was played before; return its summary."""
    if (out / run_folder.SUMMARY).exists():
        return read_object(out / run_folder.SUMMARY)
    model = head_alone if federation is not None and federation.name == "cifar10-features" else None
    if name == "oracle":
        concepts = 4 if federation is not None and federation.name == "sea" else 3
        method = Method(Conditional(), Told(), clusters=concepts, name="oracle")
        prepared = prepare(from_flat(**settings, seed=seed), federation, model, method)
        telling = Telling(prepared.setting.engine, concepts)
        prepared = replace(prepared, setting=replace(prepared.setting, engine=telling))
        return execute(prepared, out).summary
    method_name, more = METHOD_SETTINGS[name]
    given = {"data": federation, "model": model} if federation is not None else {}
    return hcfl.run(method_name, out=out, seed=seed, **{**settings, **given, **more}).summary


COLUMNS = {
    "prequential Val": ("prequential_mean", 100, 1),
    "Val, ends of steps": ("val_step_mean", 100, 1),
    "ARI over time": ("ari_mean", 1, 2),
    "delay in rounds": ("delay_mean", 1, 2),
    "changes missed, %": ("missed", 100, 1),
    "false moves, %": ("false_moves", 100, 1),
    "bytes × FedAvg": ("bytes", 1, 2),
}
"""Columns of the table: the summary's key, a factor, and digits."""

SPREAD = ("prequential_mean", "val_step_mean")
"""Columns with a standard deviation over seeds."""


def table(found: dict[str, list[Row]]) -> list[str]:
    """Return a table of the mean ± standard deviation over seeds, a row for each method."""
    lines = [f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    fedavg = found.get("fedavg")
    base = mean(row["bytes_up"] + row["bytes_down"] for row in fedavg) if fedavg else None
    for name, rows in found.items():
        cells = []
        for key, factor, digits in COLUMNS.values():
            values = [factor * value for row in rows if (value := _value(row, key, base)) is not None]
            spread = f" ± {stdev(values):.{digits}f}" if key in SPREAD and len(values) > 1 else ""
            cells.append(f"{mean(values):.{digits}f}{spread}" if values else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _value(row: Row, key: str, base: float | None) -> float | None:
    if key == "bytes":
        return None if base is None else float(row["bytes_up"] + row["bytes_down"]) / base
    if key == "missed":
        return row["concept_changes_missed"] / row["concept_changes"] if row["concept_changes"] else None
    value: float | None = row[key]
    return value


def picture(run: Path, out: Path) -> None:
    """Draw each client's cluster in every round, with a line where its true concept changes."""
    import matplotlib.pyplot as plt

    rows = run_folder.rows(run, run_folder.METRICS)
    clusters = np.array([row["client_clusters"] for row in rows]).T
    concepts = np.array([row["client_concepts"] for row in rows]).T
    figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
    found = np.unique(clusters, return_inverse=True)[1].reshape(clusters.shape)
    edges = np.arange(len(rows) + 1) + 0.5
    axes.pcolormesh(edges, np.arange(len(found) + 1) - 0.5, found, cmap="Set2", vmin=0, vmax=7)
    for client, at in zip(*np.nonzero(np.diff(concepts, axis=1)), strict=True):
        axes.plot([at + 1.5] * 2, [client - 0.5, client + 0.5], color="black", linewidth=3)
    steps = [row["round"] - 0.5 for row, last in zip(rows[1:], rows, strict=False) if row["step"] != last["step"]]
    axes.vlines(steps, -0.5, len(found) - 0.5, color="white", linewidth=0.8)
    axes.set(xlabel="round (white lines: a step begins)", ylabel="client", yticks=range(len(found)))
    figure.savefig(out, dpi=110, metadata={"Software": None})
    plt.close(figure)


def report_picture(run: Path, out: Path) -> None:
    """Take a picture of the lineage in the report of a run; needs playwright and Chromium."""
    import shutil

    from playwright.sync_api import sync_playwright

    from hcfl.report import page

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1240, "height": 900})
        shown.goto(page.write([run]).resolve().as_uri())
        shown.wait_for_selector("html[data-ready]")
        shown.add_style_tag(content="nav { display: none }")
        shown.locator("#lineage").screenshot(path=out)
        browser.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Play all runs and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/drift"))
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=["staggered", "recurring", "none"])
    parser.add_argument("--methods", nargs="*", help="default: all; on SEA and CIFAR-10 some")
    parser.add_argument("--data-dir", help="where CIFAR-10 lies; default: $HCFL_DATA")
    parser.add_argument("--pictures", action="store_true", help="draw those of docs/drift.md; needs Chromium")
    chosen = parser.parse_args(arguments)
    for scenario in chosen.only:
        settings = SCENARIOS[scenario]
        if chosen.data_dir is not None and settings.get("data") == "cifar10":
            settings = {**settings, "data_dir": chosen.data_dir}
        found: dict[str, list[Row]] = {}
        for name in chosen.methods or (*METHODS_OF.get(scenario, DIGITS_METHODS), "oracle"):
            for seed in range(chosen.seeds):
                federation = sea(seed) if scenario == "sea" else None
                if scenario in FEATURES:
                    federation = cifar10_features(seed, FEATURES[scenario], chosen.data_dir, chosen.out)
                out = chosen.out / scenario / f"{name}-{seed}"
                found.setdefault(name, []).append(played(name, out, seed, federation, settings))
        lines = [f"## {scenario}, seeds 0 to {chosen.seeds - 1}", "", *table(found)]
        print("\n".join(lines), flush=True)
        if not chosen.methods:
            (RESULTS / f"drift-{scenario}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if chosen.pictures:
        picture(chosen.out / "staggered" / "hcfl++-0", PICTURE)
        report_picture(chosen.out / "staggered" / "hcfl++-0", REPORT_PICTURE)


if __name__ == "__main__":
    main()
