"""FedGWC: clients that are alike in how typical their losses are, beside which other clients."""

from dataclasses import dataclass, replace
from math import ceil
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, SplitDecision
from hcfl.tiers.adaptation.group import Labels, group, k_means
from hcfl.tiers.participants import Participants, Statistic

SMALLEST = 2
"""A group of clients has at least so many."""


@dataclass(frozen=True)
class SplitByInteractions:
    """FedGWC: split a cluster by spectral clustering of Gaussian-weighted losses (Licciardi et al., 2025).

    A participant's reward in a round is exp(−(loss − mean)²/2σ²), in the mean over its epochs; mean and σ are those of
    its cluster's participants. P_kj is the mean reward of client k over the rounds in which client j took part, too.
    When P has settled (its mean squared change stayed below ε until every client had its turn), the cluster splits into
    the number of groups, 2 to `most`, with the lowest Davies-Bouldin index; if that is at least 1, it stays.
    """

    epsilon: float = 1e-3
    beta: float = 4.0
    most: int = 5
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "training losses"
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("epsilon", "beta"):
            if not (value := getattr(self, name)) > 0:
                raise InputError(f"{name} = {value}: must be greater than 0")
        if self.most < 2:
            raise InputError(f"most = {self.most}: must be at least 2")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Update P, cluster by cluster, and split the clusters whose P has settled."""
        assert participants.everyone is not None
        losses, clients = participants.reports["training losses"], torch.tensor(participants.clients)
        size, splits = len(participants.everyone), list[SplitDecision]()
        rewards, together = (_resized(participants.memory.get(name), size) for name in ("rewards", "rounds together"))
        quiet = torch.zeros(len(occupied))
        before = participants.memory.get("quiet rounds", quiet)[: len(occupied)]
        quiet[: len(before)] = before
        for column in sorted(set(participants.members.tolist())):
            rows = torch.nonzero(participants.members == column).flatten()
            members = torch.nonzero(participants.everyone == column).flatten()
            if len(rows) < 2:
                continue
            pairs = clients[rows].unsqueeze(1), clients[rows].unsqueeze(0)
            together[pairs] += 1
            change = (gaussian_rewards(losses[rows]).unsqueeze(1) - rewards[pairs]) / together[pairs]
            rewards[pairs] += change
            quiet[column] = quiet[column] + 1 if float(change.square().mean()) < self.epsilon else 0
            if quiet[column] < ceil(len(members) / len(rows)):
                continue
            quiet[column] = 0
            members = members[together.diagonal()[members] > 0]
            block = members.unsqueeze(1), members.unsqueeze(0)
            affinity = perceived_affinity(rewards[block], together[block], self.beta)
            labels = best_partition(affinity, self.most, rng.derive(participants.seed, "interactions", column))
            if labels is not None:
                seen = replace(participants, clients=tuple(members.tolist()), members=participants.everyone[members])
                splits += group(seen, labels, 1 - float(affinity.min()), 1 - float(affinity.mean()), 0.0)
                together[block], rewards[block] = 0, 0
        memory = {"rewards": rewards, "rounds together": together, "quiet rounds": quiet}
        return Decision(tuple(splits), memory=memory)


def _resized(matrix: Tensor | None, size: int) -> Tensor:
    """Return a copy of a square matrix, with zeros for clients that came since."""
    if matrix is None:
        return torch.zeros(size, size)
    more = size - len(matrix)
    return pad(matrix, (0, more, 0, more)) if more else matrix.clone()


def gaussian_rewards(losses: Tensor) -> Tensor:
    """Mean over epochs of exp(−(loss − mean)²/2σ²), (clients,), from losses (clients, epochs); 1 where all agree."""
    squares = (losses.double() - losses.double().mean(dim=0)).square()
    variance = squares.mean(dim=0).clamp_min(torch.finfo(squares.dtype).tiny)
    return (-squares / variance / 2).exp().mean(dim=1).to(losses)


def perceived_affinity(rewards: Tensor, together: Tensor, beta: float) -> Tensor:
    """exp(−β‖v_k − v_j‖²), (clients, clients), of clients' rows of P without their own two entries.

    P is scaled to [0, 1]. Where two clients never took part together, each one's mean reward stands in.
    """
    known = together > 0
    means = (rewards * known).sum(dim=1) / known.sum(dim=1).clamp_min(1)
    filled = torch.where(known, rewards, means.unsqueeze(1)).double()
    low, high = filled.min(), filled.max()
    scaled = (filled - low) / (high - low).clamp_min(torch.finfo(filled.dtype).tiny)
    own = scaled.diagonal()
    of_pair = (own.unsqueeze(1) - scaled.T).square() + (scaled - own.unsqueeze(0)).square()
    squares = (torch.cdist(scaled, scaled).square() - of_pair).clamp_min(0)
    return (-beta * squares).exp().fill_diagonal_(1)


def best_partition(affinity: Tensor, most: int, seed: int) -> Labels | None:
    """Label clients by spectral clustering, with the number of groups of the lowest Davies-Bouldin index below 1."""
    from sklearn.metrics import davies_bouldin_score  # takes a second: not for clients

    roots = affinity.sum(dim=1).rsqrt()
    _, vectors = torch.linalg.eigh(roots.unsqueeze(1) * affinity * roots.unsqueeze(0))
    best, lowest = None, 1.0
    for groups in range(2, min(most, len(affinity) // SMALLEST) + 1):
        points = normalize(vectors[:, -groups:], dim=1)
        labels = k_means(points, groups, seed=seed)
        if labels is None or np.bincount(labels).min() < SMALLEST:
            continue
        index = float(davies_bouldin_score(points.numpy(), labels))
        if index < lowest:
            best, lowest = labels, index
    return best
