"""CLoVE: clients are the vectors of their losses on all models."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, moves
from hcfl.tiers.adaptation.group import Labels, k_means
from hcfl.tiers.participants import Participants, Statistic


@dataclass(frozen=True)
class LossVectorGroups:
    """CLoVE: group clients by their vectors of losses on all K models, in every round (Bhatia et al., 2026).

    Clients of one kind have similar losses on every model, also where no model is good yet. The K groups are matched to
    the K models so that the sum of all clients' losses is smallest. A client that changes its cluster has trained
    another cluster's model in this round, so its model counts in no average.
    """

    clustering: Literal["k-means", "agglomerative"] = "k-means"
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "losses"
    deals_among_clusters: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.clustering not in ("k-means", "agglomerative"):
            raise InputError(f"clustering = {self.clustering!r}: must be k-means or agglomerative")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Group the participants, and move those whose group belongs to another model."""
        losses = participants.reports["losses"]
        seed = rng.derive(participants.seed, "loss vectors", participants.round)
        if (labels := grouped(losses, losses.shape[1], self.clustering, seed)) is None:
            return Decision()
        wanted = torch.from_numpy(matched(losses, labels))
        return Decision(moves=moves(participants, wanted, torch.ones(len(wanted), dtype=torch.bool)))


def grouped(losses: Tensor, groups: int, clustering: str, seed: int) -> Labels | None:
    """Label the rows of losses (clients, models) by so many groups; None with too few distinct rows."""
    if clustering == "k-means":
        return k_means(losses, groups, seed=seed)
    from sklearn.cluster import AgglomerativeClustering  # takes a second: not for clients

    rows = losses.double().cpu().numpy()
    if groups < 2 or len(np.unique(rows, axis=0)) < groups:
        return None
    labels: Labels = AgglomerativeClustering(groups).fit_predict(rows)
    return labels


def matched(losses: Tensor, labels: Labels) -> Labels:
    """Return each client's model: a model for each group, so that the clients' losses sum up to the least.

    From losses (clients, models) and groups (clients,), as many groups as models.
    """
    from scipy.optimize import linear_sum_assignment

    rows = losses.double().cpu().numpy()
    costs = np.stack([rows[labels == label].sum(axis=0) for label in range(losses.shape[1])])
    models: Labels = linear_sum_assignment(costs)[1]
    return models[labels]
