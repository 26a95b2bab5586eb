"""Soft weights: every client is a mixture of clusters."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting.weights import Seen, Weights, best_cluster, hard_weights, one_hot, responsibilities


@dataclass(frozen=True)
class SoftEM:
    """γ_jk = softmax_k(log ω_k + log L_k), ω_k = mean_j γ_jk: FedEM, FedRC."""

    hard: bool = False

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """One client-wise EM step."""
        gamma = responsibilities(seen.segments.each(weights.client), seen.log_likelihood)
        return Weights(seen.segments.mean(gamma)), gamma

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """One client-wise EM step."""
        return seen.segments.mean(responsibilities(seen.segments.each(weights), seen.log_likelihood))


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

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's row for a client and for each of its samples."""
        return Weights(client, segments.each(client))

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """One EM step, all terms from the weights at the start of the round."""
        assert weights.sample is not None
        gamma = responsibilities(weights.sample, seen.log_likelihood)  # (3)
        client = self.newcomer(weights.client, seen)  # (4)
        sample = self.mu * gamma + (1 - self.mu) * seen.segments.each(client)  # (5)
        return replace(weights, client=client, sample=sample), gamma

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """One client-wise EM step: ω̃ never depends on the sample-wise weights."""
        return seen.segments.mean(responsibilities(seen.segments.each(weights), seen.log_likelihood))


@dataclass(frozen=True)
class SoftCounts:
    """u_k = share of the samples whose lowest-loss cluster is k, floored, every `period` rounds: FedSoft.

    γ puts each sample wholly on its best cluster. A newcomer takes the cluster with the lowest loss.
    """

    period: int = 2
    floor: float = 1e-4
    hard: bool = False

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"period = {self.period}: must be at least 1")
        if not 0 < self.floor < 1:
            raise InputError(f"floor = {self.floor}: must lie between 0 and 1")

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Count again when it is time to; a client that was never counted, at once."""
        gamma = one_hot(seen.log_likelihood.argmax(dim=1), seen.log_likelihood.shape[1]).to(seen.log_likelihood)
        due = (seen.round - 1) % self.period == 0
        shares = seen.segments.mean(gamma).clamp_min(self.floor)
        counted = shares / shares.sum(dim=1, keepdim=True)
        return replace(weights, client=torch.where(seen.new | due, counted, weights.client)), gamma

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(seen), seen)[0].client


@dataclass(frozen=True)
class FuzzyCMeans:
    """u_k ∝ ‖θ_i − θ_k‖^(−2/(m−1)) of the client's trained model: fuzzy c-means of local models.

    A centre is the mean of the local models weighted by u^m. A client without memberships yet starts from the cluster
    with the lowest loss; a newcomer, who does not train, stays there.
    """

    fuzzifier: float = 2.0
    hard: bool = False
    needs_own_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 < self.fuzzifier <= 10:
            raise InputError(f"fuzzifier = {self.fuzzifier}: must be greater than 1 and at most 10")

    @property
    def mass_power(self) -> float:
        """The fuzzifier m: a centre is the mean of the local models weighted by u^m."""
        return self.fuzzifier

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Nothing is known yet."""
        return Weights(client)

    def e_step(self, weights: Weights, seen: Seen) -> tuple[Weights, Tensor]:
        """Keep the memberships that the last training gave."""
        client = torch.where(seen.new, self.newcomer(weights.client, seen), weights.client)
        return replace(weights, client=client), seen.segments.each(client)

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Return memberships by distance; all of it where a centre is met exactly."""
        logs = distances.clamp_min(torch.finfo(distances.dtype).tiny).log()
        beyond = logs - logs.amin(dim=1, keepdim=True)
        return replace(weights, client=torch.softmax(-2 / (self.fuzzifier - 1) * beyond, dim=1))

    def newcomer(self, weights: Tensor, seen: Seen) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(seen), seen)[0].client
