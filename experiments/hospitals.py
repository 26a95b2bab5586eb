"""The heart-disease study of the UCI repository: four hospitals, AUROC of each beside local and pooled training.

    python experiments/hospitals.py FOLDER

The table of docs/hospitals.md. FOLDER has the study's files processed.cleveland.data, processed.hungarian.data,
processed.switzerland.data and processed.va.data. A patient is sick where num > 0. Zeros in the cholesterol and in the
blood pressure stand for missing values, and are read so. Each seed holds out another quarter of every hospital's
patients. `pooled` trains one model on all training data in one place, and is measured on the same patients.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

import hcfl

HOSPITALS = {"cleveland": "Cleveland", "hungarian": "Budapest", "va": "Long Beach", "switzerland": "Switzerland"}
"""Part of the file's name, and the hospital."""

COLUMNS = ("age", "sex", "pain", "pressure", "cholesterol", "sugar", "ecg", "pulse", "angina", "st", "slope", "vessels")
COLUMNS += ("thal", "num")
"""In the order of the files."""

NAMES = {
    "sex": {0: "f", 1: "m"},
    "pain": {1: "typical", 2: "atypical", 3: "other", 4: "none"},
    "sugar": {0: "no", 1: "yes"},
    "ecg": {0: "normal", 1: "st-t", 2: "hypertrophy"},
    "angina": {0: "no", 1: "yes"},
    "slope": {1: "up", 2: "flat", 3: "down"},
    "thal": {3: "normal", 6: "fixed", 7: "reversible"},
}
"""What the numbers in columns of categories stand for."""

METHODS = ("local", "fedavg", "pooled", "fedrep", "ifca", "fesem", "fedem", "fedrc", "cfl")
HCFL = ("hcfl+(fedem)", "hcfl+(fedrc)", "hcfl++")
PERSONAL = ("fedavg", "ifca", *HCFL)
PERSONAL_PARTS = "+personal"
TWO_CLUSTERS = ("ifca", "fesem", "fedem", "fedrc")
"""Methods with a fixed number of clusters get two: four hospitals are few."""


def read(folder: Path) -> pd.DataFrame:
    """Return all patients as one table, with a column for the hospital."""
    parts = []
    for file, hospital in HOSPITALS.items():
        table = pd.read_csv(folder / f"processed.{file}.data", header=None, names=COLUMNS, na_values="?")
        for column in ("cholesterol", "pressure"):
            table[column] = table[column].replace(0, np.nan)
        for column, names in NAMES.items():
            table[column] = table[column].map(names)
        table["outcome"] = np.where(table["num"] > 0, "sick", "well")
        parts.append(table.drop(columns="num").assign(hospital=hospital))
    return pd.concat(parts, ignore_index=True)


def auroc(federation: hcfl.Federation, probabilities: Callable[[int], NDArray[Any]]) -> list[float]:
    """Return AUROC of each hospital on its held-out patients, and of all of them."""
    answers = [federation.y[rows].numpy() for rows in federation.val]
    found = [probabilities(client)[:, 1] for client in range(len(answers))]
    pairs = [*zip(answers, found, strict=True), (np.concatenate(answers), np.concatenate(found))]
    return [roc_auc_score(*pair) if len(set(pair[0])) == 2 else np.nan for pair in pairs]


def measured(method: str, federation: hcfl.Federation, **settings: Any) -> list[float]:
    """Train, and return AUROC of each hospital with the models that it is served, then the number of clusters."""
    held_out, names = [federation.x[rows] for rows in federation.val], federation.client_names
    if method in TWO_CLUSTERS:
        settings["clusters"] = 2
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        if method == "pooled":
            together = {part: (torch.cat([*getattr(federation, part)]),) for part in ("train", "val")}
            run = hcfl.run("fedavg", replace(federation, **together, client_names=("all",)), out=out, **settings)
            return [*auroc(federation, lambda client: run.predict_proba(held_out[client], cluster=0)), 1]
        run = hcfl.run(method, federation, out=out, **settings)
        found = auroc(federation, lambda client: run.predict_proba(held_out[client], client=names[client]))
        return [*found, len(set(run.state.server.members.tolist()))]


def main() -> None:
    """Print one line for each method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="methods; with +personal behind the name, with --personal auto")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = read(options.folder)
    lines = options.only or [*METHODS, *HCFL, *(f"{method}{PERSONAL_PARTS}" for method in PERSONAL)]
    federations = {
        seed: hcfl.Federation.from_frame(table, label="outcome", client="hospital", val_share=0.25, seed=seed)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    }
    names = next(iter(federations.values())).client_names
    print(f"| method | {' | '.join(map(str, names))} | all | clusters |\n|---|{'---|' * (len(names) + 2)}")
    for line in lines:
        method, personal = line.removesuffix(PERSONAL_PARTS), line.endswith(PERSONAL_PARTS)
        settings: dict[str, Any] = {"rounds": options.rounds, "epochs": options.epochs, "serve": "last"}
        if personal:
            settings["personal"] = "auto"
        found = np.array([measured(method, part, seed=seed, **settings) for seed, part in federations.items()])
        cells = [f"{np.nanmean(column):.3f} ± {np.nanstd(column, ddof=1):.3f}" for column in found.T[:-1]]
        shown = f"`{method}`" + (" `--personal auto`" if personal else "")
        print(f"| {shown} | {' | '.join(cells)} | {found[:, -1].mean():.1f} |", flush=True)


if __name__ == "__main__":
    main()
