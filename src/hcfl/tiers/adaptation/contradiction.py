"""HCFL++ (our own): split clusters that contradict themselves, merge clusters that agree, move clients that dissent."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import (
    Block,
    Decision,
    MergeDecision,
    MoveDecision,
    SoftRule,
    SplitDecision,
    cluster_blocks,
)
from hcfl.tiers.adaptation.decision import moves as moved
from hcfl.tiers.adaptation.split import smaller_part
from hcfl.tiers.conflict import Directions, contradictions, dissents
from hcfl.tiers.cuts import principal_cut
from hcfl.tiers.participants import Participants, Statistic


@dataclass(frozen=True)
class SplitOnContradiction:
    """Split a cluster into two groups that contradict each other by at least ρ; merge clusters below ρ/2.

    The distance only proposes the two groups, by its principal coordinate. The pooled prototypes of the groups decide:
    noise and cameras of single clients average out in them, and one outlier is no group. With a poor extractor φ, noise
    can look like a contradiction; a better φ shows that it is none, and the clusters merge again. In rounds without
    split and merge, clients move that contradict their own cluster by ρ more than another one, because E-steps rarely
    correct single clients that an early split put into the wrong part. A client that is left alone in its cluster
    joins the cluster that it contradicts least, if by less than ρ/2, as clusters merge. There is one split or merge per
    round; clusters without clients are removed. `rule` says what a split does to weights: with `lean`, members lean
    towards their part, so later E-steps can overrule the split, while nearly equal heads do not undo it immediately.
    With `remembers`, a cluster that had clients at the end of a step of time stays without them, because its concept
    may come back.
    """

    rho: float = 0.4
    rule: SoftRule = "lean"
    remembers: bool = False
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = "prototypes"
    splits: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.rho > 0:
            raise InputError(f"rho = {self.rho}: must be greater than 0")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Merge the two clusters that agree best, if any do; else split the one whose halves agree least; else move."""
        assert distance is not None
        assert participants.prototypes is not None
        empty = tuple(torch.nonzero(~occupied).flatten().tolist())
        directions = Directions.of(participants.prototypes)
        if merge := self._merge(participants, directions):
            return Decision(remove=empty, merges=(merge,))
        if split := self.split(participants, directions, distance):
            return Decision((split,), empty)
        moves = self.moves(participants, directions) + self._joins(participants, directions)
        return Decision(remove=empty, moves=moves)

    def _merge(self, participants: Participants, directions: Directions) -> MergeDecision | None:
        """Find the two clusters whose participants contradict each other least; they must share classes."""
        clusters, inside = members_of(participants)
        scores, sizes = contradictions(directions, inside).cpu(), inside.sum(dim=1)
        scores = scores.masked_fill(~scores.isfinite(), torch.inf).fill_diagonal_(torch.inf)
        place = int(scores.argmin())
        one, other = place // len(clusters), place % len(clusters)
        if not scores[one, other] < self.rho / 2:
            return None
        into, gone = (one, other) if sizes[one] >= sizes[other] else (other, one)
        return MergeDecision(int(clusters[into]), int(clusters[gone]), float(scores[one, other]), self.rho / 2)

    def split(
        self,
        participants: Participants,
        directions: Directions,
        distance: Tensor,
        believed: Callable[[Block], bool] = lambda block: True,
    ) -> SplitDecision | None:
        """Find the cluster whose halves contradict each other most, among those whose contradiction is believed."""
        found, most = None, self.rho
        for block in cluster_blocks(participants, distance).values():
            parts = principal_halves(block.distance)
            groups = torch.zeros(2, len(participants.clients), dtype=torch.bool)
            groups[torch.tensor(parts).long(), block.rows] = True
            score = float(contradictions(directions, groups)[0, 1])
            if score >= most and believed(block):
                mean = float(block.distance.mean())
                found, most = block.split(parts, self.rule, maximum=score, mean=mean, threshold=self.rho), score
        return found

    def moves(self, participants: Participants, directions: Directions) -> tuple[MoveDecision, ...]:
        """Find the clients that contradict their own cluster by ρ more than another one."""
        clusters, inside = members_of(participants)
        dissent = dissents(directions, inside).cpu()
        least, place = dissent.min(dim=1)
        return moved(participants, clusters[place], dissent[inside.T] - least >= self.rho)

    def _joins(self, participants: Participants, directions: Directions) -> tuple[MoveDecision, ...]:
        """Find the clusters that clients without company can join; as for merging, both must share two classes."""
        clusters, inside = members_of(participants)
        alone = without_company(participants)
        theirs = directions.pooled(inside).held.to(directions.units)
        comparable = (directions.held.to(directions.units) @ theirs.T >= 2).cpu() & ~inside[:, alone].any(dim=1)
        least, place = dissents(directions, inside).cpu().masked_fill(~comparable, torch.inf).min(dim=1)
        return moved(participants, clusters[place], alone & (least < self.rho / 2))


def without_company(participants: Participants) -> Tensor:
    """Return which participants no other client, present or absent, shares a cluster with, (participants,)."""
    everyone = participants.members if participants.everyone is None else participants.everyone
    return torch.bincount(everyone[everyone >= 0])[participants.members] == 1


def members_of(participants: Participants) -> tuple[Tensor, Tensor]:
    """Return the participants' clusters, (clusters,), and their memberships, (clusters, participants), as booleans."""
    clusters = torch.tensor(sorted(set(participants.members.tolist())))
    return clusters, clusters.unsqueeze(1) == participants.members


def principal_halves(distance: Tensor) -> list[bool]:
    """Cut clients in two by the sign of their principal coordinate; True marks the smaller part."""
    return smaller_part(principal_cut(distance).long().numpy())
