"""FedDAA: clients whose labels mean something else than before move; clients whose inputs only look different stay."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, MoveDecision, SplitDecision
from hcfl.tiers.adaptation.group import Labels, k_means, regroup
from hcfl.tiers.participants import Participants, Prototypes, Statistic


@dataclass(frozen=True)
class RealDriftGroups:
    """FedDAA: groups of class prototypes, and a test that tells real from virtual drift (Peng & Tang, 2025).

    A client is described by the mean feature of each of its classes. In round `after`, k-means groups the clients, with
    the number of groups, 2 to `most`, of the largest silhouette. When a step of time begins, it groups their new
    prototypes, and each client's old ones go to the nearest of the new centres. Where both are the same centre, P(x) or
    P(y) may have changed, but not P(y|x): drift is virtual, and the client stays in its cluster. Where they differ,
    drift is real, and the client joins the cluster of those who were in its new group already; if there are none, the
    clients of that group found a cluster. Clusters without clients stay.
    """

    after: int = 3
    most: int = 9
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "prototypes"
    groups_all_at_once: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.after < 1:
            raise InputError(f"after = {self.after}: must be at least 1")
        if self.most < 2:
            raise InputError(f"most = {self.most}: must be at least 2")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Group once, then look for real drift in the first round of each step."""
        assert participants.prototypes is not None
        assert participants.everyone is not None
        now, known = participants.prototypes, Known.of(participants.memory, len(participants.everyone))
        memory = known.updated(participants, now)
        if not known.grouped:
            found = self._first_groups(participants, now, len(occupied)) if participants.round >= self.after else None
            if found is None:
                return Decision(memory=memory)
            return replace(found, memory={**memory, "grouped": torch.ones(1)})
        if participants.step == known.step:
            return Decision(memory=memory)
        return replace(self._drift(participants, now, known), memory=memory)

    def _first_groups(self, participants: Participants, now: Prototypes, clusters: int) -> Decision | None:
        points = profiles(now.class_means, now.class_counts, now)
        found = self._grouped(participants, points)
        if found is None:
            return None
        labels, _, width = found
        return regroup(participants, labels, clusters, width, width, 0.0)

    def _drift(self, participants: Participants, now: Prototypes, known: "Known") -> Decision:
        """Find the clients whose old and new prototypes are nearest to different centres, and place them."""
        ids = list(participants.clients)
        seen = torch.tensor([bool(known.counts[client].any()) for client in ids])
        found = self._grouped(participants, profiles(now.class_means, now.class_counts, now))
        if found is None:
            return Decision()
        labels, centres, width = found
        before = profiles(known.means[ids].to(now.class_means), known.counts[ids].to(now.class_counts), now)
        was = torch.cdist(before, centres).argmin(dim=1)
        assert participants.unplaced is not None
        moving = seen & (was.cpu() != torch.from_numpy(labels)) | participants.unplaced
        return placed(participants, labels, moving, width)

    def _grouped(self, participants: Participants, points: Tensor) -> "tuple[Labels, Tensor, float] | None":
        """Return labels (clients,) and centres (groups, …) of the best number of groups, and its silhouette.

        None where there are too few different clients.
        """
        from sklearn.metrics import silhouette_score  # takes a second: not for clients

        seed = rng.derive(participants.seed, "prototypes", participants.round)
        best: tuple[Labels, float] | None = None
        for groups in range(2, min(self.most, len(points) - 1) + 1):
            labels = k_means(points, groups, seed=seed)
            if labels is None:
                break
            width = float(silhouette_score(points.cpu().numpy(), labels))
            if best is None or width > best[1]:
                best = labels, width
        if best is None:
            return None
        labels, width = best
        inside = torch.nn.functional.one_hot(torch.from_numpy(labels).long()).T.to(points)
        return labels, inside @ points / inside.sum(dim=1, keepdim=True), width


@dataclass(frozen=True)
class Known:
    """What the server remembers of every client from the round before."""

    means: Tensor
    """(clients, classes, features)."""
    counts: Tensor
    """(clients, classes); all 0 for a client that never reported."""
    step: int
    grouped: bool

    @staticmethod
    def of(memory: Mapping[str, Tensor], clients: int) -> "Known":
        """Read the memory of the last decision; clients may have come since."""
        if not memory:
            return Known(torch.zeros(clients, 1, 1), torch.zeros(clients, 1), 0, False)
        means, counts = (_longer(memory[name], clients) for name in ("class means", "class counts"))
        return Known(means, counts, int(memory["step"][0]), bool(memory["grouped"][0]))

    def updated(self, participants: Participants, now: Prototypes) -> dict[str, Tensor]:
        """Return the memory after a round."""
        clients, shape = len(self.counts), now.class_means.shape[1:]
        means = self.means.clone() if self.means.shape[1:] == shape else torch.zeros(clients, *shape)
        counts = self.counts.clone() if self.counts.shape[1] == shape[0] else torch.zeros(clients, shape[0])
        ids = list(participants.clients)
        means[ids], counts[ids] = now.class_means.float().cpu(), now.class_counts.float().cpu()
        return {
            "class means": means,
            "class counts": counts,
            "step": torch.tensor([float(participants.step)]),
            "grouped": torch.tensor([float(self.grouped)]),
        }


def _longer(table: Tensor, clients: int) -> Tensor:
    return torch.cat([table, table.new_zeros(clients - len(table), *table.shape[1:])])


def profiles(means: Tensor, counts: Tensor, all_clients: Prototypes) -> Tensor:
    """Return each client's class means relative to their own centre, in one row, (clients, classes · features).

    A class that a client lacks is what `all_clients` have in the mean. A camera that shifts all features alike leaves
    the profile as it is; labels that change their meaning permute it.
    """
    known = (all_clients.class_counts > 0).to(means).unsqueeze(2)
    usual = (all_clients.class_means * known).sum(dim=0) / known.sum(dim=0).clamp_min(1)
    filled = torch.where((counts > 0).unsqueeze(2), means, usual)
    return (filled - filled.mean(dim=1, keepdim=True)).flatten(1).double()


def placed(participants: Participants, labels: Labels, moving: Tensor, width: float) -> Decision:
    """Move clients, marked by `moving`, to the cluster of their group's other clients, or let them found one together.

    The cluster of a group is the one that most of its staying clients have. Where none stays in a group, its clients
    leave the cluster that most of them come from; if no other client is in that, they keep it.
    """
    members, clients = participants.members.numpy(), np.array(participants.clients)
    assert participants.everyone is not None
    goes: NDArray[np.bool_] = moving.numpy()
    moves, splits = list[MoveDecision](), list[SplitDecision]()
    for label in sorted(set(labels[goes].tolist())):
        mine = goes & (labels == label)
        stay = members[~goes & (labels == label)]
        to = int(np.bincount(stay if len(stay) else members[mine]).argmax())
        moves += [MoveDecision(int(client), to, with_model=False) for client in clients[mine & (members != to)]]
        others = set(np.flatnonzero(participants.everyone.numpy() == to).tolist()) - set(clients[goes].tolist())
        if not len(stay) and others:
            first, second = tuple(sorted(others)), tuple(clients[mine].tolist())
            splits.append(SplitDecision(to, first, second, "one-hot", width, width, 0.0))
    return Decision(tuple(splits), moves=tuple(moves))
