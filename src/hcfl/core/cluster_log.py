"""How weights follow when clusters are added, split, merged and removed.

Clusters have stable ids, which are never used again, and a column in every table. The server changes its tables at
once; a client that missed several rounds applies the same changes to its own weights when it next takes part.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from hcfl.tiers import Weights
from hcfl.tiers.weighting import one_hot

Rule = Literal["halve", "one-hot", "move", "lean", "uniform", "alone"]
"""How a split changes weights. `halve` ("SCWU"): half of the parent's mass to the child, on every row. `lean`: members
leave most of it with their own part, all other rows are halved. `one-hot`: members get all mass on their part, all
other rows are halved. `move`: for hard weights, members of the second part move to the child, no other row changes.
`uniform`: every client's row becomes uniform over all clusters, only the weights of samples are halved. `alone`: the
second part is one client that left its cluster for one of its own, and the cluster stays whole for all others."""

LEAN = 0.9
"""The share of the parent's mass that stays with a member's own part: later E-steps can still overrule the split."""

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

    @cached_property
    def _standing(self) -> dict[int, int]:
        return {**dict.fromkeys(self.second, SECOND), **dict.fromkeys(self.first, FIRST)}

    def part(self, client: int) -> int:
        """Return where this client stood."""
        return self._standing.get(client, OUTSIDE)

    def parts(self, clients: int) -> Tensor:
        """Return where every client stood, (clients,)."""
        parts = torch.full((clients,), OUTSIDE)
        parts[list(self.first)] = FIRST
        parts[list(self.second)] = SECOND
        return parts


@dataclass(frozen=True)
class Removal:
    """A cluster without members was removed."""

    round: int
    cluster: int


@dataclass(frozen=True)
class Merge:
    """One cluster took in another, which is gone."""

    round: int
    into: int
    gone: int
    distance: float
    threshold: float


@dataclass(frozen=True)
class Move:
    """Some clients were put into other clusters."""

    round: int
    clients: tuple[int, ...]
    to: tuple[int, ...]
    """The cluster of each."""

    @cached_property
    def where(self) -> dict[int, int]:
        """The cluster of each, by client."""
        return dict(zip(self.clients, self.to, strict=True))


Change = Split | Removal | Merge | Move


def placed_by(changes: Sequence[Change]) -> frozenset[int]:
    """Return the clients that some decision has named."""
    named: set[int] = set()
    for change in changes:
        if isinstance(change, Split):
            named |= {*change.first, *change.second}
        elif isinstance(change, Move):
            named |= set(change.clients)
    return frozenset(named)


def missed_split(weights: Weights, clusters: tuple[int, ...], changes: Sequence[Change], client: int) -> bool:
    """Whether a client with hard weights was absent when its own cluster was split: no decision has placed it since."""
    absent = False
    for change in changes:
        own = clusters[int(weights.client.argmax())]
        if isinstance(change, Split) and change.rule == "move":
            absent = change.part(client) == OUTSIDE and (absent or change.parent == own)
        elif isinstance(change, Split):
            absent = absent and change.part(client) == OUTSIDE
        elif isinstance(change, Move):
            absent = absent and client not in change.where
        weights, clusters = follow(weights, clusters, [change], client), clusters_after(clusters, change)
    return absent


def without(clusters: Sequence[int], removed: int) -> tuple[int, ...]:
    """Return the ids that stay, in their order."""
    return tuple(cluster for cluster in clusters if cluster != removed)


def split_weights(weights: Tensor, parent: int, parts: Tensor, rule: Rule) -> Tensor:
    """Append the child's column to weights (rows, clusters); `parts` (rows,) says where each row's client stood."""
    if rule == "uniform":
        return weights.new_full((len(weights), weights.shape[1] + 1), 1 / (weights.shape[1] + 1))
    # Where a row's client stood → the share of the parent's mass that goes to the child.
    shares = {"lean": (0.5, 1 - LEAN, LEAN), "move": (0.0,) * 3, "alone": (0.0,) * 3}.get(rule, (0.5,) * 3)
    mass = weights[:, parent]
    child = mass * torch.tensor(shares, dtype=weights.dtype)[parts].to(weights.device)
    grown = torch.cat([weights, child.unsqueeze(1)], dim=1)
    grown[:, parent] = mass - child
    if rule in ("one-hot", "move", "alone"):
        members, second = (parts != OUTSIDE).to(weights.device), (parts == SECOND).to(weights.device)
        grown[members] = 0
        grown[members & ~second, parent] = 1
        grown[second, -1] = 1
    return grown


def remove_weights(weights: Tensor, column: int) -> Tensor:
    """Drop a column of weights (rows, clusters) and renormalise; a row whose mass was all in it becomes uniform."""
    kept = torch.cat([weights[:, :column], weights[:, column + 1 :]], dim=1)
    mass = kept.sum(dim=1, keepdim=True)
    tiny = torch.finfo(kept.dtype).tiny
    return torch.where(mass > tiny, kept / mass.clamp_min(tiny), 1 / kept.shape[1])


def merge_weights(weights: Tensor, into: int, gone: int) -> Tensor:
    """Add one column of weights (rows, clusters) to another and drop it."""
    summed = weights.clone()
    summed[:, into] += weights[:, gone]
    return torch.cat([summed[:, :gone], summed[:, gone + 1 :]], dim=1)


def follow(weights: Weights, clusters: tuple[int, ...], changes: Sequence[Change], client: int | None) -> Weights:
    """Apply changes to the weights of one client, or of a newcomer outside the federation (None): a group of one."""
    for change in changes:
        sample, components = weights.sample, weights.components
        weights = Weights(
            _follow_one(weights.client, clusters, change, client),
            None if sample is None else _follow_one(sample, clusters, _of_samples(change), client),
            None if components is None else _follow_components(components, weights.client, clusters, change),
        )
        clusters = clusters_after(clusters, change)
    return weights


def _of_samples(change: Change) -> Change:
    """Return what a change does to the weights of samples: a split that makes clients uniform halves them."""
    return replace(change, rule="halve") if isinstance(change, Split) and change.rule == "uniform" else change


def clusters_after(clusters: tuple[int, ...], change: Change) -> tuple[int, ...]:
    """Return the ids of the columns after a change."""
    if isinstance(change, Split):
        return (*clusters, change.child)
    if isinstance(change, Removal):
        return without(clusters, change.cluster)
    return without(clusters, change.gone) if isinstance(change, Merge) else clusters


def origins(clusters: tuple[int, ...], changes: Sequence[Change]) -> list[int]:
    """Return, for each column after some changes, the column before them that it comes from.

    A new cluster comes from its parent, a merged one from the cluster that took the other in.
    """
    columns = list(range(len(clusters)))
    for change in changes:
        after = clusters_after(clusters, change)
        came = [change.parent if isinstance(change, Split) and one == change.child else one for one in after]
        columns, clusters = [columns[clusters.index(one)] for one in came], after
    return columns


def _follow_one(weights: Tensor, clusters: tuple[int, ...], change: Change, client: int | None) -> Tensor:
    if isinstance(change, Split):
        parts = torch.full((len(weights),), OUTSIDE if client is None else change.part(client))
        return split_weights(weights, clusters.index(change.parent), parts, change.rule)
    if isinstance(change, Removal):
        return remove_weights(weights, clusters.index(change.cluster))
    if isinstance(change, Merge):
        return merge_weights(weights, clusters.index(change.into), clusters.index(change.gone))
    if client in change.where:
        return one_hot(clusters.index(change.where[client]), len(clusters)).to(weights).expand_as(weights)
    return weights


def _follow_components(components: Tensor, weights: Tensor, clusters: tuple[int, ...], change: Change) -> Tensor:
    """ρ (1, clusters, Gaussians): a new cluster mixes the Gaussians like its parent; a merged one adds up π = ω·ρ."""
    if isinstance(change, Split):
        return torch.cat([components, components[:, [clusters.index(change.parent)]]], dim=1)
    if isinstance(change, Merge):
        pair = [clusters.index(change.into), clusters.index(change.gone)]
        mass = (weights[:, pair].unsqueeze(2) * components[:, pair]).sum(dim=1)
        if mass.sum() > 0:
            components = components.clone()
            components[:, pair[0]] = mass / mass.sum()
    stay = clusters_after(clusters, change)
    return components[:, [column for column, cluster in enumerate(clusters) if cluster in stay]]
