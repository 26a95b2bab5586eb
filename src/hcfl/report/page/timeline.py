"""Steps of time for the page: when they begin, each client's cluster and concept, and how clusters followed."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from hcfl.core.record import Row
from hcfl.runs import over_time

MOST_CLIENTS = 300
"""The picture of clients through time shows no more clients than this; those whose concept or cluster changed first."""


def timeline(rows: Sequence[Row]) -> Row | None:
    """Return the time axis of a run from its rounds; None for a run without steps.

    `clusters` and `concepts` hold, for each of `clients`, pairs of a round and what the client had from then on; −1 is
    no cluster.
    """
    if not rows or "step" not in rows[0] or not all(row.get("client_clusters") for row in rows):
        return None
    known = over_time.has_truth(rows)
    clusters = _spans(rows, "client_clusters")
    concepts = _spans(rows, "client_concepts") if known else None
    changes = [len(spans) + (0 if concepts is None else len(concepts[at])) for at, spans in enumerate(clusters)]
    shown = sorted(sorted(range(len(clusters)), key=lambda client: -changes[client])[:MOST_CLIENTS])
    return {
        "steps": [[step, next(some)["round"]] for step, some in groupby(rows, key=lambda row: row["step"])],
        "all_clients": len(clusters),
        "clients": shown,
        "clusters": [clusters[client] for client in shown],
        "concepts": None if concepts is None else [concepts[client] for client in shown],
        "turns": [[turn.client, turn.round, turn.delay] for turn in over_time.turns(rows)] if known else None,
        "false_moves": [list(move) for move in over_time.false_movers(rows)] if known else None,
    }


def _spans(rows: Sequence[Row], key: str) -> list[list[list[int]]]:
    """Return for each client [round, value] wherever its value changes, the first round included."""
    rounds, values = [row["round"] for row in rows], over_time.table(rows, key)
    changed = np.ones(values.shape, dtype=bool)
    changed[1:] = np.diff(values, axis=0) != 0
    return [
        [[rounds[at], int(mine[at])] for at in np.flatnonzero(marks)]
        for mine, marks in zip(values.T, changed.T, strict=True)
    ]
