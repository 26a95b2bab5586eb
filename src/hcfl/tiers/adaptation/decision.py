"""What an adaptation looks at, and what it can decide."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from hcfl.tiers.participants import Participants, Statistic

SoftRule = Literal["halve", "lean", "one-hot", "uniform"]
"""What a split does to soft weights: halve them between the two parts ("SCWU"), let members lean to their part, make
members one-hot there, or make every client uniform over all clusters and halve the weights of samples only."""


@dataclass(frozen=True)
class SplitDecision:
    """Cut one cluster in two. Parts hold client ids; the first part keeps the cluster, the second founds a new one."""

    parent: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    rule: SoftRule
    maximum: float
    mean: float
    threshold: float


@dataclass(frozen=True)
class MergeDecision:
    """Let one cluster take in another, with all its clients and their weights."""

    into: int
    gone: int
    distance: float
    threshold: float


@dataclass(frozen=True)
class MoveDecision:
    """Put one client into another cluster, with all its weight there."""

    client: int
    to: int
    with_model: bool
    """Whether the model it has just trained counts in the new cluster's average; otherwise it counts in none."""


@dataclass(frozen=True)
class Decision:
    """What changes after a round; clusters are columns as they stand before the change."""

    splits: tuple[SplitDecision, ...] = ()
    remove: tuple[int, ...] = ()
    merges: tuple[MergeDecision, ...] = ()
    moves: tuple[MoveDecision, ...] = ()
    lost_ids: bool = False
    """Whether splits name positions instead of client ids, as public code of CFL does (see `hcfl.core.lost_ids`)."""
    memory: Mapping[str, Tensor] | None = None
    """What the next decision finds in `Participants.memory`; None: what this one found."""


class Adaptation(Protocol):
    """A rule that looks at a round's participants and decides how the clusters change."""

    @property
    def adaptive(self) -> bool:
        """Whether it can change clusters at all."""
        ...

    @property
    def uses_distance(self) -> bool:
        """Whether it decides by the distance of tier 4."""
        ...

    @property
    def needs(self) -> Statistic | None:
        """Which statistic it looks at itself, beside the distance; None: no other."""
        ...

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Return what changes after this round.

        `distance` is D (participants, participants), or None without a tier 4; `occupied` (clusters,) says which
        clusters have clients, absent ones included. An adaptation that changes nothing returns `Decision()`.
        """
        ...


@dataclass(frozen=True)
class Fixed:
    """K never changes."""

    adaptive: ClassVar[bool] = False
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = None

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Change nothing."""
        return Decision()


@dataclass(frozen=True)
class Block:
    """The participants of one cluster, and the distances between them."""

    cluster: int
    rows: Tensor
    clients: tuple[int, ...]
    distance: Tensor

    def split(
        self,
        in_second: list[bool],
        rule: SoftRule,
        maximum: float,
        mean: float,
        threshold: float,
    ) -> SplitDecision:
        """Name the clients of both parts."""
        return SplitDecision(
            parent=self.cluster,
            first=tuple(c for c, second in zip(self.clients, in_second, strict=True) if not second),
            second=tuple(c for c, second in zip(self.clients, in_second, strict=True) if second),
            rule=rule,
            maximum=maximum,
            mean=mean,
            threshold=threshold,
        )


def cluster_blocks(participants: Participants, distance: Tensor) -> dict[int, Block]:
    """Cut D into one block for each cluster that has at least two participants."""
    blocks, listed = {}, participants.listed
    present = sorted(set(participants.members.tolist())) if listed is None else range(listed.shape[1])
    for cluster in present:
        inside = participants.members == cluster if listed is None else listed[:, cluster]
        rows = torch.nonzero(inside).flatten()
        if len(rows) > 1:
            clients = tuple(participants.clients[row] for row in rows.tolist())
            blocks[cluster] = Block(cluster, rows, clients, distance[rows][:, rows])
    return blocks


def moves(
    participants: Participants, targets: Tensor, moving: Tensor, with_model: bool = False
) -> tuple[MoveDecision, ...]:
    """Move the clients that `moving` marks to their clusters in `targets`, where these differ; both (participants,)."""
    rows = zip(participants.clients, participants.members.tolist(), targets.tolist(), moving.tolist(), strict=True)
    return tuple(MoveDecision(client, to, with_model) for client, now, to, moves_now in rows if moves_now and now != to)
