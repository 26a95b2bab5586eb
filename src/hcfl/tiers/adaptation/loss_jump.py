"""FedDrift: a client whose loss jumps founds a cluster; clusters whose models serve each other's clients merge."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, MergeDecision, SplitDecision, moves
from hcfl.tiers.participants import Participants, Statistic


@dataclass(frozen=True)
class LossJump:
    """FedDrift: new clusters on a jump of the loss, hierarchical merging by cross-losses (Jothimurugesan et al., 2023).

    When a step of time begins, a client whose lowest loss on its new data, over all models, is more than δ above its
    loss in the round before founds a cluster of its own; every other client joins the model with the lowest loss. Then
    clusters merge by complete linkage while d(i, j) = max(L_ij − L_jj, L_ji − L_ii) < δ, where L_ij is the loss of
    model i on the new data of cluster j's clients. In the first round all clients found clusters: nothing is known of
    them. Clusters without clients stay.
    """

    delta: float = 1.5
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "losses"
    splits: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise InputError(f"delta = {self.delta}: must be greater than 0")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Act in the first round of a step; in the others, remember each client's loss on its own cluster."""
        assert participants.everyone is not None
        losses, ids = participants.reports["losses"], torch.tensor(participants.clients)
        before = participants.memory.get("losses", torch.full((len(participants.everyone),), torch.nan))
        known = float(participants.memory.get("step", torch.tensor([-1.0]))[0])
        own = losses.gather(1, participants.members.unsqueeze(1))[:, 0]
        last = before.clone()
        last[ids] = own
        memory = {"losses": last, "step": torch.tensor([float(participants.step)])}
        if known < 0:
            everyone = torch.ones(len(ids), dtype=torch.bool)
            return Decision(splits=self._founded(participants, everyone, torch.zeros(len(ids))), memory=memory)
        if participants.step == known:
            return Decision(memory=memory)
        lowest, best = losses.min(dim=1)
        rise = lowest - before[ids]
        jumped = rise > self.delta  # false for a client of which nothing is known
        stay = torch.where(jumped, participants.members, best)
        return Decision(
            splits=self._founded(participants, jumped, rise),
            moves=moves(participants, best, ~jumped),
            merges=tuple(self._merges(losses[~jumped], stay[~jumped])),
            memory=memory,
        )

    def _founded(self, participants: Participants, alone: Tensor, rise: Tensor) -> tuple[SplitDecision, ...]:
        """Give each of some clients a cluster of its own; of a cluster that all participants leave, one keeps it."""
        found = []
        for cluster in sorted(set(participants.members.tolist())):
            inside = [row for row, member in enumerate(participants.members.tolist()) if member == cluster]
            leaving = [row for row in inside if alone[row]]
            leaving = leaving[1:] if len(leaving) == len(inside) else leaving
            staying = tuple(participants.clients[row] for row in inside if row not in leaving)
            for row in leaving:
                second, risen = (participants.clients[row],), float(rise[row])
                found.append(SplitDecision(cluster, staying, second, "one-hot", risen, risen, self.delta))
        return tuple(found)

    def _merges(self, losses: Tensor, members: Tensor) -> list[MergeDecision]:
        """Merge the nearest two clusters until none are nearer than δ, by clients' losses, (clients, clusters)."""
        clusters = sorted(set(members.tolist()))
        if len(clusters) < 2:
            return []
        inside = torch.stack([members == cluster for cluster in clusters]).double()
        cross = (inside @ losses[:, clusters].double()) / inside.sum(dim=1, keepdim=True)  # clients of a row, models
        excess = (cross - cross.diagonal().unsqueeze(1)).clamp_min(0)
        distance = torch.maximum(excess, excess.T).fill_diagonal_(torch.inf)
        found = []
        while len(clusters) > 1 and float(distance.min()) < self.delta:
            place = int(distance.argmin())
            first, second = sorted((place // len(clusters), place % len(clusters)))
            found.append(MergeDecision(clusters[first], clusters[second], float(distance[first, second]), self.delta))
            farthest = torch.maximum(distance[first], distance[second])
            distance[first], distance[:, first] = farthest, farthest
            distance[first, first] = torch.inf
            keep = [row for row in range(len(clusters)) if row != second]
            distance = distance[keep][:, keep]
            del clusters[second]
        return found
