"""Tier 2, clustering weights: how much a client, or each of its samples, belongs to each cluster (spec §2, §3)."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from hcfl.errors import InputError


@dataclass(frozen=True)
class Weights:
    """The clustering weights of one client; rows sum to 1."""

    client: Tensor
    """ω̃_i, (clusters,): used for prediction, and all that ever leaves the client."""
    sample: Tensor | None = None
    """ω_ij, (samples, clusters), where the method weighs each sample by itself; it stays on the client."""


class Weighting(Protocol):
    """How a client finds its weights in a round."""

    @property
    def hard(self) -> bool:
        """Whether every client belongs to exactly one cluster."""
        ...

    def start(self, client: Tensor, samples: int) -> Weights:
        """Return the weights of a client that takes part for the first time, from the server's row for it."""
        ...

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """Return the new weights and the responsibilities γ (samples, clusters) that weigh local training."""
        ...

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """Return new client-wise weights for somebody who has labelled samples but does not train."""
        ...


@runtime_checkable
class SettlesAfterTraining(Protocol):
    """A weighting that decides once local training is over, by where the trained parameters ended."""

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Return the weights given ‖θ_k − θ_i‖₂ for every cluster k, (clusters,)."""
        ...


def uniform(clusters: int) -> Tensor:
    """Return the weights of somebody of whom nothing is known."""
    return torch.full((clusters,), 1.0 / clusters)


def one_hot(cluster: int | Tensor, clusters: int) -> Tensor:
    """Return weights with all mass on one cluster."""
    return torch.nn.functional.one_hot(torch.as_tensor(cluster), clusters).float()


def responsibilities(weights: Tensor, log_likelihood: Tensor) -> Tensor:
    """γ_jk = softmax_k(log ω_k + log L_k): eq. (3), for client-wise or sample-wise weights."""
    return torch.softmax(weights.log() + log_likelihood, dim=1)


def best_cluster(log_likelihood: Tensor) -> Tensor:
    """Return the cluster with the lowest mean loss over the samples."""
    return log_likelihood.mean(dim=0).argmax()


def _hard(cluster: int | Tensor, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
    weights = one_hot(cluster, log_likelihood.shape[1]).to(log_likelihood)
    return Weights(weights), weights.expand_as(log_likelihood)


def _own_or_best(weights: Weights, log_likelihood: Tensor) -> Tensor:
    """Return the cluster that has all of a client's mass; where none has, the one with the lowest loss."""
    return weights.client.argmax() if weights.client.max() == 1 else best_cluster(log_likelihood)


@dataclass(frozen=True)
class Single:
    """One cluster for everybody: FedAvg."""

    hard: bool = True

    def start(self, client: Tensor, samples: int) -> Weights:
        """All mass on the only cluster."""
        return Weights(client)

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """Keep the only cluster."""
        return _hard(0, log_likelihood)

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """Keep the only cluster."""
        return weights


@dataclass(frozen=True)
class HardByLoss:
    """One-hot at argmin_k of the mean local loss: IFCA."""

    hard: bool = True

    def start(self, client: Tensor, samples: int) -> Weights:
        """Nothing is chosen yet."""
        return Weights(client)

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """Choose anew in every round."""
        return _hard(best_cluster(log_likelihood), log_likelihood)

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """Choose by loss like everybody."""
        return _hard(best_cluster(log_likelihood), log_likelihood)[0].client


@dataclass(frozen=True)
class HardByParameters:
    """One-hot at argmin_k ‖θ_k − θ_i‖₂ after local training: FeSEM.

    A client that has no cluster yet (the first round, or its cluster is gone) starts from the one with the lowest
    loss. A newcomer does not train, so it chooses by loss as well.
    """

    hard: bool = True

    def start(self, client: Tensor, samples: int) -> Weights:
        """Nothing is chosen yet."""
        return Weights(client)

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """Train the cluster joined last time."""
        return _hard(_own_or_best(weights, log_likelihood), log_likelihood)

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Join the cluster nearest to the trained parameters."""
        return Weights(one_hot(distances.argmin(), len(distances)).to(weights.client))

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """Choose by loss."""
        return _hard(best_cluster(log_likelihood), log_likelihood)[0].client


@dataclass(frozen=True)
class Assigned:
    """The server's clustering decides, by splits and merges: CFL, ICFL, StoCFL.

    A client that no decision has placed yet takes the cluster with the lowest loss; so does a newcomer.
    """

    hard: bool = True

    def start(self, client: Tensor, samples: int) -> Weights:
        """Take the server's row."""
        return Weights(client)

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """Stay where the server has put the client."""
        return _hard(_own_or_best(weights, log_likelihood), log_likelihood)

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """Choose by loss."""
        return _hard(best_cluster(log_likelihood), log_likelihood)[0].client


@dataclass(frozen=True)
class SoftEM:
    """γ_jk = softmax_k(log ω_k + log L_k), ω_k = mean_j γ_jk: FedEM, FedRC."""

    hard: bool = False

    def start(self, client: Tensor, samples: int) -> Weights:
        """Take the server's row."""
        return Weights(client)

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """One client-wise EM step."""
        gamma = responsibilities(weights.client, log_likelihood)
        return Weights(gamma.mean(dim=0)), gamma

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """One client-wise EM step."""
        return responsibilities(weights, log_likelihood).mean(dim=0)


@dataclass(frozen=True)
class SampleWiseEM:
    """Sample-wise weights in training, client-wise ones at test time: HCFL+, eqs. (3)-(5).

    `mu` is μ̃ = 1/(1+μN) in [0, 1]: the larger, the weaker the penalty that ties a sample's weights to its client's.
    μ̃ = 0 is client-wise soft EM.
    """

    mu: float
    hard: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1:
            raise InputError(f"mu = {self.mu}: must lie between 0 and 1")

    def start(self, client: Tensor, samples: int) -> Weights:
        """Take the server's row for the client and for each sample."""
        return Weights(client, client.repeat(samples, 1))

    def e_step(self, weights: Weights, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
        """One EM step, all terms from the weights at the start of the round."""
        assert weights.sample is not None
        gamma = responsibilities(weights.sample, log_likelihood)  # (3)
        client = responsibilities(weights.client, log_likelihood).mean(dim=0)  # (4)
        return replace(weights, client=client, sample=self.mu * gamma + (1 - self.mu) * client), gamma  # (5)

    def newcomer(self, weights: Tensor, log_likelihood: Tensor) -> Tensor:
        """One client-wise EM step: ω̃ never depends on the sample-wise weights."""
        return responsibilities(weights, log_likelihood).mean(dim=0)
