"""Hard weights: every client belongs to exactly one cluster."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting.weights import (
    EStepInputs,
    Weights,
    best_cluster,
    hard_weights,
    kept_if_given,
    one_hot,
    own_or_best,
)


@dataclass(frozen=True)
class Single:
    """One cluster for all clients: FedAvg."""

    hard: ClassVar[bool] = True
    one_cluster: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows: all mass on the only cluster."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Keep the only cluster."""
        ones = inputs.log_likelihood.new_ones(len(inputs.segments), 1)
        return Weights(ones), inputs.segments.each(ones)

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Keep the only cluster."""
        return weights


@dataclass(frozen=True)
class HardByLoss:
    """One-hot at argmin_k of the mean local loss: IFCA.

    `zero_empty` reproduces public code that sets the model of a cluster without participants to zero.
    """

    zero_empty: bool = False
    hard: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows; the client has chosen no cluster yet."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Choose anew in every round; a client that begins in a given group trains that group's model first."""
        return hard_weights(kept_if_given(weights, inputs, best_cluster(inputs)), inputs)

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose by loss, like participants."""
        return hard_weights(best_cluster(inputs), inputs)[0].client


@dataclass(frozen=True)
class HardByParameters:
    """One-hot at argmin_k ‖θ_k − θ_i‖₂ after local training: FeSEM.

    A client that has no cluster yet (the first round, or its cluster is gone) starts from the one with the lowest
    loss. A newcomer does not train, so it chooses by loss as well. `zero_empty` reproduces public code that sets the
    model of a cluster without participants to zero.
    """

    zero_empty: bool = False
    hard: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows; the client has chosen no cluster yet."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Train the cluster joined last time."""
        return hard_weights(own_or_best(weights, inputs), inputs)

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Join the cluster nearest to the trained parameters; of several that are equally near, rather stay."""
        own = weights.client.argmax(dim=1)
        stays = distances.gather(1, own.unsqueeze(1))[:, 0] <= distances.amin(dim=1)
        nearest = torch.where(stays, own, distances.argmin(dim=1))
        return Weights(one_hot(nearest, distances.shape[1]).to(weights.client))

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(inputs), inputs)[0].client


@dataclass(frozen=True)
class Assigned:
    """The server's clustering decides, by splits and merges: CFL, ICFL, StoCFL.

    A client that no decision has placed yet takes the cluster with the lowest loss; so does a newcomer.
    """

    hard: ClassVar[bool] = True
    assigned_by_server: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Stay where the server has put the client."""
        return hard_weights(own_or_best(weights, inputs), inputs)

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(inputs), inputs)[0].client


@dataclass(frozen=True)
class InGivenGroup(Assigned):
    """Every client stays in the group that the user gives it: FedAvg and others with one cluster, from given groups."""


@dataclass(frozen=True)
class AssignedAmongAll(Assigned):
    """The server's grouping decides, and every client looks at all clusters' models, to report its losses: CLoVE."""

    assigned_by_server: ClassVar[bool] = False  # the client receives all models, not only that of its cluster


@dataclass(frozen=True)
class ByLabelDistribution:
    """One-hot at the cluster whose class shares are nearest to the client's, by Hellinger distance (HACCS).

    Where all clusters' shares are alike, as in the first round, the lowest loss decides.
    """

    hard: ClassVar[bool] = True
    uses_class_shares: ClassVar[bool] = True

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows; the client has chosen no cluster yet."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Choose anew in every round; a client that begins in a given group trains that group's model first."""
        return hard_weights(kept_if_given(weights, inputs, self._nearest(inputs)), inputs)

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose as participants do."""
        return hard_weights(self._nearest(inputs), inputs)[0].client

    def _nearest(self, inputs: EStepInputs) -> Tensor:
        distances = hellinger(inputs.class_mix, inputs.class_shares)
        alike = distances.amax(dim=1) - distances.amin(dim=1) <= 1e-6
        return torch.where(alike, best_cluster(inputs), distances.argmin(dim=1))


def hellinger(mix: Tensor, shares: Tensor) -> Tensor:
    """√(1 − Σ_c √(p_i(c)·P_k(c))), (clients, clusters), from p (clients, classes) and P (clusters, classes)."""
    return (1 - (mix.unsqueeze(1) * shares).sqrt().sum(dim=2)).clamp_min(0).sqrt()
