"""Matrices of the page in a compact form: distances of splits, and classes by cluster."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

from hcfl.core.record import Row

STEPS = 999
"""Distances are stored as whole numbers from 0 to this, as shares of the largest; `splits.jsonl` has more digits."""


def splits(rows: Sequence[Row], most: int) -> list[Row]:
    """Return each split with its distances as a lower triangle; splits beyond `most` distances in all have none."""
    shown = []
    for row in rows:
        values = [value for line in row["distances"] for value in line]
        largest = max([value for value in values if isfinite(value)], default=0.0)
        most -= len(values)
        shown.append(
            {
                **{key: row[key] for key in ("round", "cluster", "new_cluster", "clients_compared", "in_first_part")},
                "clients": [str(client) for client in row["clients"]],
                "largest": largest,
                "values": [_step(value, largest) for value in values] if most >= 0 else None,
            }
        )
    return shown


def _step(value: float, largest: float) -> int:
    if not isfinite(value):
        return STEPS
    return round(STEPS * value / largest) if largest > 0 else 0


def classes(clients: Sequence[Row], table: Sequence[Sequence[str]]) -> dict[str, Any] | None:
    """Count the samples of each class that the clients of each cluster hold; None where the folder lacks them."""
    if len(table) < 2 or len(table) != len(clients) + 1:
        return None
    names = list(table[0][1:])
    counts: dict[str, list[int]] = {}
    for client, row in zip(clients, table[1:], strict=True):
        if client["cluster"]:
            before = counts.get(client["cluster"], [0] * len(names))
            counts[client["cluster"]] = [known + int(more) for known, more in zip(before, row[1:], strict=True)]
    order = [key.removeprefix("weight_") for key in clients[0] if key.startswith("weight_")]
    return {"names": names, "clusters": order, "counts": [counts.get(cluster, [0] * len(names)) for cluster in order]}
