"""Hard weights: every client belongs to exactly one cluster."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting.weights import Seen, Weights, best_cluster, hard_weights, one_hot, own_or_best


@dataclass(frozen=True)
class Single:
    """One cluster for everybody: FedAvg."""

    hard: bool = True
    one_cluster: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """All mass on the only cluster."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Keep the only cluster."""
        ones = seen.log_likelihood.new_ones(len(seen.segments), 1)
        return Weights(ones), seen.segments.each(ones)

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Keep the only cluster."""
        return weights


@dataclass(frozen=True)
class HardByLoss:
    """One-hot at argmin_k of the mean local loss: IFCA.

    `zero_empty` reproduces public code that sets the model of a cluster without participants to zero.
    """

    zero_empty: bool = False
    hard: bool = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Nothing is chosen yet."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Choose anew in every round."""
        return hard_weights(best_cluster(seen), seen)

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Choose by loss like everybody."""
        return hard_weights(best_cluster(seen), seen)[0].client


@dataclass(frozen=True)
class HardByParameters:
    """One-hot at argmin_k ‖θ_k − θ_i‖₂ after local training: FeSEM.

    A client that has no cluster yet (the first round, or its cluster is gone) starts from the one with the lowest
    loss. A newcomer does not train, so it chooses by loss as well. `zero_empty` reproduces public code that sets the
    model of a cluster without participants to zero.
    """

    zero_empty: bool = False
    hard: bool = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Nothing is chosen yet."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Train the cluster joined last time."""
        return hard_weights(own_or_best(weights, seen), seen)

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Join the cluster nearest to the trained parameters."""
        return Weights(one_hot(distances.argmin(dim=1), distances.shape[1]).to(weights.client))

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(seen), seen)[0].client


@dataclass(frozen=True)
class Assigned:
    """The server's clustering decides, by splits and merges: CFL, ICFL, StoCFL.

    A client that no decision has placed yet takes the cluster with the lowest loss; so does a newcomer.
    """

    hard: bool = True
    assigned_by_server: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Stay where the server has put the client."""
        return hard_weights(own_or_best(weights, seen), seen)

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(seen), seen)[0].client


@dataclass(frozen=True)
class ByLabelDistribution:
    """One-hot at the cluster whose class shares are nearest to the client's, by Hellinger distance (HACCS).

    Where all clusters' shares are alike, as in the first round, the lowest loss decides.
    """

    hard: bool = True
    uses_class_shares: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Nothing is chosen yet."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Choose anew in every round."""
        return hard_weights(self._nearest(seen), seen)

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Choose like everybody."""
        return hard_weights(self._nearest(seen), seen)[0].client

    def _nearest(self, seen: Seen) -> Tensor:
        distances = hellinger(seen.class_mix, seen.class_shares)
        alike = distances.amax(dim=1) - distances.amin(dim=1) <= 1e-6
        return torch.where(alike, best_cluster(seen), distances.argmin(dim=1))


def hellinger(mix: Tensor, shares: Tensor) -> Tensor:
    """√(1 − Σ_c √(p_i(c)·P_k(c))), (clients, clusters), from p (clients, classes) and P (clusters, classes)."""
    return (1 - (mix.unsqueeze(1) * shares).sqrt().sum(dim=2)).clamp_min(0).sqrt()
