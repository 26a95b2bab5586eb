"""Clustering weights, the input of an E-step, and the functions that the rules share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class Weights:
    """The clustering weights of several clients; rows sum to 1."""

    client: Tensor
    """ω̃, (clients, clusters): used for prediction; the only weights that a client sends."""
    sample: Tensor | None = None
    """ω, (samples of all these clients, clusters), where the method has weights for each sample; they stay on the
    client."""
    components: Tensor | None = None
    """ρ, (clients, clusters, Gaussians), where inputs have a density: π_i(a, k) = ω̃_ik·ρ_ika. Rows sum to 1."""

    @staticmethod
    def join(several: Sequence["Weights"]) -> "Weights":
        """Return the weights of several groups as one; all have the same parts."""
        samples = [weights.sample for weights in several if weights.sample is not None]
        components = [weights.components for weights in several if weights.components is not None]
        return Weights(
            torch.cat([weights.client for weights in several]),
            torch.cat(samples) if samples else None,
            torch.cat(components) if components else None,
        )

    def split(self, segments: Segments) -> list["Weights"]:
        """Return each client's weights, as a group of one that shares no memory with the others."""
        absent = [None] * len(segments)
        clients = _copies(torch.split(self.client, 1))
        samples = absent if self.sample is None else _copies(segments.split(self.sample))
        components = absent if self.components is None else _copies(torch.split(self.components, 1))
        return [Weights(*parts) for parts in zip(clients, samples, components, strict=True)]


def _copies(parts: Sequence[Tensor]) -> list[Tensor]:
    """Copy parts of a tensor: as views of it, each would keep all of it alive."""
    return [part.clone(memory_format=torch.contiguous_format) for part in parts]


@dataclass(frozen=True)
class EStepInputs:
    """What the E-step of several clients goes by; computed from the received models before local training."""

    log_likelihood: Tensor
    """log L_k(x_j, y_j), (samples, clusters); −∞ for clusters that a sample's client does not look at."""
    segments: Segments
    """How many samples each client has: rows of `log_likelihood` are grouped by client."""
    class_mix: Tensor
    """p_i(y), the class shares of each client's own labels, (clients, classes)."""
    class_shares: Tensor
    """P_k(y), the clusters' class shares, (clusters, classes); all alike before the first report."""
    round: int = 1
    first: Tensor | None = None
    """(clients,): whether each takes part for the first time; None: all do."""

    @property
    def new(self) -> Tensor:
        """`first` as a column beside the clients' weights, (clients, 1)."""
        first = torch.ones(len(self.segments), dtype=torch.bool) if self.first is None else self.first
        return first.to(self.log_likelihood.device).unsqueeze(1)


class Weighting(Protocol):
    """How clients find their weights in a round; several clients' samples lie in one tensor, grouped by client."""

    @property
    def hard(self) -> bool:
        """Whether every client belongs to exactly one cluster."""
        ...

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Return the weights of clients that take part for the first time, from the server's rows for them."""
        ...

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Return the new weights and the responsibilities γ (samples, clusters) that weigh local training."""
        ...

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Return new client-wise weights, (clients, clusters), of clients that have labelled samples but do not train.

        `weights`, (clients, clusters), are what they had before; uniform at first.
        """
        ...


@runtime_checkable
class SettlesAfterTraining(Protocol):
    """A weighting that decides after local training, by the trained parameters."""

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Return the weights given ‖θ_k − θ_i‖₂ of every client i to every cluster k, (clients, clusters)."""
        ...


@runtime_checkable
class FollowsChanges(Protocol):
    """A weighting that begins a step of time with other weights than the last one ended with."""

    def renewed(self, client: Tensor, p_values: Tensor) -> Tensor:
        """Return ω̃ for new data, (clients, clusters), from what it was and the p-values of a change, (clients,)."""
        ...


def uniform(clusters: int) -> Tensor:
    """Return uniform weights, (clusters,): those of a client that has reported nothing."""
    return torch.full((clusters,), 1.0 / clusters)


def one_hot(cluster: int | Tensor, clusters: int) -> Tensor:
    """Return weights with all mass on one cluster; one row for each, where several are given."""
    return torch.nn.functional.one_hot(torch.as_tensor(cluster), clusters).float()


def responsibilities(weights: Tensor, log_likelihood: Tensor) -> Tensor:
    """γ_jk = softmax_k(log ω_jk + log L_k): eq. (3), for the weights of each sample, its own or its client's."""
    joint = weights.log() + log_likelihood
    return torch.softmax(joint.T.contiguous(), dim=0).T  # along the first axis torch does many short sums at once


def best_cluster(inputs: EStepInputs) -> Tensor:
    """Return the cluster with the lowest mean loss over each client's samples, (clients,)."""
    return inputs.segments.mean(inputs.log_likelihood).argmax(dim=1)


def hard_weights(cluster: Tensor, inputs: EStepInputs) -> tuple[Weights, Tensor]:
    """Return weights with all mass on one cluster for each client (clients,), and the same for its samples."""
    weights = one_hot(cluster, inputs.log_likelihood.shape[1]).to(inputs.log_likelihood)
    return Weights(weights), inputs.segments.each(weights)


def given(weights: Weights, inputs: EStepInputs) -> Tensor:
    """Whether each client takes part for the first time, in a group that the user gave it, (clients, 1).

    All clusters then may have the same model, so no client could choose.
    """
    rows = weights.client
    return inputs.new & (rows.amax(dim=1, keepdim=True) > rows.amin(dim=1, keepdim=True))


def kept_if_given(weights: Weights, inputs: EStepInputs, chosen: Tensor) -> Tensor:
    """Return the cluster that each client chose, or the group that it begins in, (clients,)."""
    return torch.where(given(weights, inputs)[:, 0], weights.client.argmax(dim=1), chosen)


def own_or_best(weights: Weights, inputs: EStepInputs) -> Tensor:
    """Return the cluster that has all of a client's mass; where none has, the one with the lowest loss, (clients,)."""
    mass, cluster = weights.client.max(dim=1)
    return torch.where(mass == 1, cluster, best_cluster(inputs))
