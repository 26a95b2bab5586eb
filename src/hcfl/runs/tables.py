"""The rows of a run folder's files: `clients.csv`, `classes.csv`, `splits.jsonl`, `summary.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hcfl.config import Config
from hcfl.core.cluster_log import Split
from hcfl.core.fairness import fairness
from hcfl.core.given_start import how_far
from hcfl.core.held_out import Tally
from hcfl.core.record import Row
from hcfl.core.state import ClientScores, Missing, RunState
from hcfl.core.suspicion import Anomalies
from hcfl.data import Federation
from hcfl.data.given_groups import GivenGroups
from hcfl.privacy.accounting import spent
from hcfl.runs.best_round import best_row, overdue
from hcfl.runs.measured import Measured
from hcfl.runs.over_time import summary_over_time
from hcfl.tiers.distance import Distances


def missing_rows(round_: int, missing: Sequence[Missing], client_names: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the lines of `events.jsonl` for sampled clients whose update did not count in the round."""
    return [
        {
            "event": "refused" if one.refused else "absent",
            "round": round_,
            "client": client_names[one.client],
            "reason": one.reason,
            "attempt": one.attempt,
        }
        for one in missing
    ]


def quarantine_rows(round_: int, found: Anomalies | None, client_names: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the lines of `events.jsonl` for clients whose quarantine began or ended with the round."""
    if found is None:
        return []
    begun = dict.fromkeys(found.quarantined, "quarantined")
    return [
        {"event": event, "round": round_, "client": client_names[client], "reason": found.reason(client)}
        for client, event in {**begun, **dict.fromkeys(found.released, "released")}.items()
    ]


def client_rows(federation: Federation, state: RunState, measured: Measured) -> list[list[Any]]:
    """Return `clients.csv`: each client's cluster, weights and accuracy, and its true concept where that is known."""
    server, truth, groups = state.server, federation.truth, federation.groups
    last, served = (
        None if held_out is None else _pairs(*held_out.by_client.table(federation.clients))
        for held_out in (measured.last, measured.served)
    )
    scores = state.scores
    if last is None and scores is not None:  # clients measured by themselves
        last = _pairs(*scores.table(federation.clients))
    personal = None if scores is None or scores.personal is None else _pairs(scores.personal, scores.samples)
    table: list[list[Any]] = [
        [
            "client",
            "samples",
            "true_concept",
            *([] if groups is None else ["given_group"]),
            "cluster",
            "corruption",
            "severity",
            "held_out",
            "accuracy",
            "accuracy_served",
            "accuracy_personal",
            "personal",
            *(f"weight_{cluster}" for cluster in server.clusters),
        ]
    ]
    members, sizes, weights = server.members.tolist(), server.sizes.int().tolist(), server.weights.tolist()
    held = federation.train_sizes.tolist()
    for client, name in enumerate(federation.client_names):
        column = members[client]
        corruption = None if federation.corruptions is None else federation.corruptions[client]
        table.append(
            [
                name,
                sizes[client] or held[client],
                "" if truth is None else truth.names[truth.concept[client]],
                *([] if groups is None else [_group_name(groups, client)]),
                "" if column < 0 else server.clusters[column],
                "" if corruption is None else corruption.name,
                "" if corruption is None else corruption.severity,
                "" if last is None else last[client][1],
                *(
                    "" if part is None or not part[client][1] else f"{part[client][0] / part[client][1]:.6g}"
                    for part in (last, served, personal)
                ),
                "" if scores is None or not scores.kinds else scores.kinds[client],
                *(f"{weight:.6g}" for weight in weights[client]),
            ]
        )
    return table


def _group_name(groups: GivenGroups, client: int) -> str:
    number = int(groups.of[client])
    return "" if number < 0 else groups.names[number]


def _pairs(right: Tensor, samples: Tensor) -> list[tuple[float, int]]:
    return list(zip(right.tolist(), samples.int().tolist(), strict=True))


def class_rows(federation: Federation) -> list[list[Any]]:
    """Return `classes.csv`: each client's samples by class; only the header where clients keep their labels."""
    table: list[list[Any]] = [["client", *federation.class_names]]
    if not len(federation.y):
        return table
    counts = federation.class_table().tolist()
    return table + [[name, *row] for name, row in zip(federation.client_names, counts, strict=True)]


def confusion_rows(federation: Federation, state: RunState, tally: Tally | None) -> list[list[Any]]:
    """Return `confusion.csv`: held-out samples by their client's cluster, label and predicted class, where any are."""
    table: list[list[Any]] = [["cluster", "label", "predicted", "samples"]]
    if tally is None:
        return table
    names, clusters = federation.class_names, state.server.clusters
    for column, label, predicted, samples in tally.by_group(state.server.members):
        table.append(["" if column < 0 else clusters[column], names[label], names[predicted], samples])
    return table


SPLIT_CLIENTS = 200
"""The largest number of clients of a split whose distances are kept; of more, a regular sample and the farthest two."""


def split_row(split: Split, distances: Distances, client_names: Sequence[Any]) -> dict[str, Any]:
    """Return one line of `splits.jsonl`: the distances between a split's clients, those of the first part first."""
    known = {client: row for row, client in enumerate(distances.clients)}
    first, second = ([known[client] for client in part if client in known] for part in (split.first, split.second))
    matrix = distances.matrix.numpy()
    rows = _kept_rows(matrix, first, second)
    return {
        "round": split.round,
        "cluster": split.parent,
        "new_cluster": split.child,
        "clients_compared": len(first) + len(second),
        "clients": [client_names[distances.clients[row]] for row in rows],
        "in_first_part": len(set(first) & set(rows)),
        "distances": [[float(f"{value:.4g}") for value in matrix[row, rows[:at]]] for at, row in enumerate(rows)],
    }


def _kept_rows(matrix: NDArray[np.float32], first: list[int], second: list[int]) -> list[int]:
    """Return the rows of both parts; of too many, evenly chosen ones and the farthest pair."""
    rows = [*first, *second]
    if len(rows) <= SPLIT_CLIENTS:
        return rows
    block = matrix[np.ix_(rows, rows)]
    farthest = np.unravel_index(int(block.argmax()), block.shape)
    evenly = np.linspace(0, len(rows) - 1, SPLIT_CLIENTS - len(farthest)).round().astype(int)
    return [rows[at] for at in np.union1d(evenly, farthest)]


def summarise(
    method: str,
    config: Config,
    concepts: int | None,
    metrics: Sequence[Row],
    measured: Measured | None = None,
    scores: ClientScores | None = None,
) -> Row:
    """Return `summary.json` from the rows of `metrics.jsonl`.

    It has Val and Test of the best round and of the last, and Test of the round with the best Val, which is the honest
    one of the three. `concepts` is the true number of concepts; None where it is not known. `measured` is what was
    measured at the end: Val of the final models, where the last round measured those that it began with, and of those
    that are served, on the held-out samples that did not choose them; `scores` is what clients measured last.
    """
    measured = measured or Measured()
    last = {**metrics[-1], **measured.told}
    best = best_row(metrics) if config.evaluation.serve == "best" else None
    served = metrics[-1] if best is None else best
    val_best = _best([*metrics, last], "val")
    test_best = _best(metrics, "test")
    epsilon, delta = spent(config.privacy, last["round"]) or (None, None)
    return {
        "method": method,
        "data": config.data.source,
        "partition": describe_partition(config),
        "seed": config.seed,
        "rounds": last["round"],
        "stopped_early": last["round"] < config.training.rounds and overdue(metrics, config.training.patience),
        "val_best": val_best and val_best["val"],
        "val_best_round": val_best and val_best["round"],
        "test_best": test_best and test_best["test"],
        "test_best_round": test_best and test_best["round"],
        "val_last": last["val"],
        "test_last": last["test"],
        **fairness(scores),
        "test_at_best_val": val_best and val_best["test"],
        "val_served": None if measured.served is None else measured.served.reporting_accuracy,
        "test_served": served["test"],
        "val_worst_client": last.get("val_worst_client"),
        "balanced_accuracy": last.get("balanced_accuracy"),
        "macro_f1": last.get("macro_f1"),
        "clusters_last": last["clusters"],
        "clusters_max": max(row["clusters"] for row in metrics),
        "clusters_true": concepts,
        "clusters_empty_last": max(0, len(last["cluster_ids"]) - last["clusters"]),
        "clients_absent": sum(row.get("absent") or 0 for row in metrics),
        "clients_refused": sum(row.get("refused") or 0 for row in metrics),
        "ari_last": last["ari"],
        "ari_affected_last": last["ari_affected"],
        "seconds_per_round": sum(row["seconds"] for row in metrics) / len(metrics),
        "bytes_up": sum(row["bytes_up"] for row in metrics),
        "bytes_down": sum(row["bytes_down"] for row in metrics),
        "epsilon": epsilon,
        "delta": delta,
        **summary_over_time(metrics),
    }


def group_entries(federation: Federation, state: RunState, measured: Measured) -> Row:
    """Return what `summary.json` says of given groups: how far the clusters are from them, and whether that paid."""
    groups, server = federation.groups, state.server
    far = None if groups is None else how_far(groups, server.members.numpy())
    if groups is None or far is None:
        return {}
    used = len(set(server.members[server.members >= 0].tolist()))
    ends = "1 cluster" if used == 1 else f"{used} clusters"
    text = f"{len(groups.names)} given groups became {ends}, {far.moved} of {far.clients} clients moved"
    val = None
    if measured.groups is not None and measured.last is not None:
        val = measured.groups.accuracy
        gain, error = paired_gain(measured.last.each, measured.groups.each)
        verdict = "paid" if gain > 2 * error else "cost" if gain < -2 * error else "made no clear difference"
        text += f"; Val {measured.last.accuracy:.3f}, of one model for each group {val:.3f}: the method {verdict}"
    return {
        "groups_given": len(groups.names),
        "groups_ari": far.ari,
        "groups_moved": far.moved,
        "val_groups": val,
        "groups": text,
    }


def forecast_entries(baselines: Mapping[str, Mapping[str, float | None]], found: Mapping[str, float | None]) -> Row:
    """Return what `summary.json` says of forecasts without a model, and whether the run's models are better."""
    rmse = {name: one["rmse"] for name, one in baselines.items() if one["rmse"] is not None}
    mine = found.get("rmse")
    if not rmse or mine is None:
        return {}
    told = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in rmse.items())
    verdict = "it pays" if mine < min(rmse.values()) else "it does not pay"
    scored = {f"score_{name}_{metric}": value for name, one in baselines.items() for metric, value in one.items()}
    return {**scored, "forecast": f"RMSE {mine:.4g}, without a model: {told}; {verdict}"}


def paired_gain(one: Tensor, other: Tensor) -> tuple[float, float]:
    """Return the mean difference of the scores of the same samples, and its standard error."""
    differences = one.double() - other.double()
    return float(differences.mean()), float(differences.std(correction=0) / len(differences) ** 0.5)


def describe_partition(config: Config) -> str:
    """Describe how samples were dealt to clients, with the readings of α and β, without which α and β are ambiguous."""
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
