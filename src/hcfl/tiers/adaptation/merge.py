"""Merging: StoCFL."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, MergeDecision
from hcfl.tiers.participants import Participants, Statistic


@dataclass(frozen=True)
class MergeSimilar:
    """StoCFL: clusters whose mean representations point the same way become one (Zeng et al., 2023).

    Of all pairs with a cosine above τ the largest merges first; the mean of the two then stands for both.
    """

    tau: float = 0.1
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = True
    needs: ClassVar[Statistic | None] = None
    merges: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not -1 <= self.tau <= 1:
            raise InputError(f"tau = {self.tau}: must lie between -1 and 1")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Merge until no pair of clusters is more similar than τ; of each pair, the older cluster stays."""
        assert distance is not None
        clusters = sorted(set(participants.members.tolist()))
        inside = torch.stack([participants.members == cluster for cluster in clusters]).double()
        inner = inside @ inner_products(participants, distance) @ inside.T
        merges = []
        while len(clusters) > 1:
            cosine = cosine_of_means(inner)
            best = int(cosine.argmax())
            first, second = sorted((best // len(clusters), best % len(clusters)))
            if (similarity := float(cosine[first, second])) <= self.tau:
                break
            merges.append(MergeDecision(clusters[first], clusters[second], 1 - similarity, 1 - self.tau))
            inner[first] += inner[second]
            inner[:, first] += inner[:, second]
            keep = [row for row in range(len(clusters)) if row != second]
            inner = inner[keep][:, keep]
            del clusters[second]
        return Decision(merges=tuple(merges))


def inner_products(participants: Participants, distance: Tensor) -> Tensor:
    """⟨r_i, r_j⟩ of the clients' representations from 1 − D, their cosine, and their lengths, where they have one."""
    cosine = 1 - distance.double()
    if participants.signatures is None:
        return cosine
    lengths = torch.linalg.vector_norm(participants.signatures.flatten(1), dim=1).double().cpu()
    return cosine * torch.outer(lengths, lengths)


def cosine_of_means(inner: Tensor) -> Tensor:
    """Cosine of clusters' mean representations from summed inner products (clusters, clusters); −∞ on the diagonal.

    With S_ab = Σ_{i∈a, j∈b} ⟨r_i, r_j⟩ the number of clients cancels: cos = S_ab / √(S_aa·S_bb).
    """
    lengths = inner.diagonal().clamp_min(torch.finfo(inner.dtype).tiny).sqrt()
    return (inner / torch.outer(lengths, lengths)).fill_diagonal_(-torch.inf)
