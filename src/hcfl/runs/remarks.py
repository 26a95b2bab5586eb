"""What a user should know about a result before using it: sentences for the summary, the terminal and the report."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hcfl.core.held_out import Tally, single_predictions
from hcfl.core.record import Row


def of_clusters(method: str, rows: Sequence[Row]) -> list[str]:
    """Say where clusters of a method stayed without clients."""
    sizes = rows[-1]["cluster_sizes"]
    held, used = len(sizes), sum(size > 0 for size in sizes)
    if used in (0, held):
        return []
    since = rows[-1]["round"]
    for row in reversed(rows):
        if sum(size > 0 for size in row["cluster_sizes"]) != used:
            break
        since = row["round"]
    when = "in every round" if since == rows[0]["round"] else f"since round {since}"
    if used == 1:
        return [f"{method} collapsed: {when}, all clients are in one of its {held} clusters"]
    return [f"{held - used} of the {held} clusters of {method} have no clients, {when}"]


FEW = 5
"""So few clients are few for groups of two or more."""


def of_few_clients(method: str, clients: int) -> list[str]:
    """Say that a method that looks for groups of clients does not see one client that is unlike all others."""
    if method != "hcfl++" or not 1 < clients <= FEW:
        return []
    return [
        f"hcfl++ makes groups of at least two clients: among {clients}, a single client that is unlike all others "
        "stays with them; hcfl+(fedrc) can give it a cluster of its own"
    ]


def of_classes(predicted: Tally | None, members: Tensor, clusters: Sequence[int], names: Sequence[str]) -> list[str]:
    """Say where a model predicts one class only, although the held-out samples have several."""
    if predicted is None:
        return []
    everyone = single_predictions(predicted.by_group(torch.zeros_like(members)))
    if everyone:
        share = f"{100 * predicted.accuracy:.1f}%"
        return [f"every held-out sample is predicted as class {names[everyone[0]]}: Val {share} is this class's share"]
    found = single_predictions(predicted.by_group(members))
    told = [
        f"every held-out sample of cluster {clusters[column]} is predicted as class {names[label]}"
        for column, label in found.items()
        if column >= 0
    ]
    others = len(told) - MOST
    return told[:MOST] + ([f"so it is in {others} more clusters"] if others > 0 else [])


MOST = 5
"""The largest number of remarks of one kind."""


def of_stopping(summary: Row, patience: int | None) -> list[str]:
    """Say that a run stopped early, and on what."""
    if not summary.get("stopped_early"):
        return []
    return [
        f"stopped early after round {summary['rounds']}: the likelihood of held-out samples had not grown for "
        f"{patience} rounds"
    ]


def of_uploads(rows: Sequence[Row]) -> list[str]:
    """Say how many uploads were refused."""
    refused, sampled = (sum(row.get(key) or 0 for row in rows) for key in ("refused", "participants"))
    return [f"{refused} uploads were refused, {sampled} counted; events.jsonl has the reasons"] if refused else []
