"""How weights follow when clusters are added and removed (spec §4, steps 4 and 5).

Clusters have stable ids, which are never used again, and a column in every table. The server changes its tables at
once; a client, who may have missed several rounds, applies the same changes to its own weights when it next takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Rule = Literal["halve", "one-hot", "move"]
"""How a split changes weights. `halve` ("SCWU"): half of the parent's mass to the child, on every row.
`one-hot`: members get all mass on their part, all other rows are halved. `move`: for hard weights, members of the
second part move to the child, nobody else changes."""

OUTSIDE, FIRST, SECOND = 0, 1, 2
"""Where a client stood in a split."""


@dataclass(frozen=True)
class Split:
    """A cluster was cut in two: the first part keeps its id, the second founded the child."""

    round: int
    parent: int
    child: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    rule: Rule
    maximum: float
    mean: float
    threshold: float

    def part(self, client: int) -> int:
        """Return where this client stood."""
        return FIRST if client in self.first else SECOND if client in self.second else OUTSIDE

    def parts(self, clients: int) -> Tensor:
        """Return where every client stood, (clients,)."""
        parts = torch.full((clients,), OUTSIDE)
        parts[list(self.first)] = FIRST
        parts[list(self.second)] = SECOND
        return parts


@dataclass(frozen=True)
class Removal:
    """A cluster that was nobody's is gone."""

    round: int
    cluster: int


Change = Split | Removal


def without(clusters: Sequence[int], removed: int) -> tuple[int, ...]:
    """Return the ids that stay, in their order."""
    return tuple(cluster for cluster in clusters if cluster != removed)


def split_weights(weights: Tensor, parent: int, parts: Tensor, rule: Rule) -> Tensor:
    """Append the child's column to weights (rows, clusters); `parts` (rows,) says where each row's client stood."""
    grown = torch.cat([weights, torch.zeros_like(weights[:, :1])], dim=1)
    members, second = (parts != OUTSIDE).to(weights.device), (parts == SECOND).to(weights.device)
    if rule != "move":
        halved = ~members if rule == "one-hot" else torch.ones_like(members)
        grown[halved, -1] = grown[halved, parent] = weights[halved, parent] / 2
    if rule != "halve":
        grown[members] = 0
        grown[members & ~second, parent] = 1
        grown[second, -1] = 1
    return grown


def remove_weights(weights: Tensor, column: int) -> Tensor:
    """Drop a column of weights (rows, clusters) and renormalise; a row whose mass was all there becomes uniform."""
    kept = torch.cat([weights[:, :column], weights[:, column + 1 :]], dim=1)
    mass = kept.sum(dim=1, keepdim=True)
    tiny = torch.finfo(kept.dtype).tiny
    return torch.where(mass > tiny, kept / mass.clamp_min(tiny), 1 / kept.shape[1])


def follow(
    weights: Tensor, clusters: tuple[int, ...], changes: Sequence[Change], client: int | None
) -> tuple[Tensor, tuple[int, ...]]:
    """Apply changes to the weights (rows, clusters) of one client, or of somebody outside the federation (None)."""
    for change in changes:
        if isinstance(change, Split):
            part = OUTSIDE if client is None else change.part(client)
            parts = torch.full((len(weights),), part)
            weights = split_weights(weights, clusters.index(change.parent), parts, change.rule)
            clusters = (*clusters, change.child)
        else:
            weights = remove_weights(weights, clusters.index(change.cluster))
            clusters = without(clusters, change.cluster)
    return weights, clusters
