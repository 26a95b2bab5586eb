"""The result of a run in a few numbers: `summary.json`."""

from collections.abc import Sequence
from typing import Any

from hcfl.config import Config
from hcfl.privacy.accounting import spent

Row = dict[str, Any]


def summarise(method: str, config: Config, concepts: int | None, metrics: Sequence[Row]) -> Row:
    """Return `summary.json`: best round, last round, and Test at the best-Val round, so that nobody is misled.

    `concepts` is how many there truly are, where somebody knows.
    """
    last = metrics[-1]
    val_best = _best(metrics, "val")
    test_best = _best(metrics, "test")
    epsilon, delta = spent(config.privacy, last["round"]) or (None, None)
    return {
        "method": method,
        "data": config.data.source,
        "partition": describe_partition(config),
        "seed": config.seed,
        "rounds": last["round"],
        "val_best": val_best and val_best["val"],
        "val_best_round": val_best and val_best["round"],
        "test_best": test_best and test_best["test"],
        "test_best_round": test_best and test_best["round"],
        "val_last": last["val"],
        "test_last": last["test"],
        "test_at_best_val": val_best and val_best["test"],
        "clusters_last": last["clusters"],
        "clusters_max": max(row["clusters"] for row in metrics),
        "clusters_true": concepts,
        "ari_last": last["ari"],
        "ari_affected_last": last["ari_affected"],
        "seconds_per_round": sum(row["seconds"] for row in metrics) / len(metrics),
        "bytes_up": sum(row["bytes_up"] for row in metrics),
        "bytes_down": sum(row["bytes_down"] for row in metrics),
        "epsilon": epsilon,
        "delta": delta,
    }


def describe_partition(config: Config) -> str:
    """Name how samples were dealt, with the readings of α and β: a result means nothing without them."""
    data = config.data
    if data.partition == "natural":
        return "natural"
    parts = {
        "lda": f"lda alpha={data.alpha} ({data.alpha_reading})",
        "classes": f"{data.classes_per_client} classes per client ({data.grouping})",
        "iid": "iid",
    }
    words = [parts[data.partition or "iid"]]
    if data.samples is not None:
        words.append(f"{data.samples} samples")
    if data.copies > 1:
        words.append(f"{data.copies} copies")
    if data.beta:
        words.append(f"{data.concepts} concepts beta={data.beta} ({data.beta_reading})")
    if data.corruptions != "none":
        words.append(f"{data.corruptions} corruptions")
    if data.noise != "none":
        words.append(f"{data.noise} noise {data.noise_rate}")
    return ", ".join(words)


def _best(metrics: Sequence[Row], key: str) -> Row | None:
    """Return the first round with the largest value, or None where nothing was measured."""
    measured = [row for row in metrics if row[key] is not None]
    return max(measured, key=lambda row: row[key]) if measured else None
