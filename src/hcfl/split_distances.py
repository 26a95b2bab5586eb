"""The distances that a split was decided by, for people to look at afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hcfl.clusters import Split

MOST = 200
"""Clients of a split whose distances are kept: of more, so many, evenly chosen, and the two that are farthest apart."""


@dataclass(frozen=True)
class Distances:
    """D between some clients, as tier 4 measured it in a round."""

    clients: tuple[int, ...]
    matrix: Tensor
    """(clients, clients)."""


def split_row(split: Split, distances: Distances, client_names: Sequence[Any]) -> dict[str, Any]:
    """Return one line of `splits.jsonl`: the distances between a split's clients, those of the first part first."""
    known = {client: row for row, client in enumerate(distances.clients)}
    first, second = ([known[client] for client in part if client in known] for part in (split.first, split.second))
    matrix = distances.matrix.numpy()
    rows = _some(matrix, first, second)
    return {
        "round": split.round,
        "cluster": split.parent,
        "new_cluster": split.child,
        "clients_compared": len(first) + len(second),
        "clients": [client_names[distances.clients[row]] for row in rows],
        "in_first_part": len(set(first) & set(rows)),
        "distances": [[float(f"{value:.4g}") for value in matrix[row, rows[:at]]] for at, row in enumerate(rows)],
    }


def _some(matrix: NDArray[np.float32], first: list[int], second: list[int]) -> list[int]:
    """Return the rows of both parts; where they are too many, a part of each, and the farthest pair."""
    rows = [*first, *second]
    if len(rows) <= MOST:
        return rows
    block = matrix[np.ix_(rows, rows)]
    farthest = np.unravel_index(int(block.argmax()), block.shape)
    evenly = np.linspace(0, len(rows) - 1, MOST - len(farthest)).round().astype(int)
    return [rows[at] for at in np.union1d(evenly, farthest)]
