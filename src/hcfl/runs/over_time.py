"""How well clusters follow clients that change: delay, false moves and prequential Val, from `metrics.jsonl`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hcfl.core.record import Row

NO_CLUSTER = -1


@dataclass(frozen=True)
class Turn:
    """A client's concept changed."""

    client: int
    round: int
    """The first round with data of the new concept."""
    delay: int | None
    """Rounds until most clients of its cluster had its new concept; 0: at the end of that same round. None: they never
    had, before the client changed again or the run ended."""


def is_right(members: NDArray[np.int64], concepts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which clients are in a cluster most of whose clients have the same concept as they, (clients,).

    >>> is_right(np.array([0, 0, 0, 1]), np.array([5, 5, 6, 6])).tolist()
    [True, True, False, True]
    """
    together, alike = _how_many(members), _how_many(np.stack([members, concepts], axis=1))
    right: NDArray[np.bool_] = (2 * alike > together) & (members != NO_CLUSTER)
    return right


def _how_many(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each row how many rows are equal to it, (rows,)."""
    _, place, counts = np.unique(values, axis=0, return_inverse=True, return_counts=True)
    found: NDArray[np.int64] = counts[place.reshape(-1)]
    return found


def table(rows: Sequence[Row], key: str) -> NDArray[np.int64]:
    """Return a list of every round as (rounds, clients); −1 where there is nothing."""
    return np.array([[NO_CLUSTER if one is None else one for one in row[key]] for row in rows])


def turns(rows: Sequence[Row]) -> list[Turn]:
    """Return every change of a client's concept, with the delay until its cluster followed."""
    if not has_truth(rows):
        return []
    members, concepts = table(rows, "client_clusters"), table(rows, "client_concepts")
    right = np.stack([is_right(now, true) for now, true in zip(members, concepts, strict=True)])
    found = []
    for client in range(members.shape[1]):
        starts = [at + 1 for at in np.flatnonzero(np.diff(concepts[:, client])).tolist()]
        for start, end in pairwise([*starts, len(rows)]):
            followed = np.flatnonzero(right[start:end, client])
            found.append(Turn(client, int(rows[start]["round"]), int(followed[0]) if len(followed) else None))
    return sorted(found, key=lambda turn: (turn.round, turn.client))


def last_of_steps(rows: Sequence[Row]) -> list[Row]:
    """Return the last round of each step."""
    return list({row["step"]: row for row in rows}.values())


def false_moves(rows: Sequence[Row]) -> float | None:
    """Return the share of clients that end a step in another cluster although their concept is that of the step before.

    The mean over steps from the second one on; None where there is no such step.
    """
    moved, stayed = _from_step_to_step(rows)
    return float((moved & stayed).sum() / stayed.sum()) if stayed.any() else None


def false_movers(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Return (step, client) for each client that `false_moves` counts as moved; steps are counted from 1."""
    moved, stayed = _from_step_to_step(rows)
    ends = last_of_steps(rows)[1:]
    return [(int(ends[step]["step"]), client) for step, client in np.argwhere(moved & stayed).tolist()]


def _from_step_to_step(rows: Sequence[Row]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which clients end a step in another cluster than the step before, and which have the same concept.

    Both (steps − 1, clients); empty where no concept is known.
    """
    ends = last_of_steps(rows) if has_truth(rows) else []
    if len(ends) < 2:
        return np.zeros((0, 0), dtype=bool), np.zeros((0, 0), dtype=bool)
    moved = np.diff(table(ends, "client_clusters"), axis=0) != 0
    stayed = np.diff(table(ends, "client_concepts"), axis=0) == 0
    return moved, stayed


def has_truth(rows: Sequence[Row]) -> bool:
    """Whether rounds tell each client's cluster and concept."""
    return bool(rows) and all(row.get("client_clusters") and row.get("client_concepts") for row in rows)


def summary_over_time(rows: Sequence[Row]) -> Row:
    """Return what `summary.json` says of a run with steps; nothing of one without."""
    if not rows or "step" not in rows[0]:
        return {}
    before = [row["prequential"] for row in rows if row.get("prequential") is not None]
    ends = [row["val"] for row in last_of_steps(rows) if row["val"] is not None]
    ari = [row["ari"] for row in rows if row["ari"] is not None]
    found = turns(rows)
    delays = [turn.delay for turn in found if turn.delay is not None]
    return {
        "steps": rows[-1]["step"],
        "prequential_mean": float(np.mean(before)) if before else None,
        "val_step_mean": float(np.mean(ends)) if ends else None,
        "ari_mean": float(np.mean(ari)) if ari else None,
        "concept_changes": len(found) if has_truth(rows) else None,
        "concept_changes_missed": len(found) - len(delays) if has_truth(rows) else None,
        "delay_mean": float(np.mean(delays)) if delays else None,
        "false_moves": false_moves(rows),
    }
