"""What clustering weights are, what a client finds them from, and what every rule is made of."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Weights:
    """The clustering weights of one client; rows sum to 1."""

    client: Tensor
    """ω̃_i, (clusters,): used for prediction, and all that ever leaves the client."""
    sample: Tensor | None = None
    """ω_ij, (samples, clusters), where the method weighs each sample by itself; it stays on the client."""
    components: Tensor | None = None
    """ρ_i, (clusters, Gaussians), where inputs have a density: π_i(a, k) = ω̃_ik·ρ_ika. Rows sum to 1."""


@dataclass(frozen=True)
class Seen:
    """What a client sees before it trains."""

    log_likelihood: Tensor
    """log L_k(x_j, y_j), (samples, clusters); −∞ for clusters that the client does not look at."""
    class_mix: Tensor
    """p_i(y), the client's own class shares, (classes,)."""
    class_shares: Tensor
    """P_k(y), the clusters' class shares, (clusters, classes); all alike before the first report."""
    round: int = 1
    first: bool = True
    """Whether it takes part for the first time."""


class Weighting(Protocol):
    """How a client finds its weights in a round."""

    @property
    def hard(self) -> bool:
        """Whether every client belongs to exactly one cluster."""
        ...

    def start(self, client: Tensor, samples: int) -> Weights:
        """Return the weights of a client that takes part for the first time, from the server's row for it."""
        ...

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Return the new weights and the responsibilities γ (samples, clusters) that weigh local training."""
        ...

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
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


def hard_weights(cluster: int | Tensor, log_likelihood: Tensor) -> tuple[Weights, Tensor]:
    """Return weights with all mass on one cluster, and the same for every sample."""
    weights = one_hot(cluster, log_likelihood.shape[1]).to(log_likelihood)
    return Weights(weights), weights.expand_as(log_likelihood)


def own_or_best(weights: Weights, log_likelihood: Tensor) -> Tensor:
    """Return the cluster that has all of a client's mass; where none has, the one with the lowest loss."""
    return weights.client.argmax() if weights.client.max() == 1 else best_cluster(log_likelihood)
