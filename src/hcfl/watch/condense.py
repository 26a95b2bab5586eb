"""A matrix of many clients as one of few rows: clients of the same concept and cluster, taken together."""

from itertools import groupby
from typing import Any

import numpy as np

from hcfl.core.record import Row

MOST_ROWS, MOST_COLUMNS = 300, 120
"""How many clients and clusters are shown one by one."""


def condensed(clients: Row | None, classes: Row | None) -> tuple[Row | None, Row | None, Row | None]:
    """Return the page's clients and classes, of too many a summary, and for this the numbers of both."""
    if clients is None:
        return None, None, None
    full = (len(clients["names"]), len(clients["clusters"]))
    columns = _largest(clients, MOST_COLUMNS)
    clients = {**clients, "clusters": [clients["clusters"][at] for at in columns]}
    weights = np.array(clients["weights"], dtype=np.float32).reshape(full)[:, columns]
    if classes is not None:
        classes = {**classes, **{key: [classes[key][at] for at in columns] for key in ("clusters", "counts")}}
    if full[0] > MOST_ROWS:
        clients = _fewer(clients, weights)
    elif full[1] > MOST_COLUMNS:
        clients["weights"] = weights.tolist()
    shown = (len(clients["names"]), len(columns))
    note = {"clients": full[0], "rows": shown[0], "clusters": full[1], "columns": shown[1]}
    return clients, classes, note if shown != full else None


def _largest(clients: Row, most: int) -> list[int]:
    """Return the columns of the clusters with the most clients, in their order."""
    names = clients["clusters"]
    if len(names) <= most:
        return list(range(len(names)))
    sizes = dict.fromkeys(names, 0)
    for own in clients["own"]:
        if own is not None:
            sizes[own] += 1
    ranked = sorted(range(len(names)), key=lambda at: -sizes[names[at]])
    return sorted(ranked[:most])


def _fewer(clients: Row, weights: Any) -> Row:
    """Return rows that each stand for several clients of one concept and cluster, with their mean weights."""
    concepts = clients["concepts"] or [""] * len(clients["names"])

    def group(at: int) -> tuple[str, str]:
        return concepts[at], clients["own"][at] or ""

    order = sorted(range(len(concepts)), key=lambda at: (*group(at), at))
    groups = [list(members) for _, members in groupby(order, key=group)]
    each = -(-len(order) // max(1, MOST_ROWS - len(groups)))  # each group may have a row that is not full
    parts = [members[at : at + each] for members in groups for at in range(0, len(members), each)][: 2 * MOST_ROWS]
    return {
        **clients,
        "names": [_name([clients["names"][at] for at in part]) for part in parts],
        "samples": [sum(clients["samples"][at] for at in part) for part in parts],
        "concepts": None if clients["concepts"] is None else [concepts[part[0]] for part in parts],
        "own": [clients["own"][part[0]] for part in parts],
        "corruptions": None,
        "weights": [[round(value, 3) for value in weights[part].mean(axis=0).tolist()] for part in parts],
    }


def _name(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} clients, {names[0]} …"
