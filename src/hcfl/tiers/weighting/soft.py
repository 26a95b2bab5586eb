"""Soft weights: every client is a mixture of clusters."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting.weights import (
    EStepInputs,
    Weights,
    best_cluster,
    given,
    hard_weights,
    one_hot,
    responsibilities,
)


@dataclass(frozen=True)
class SoftEM:
    """γ_jk = softmax_k(log ω_k + log L_k), ω_k = mean_j γ_jk: FedEM, FedRC."""

    hard: ClassVar[bool] = False

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """One client-wise EM step."""
        gamma = responsibilities(inputs.segments.each(weights.client), inputs.log_likelihood)
        return Weights(inputs.segments.mean(gamma)), gamma

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """One client-wise EM step."""
        return inputs.segments.mean(responsibilities(inputs.segments.each(weights), inputs.log_likelihood))


@dataclass(frozen=True)
class SampleWiseEM:
    """Sample-wise weights in training, client-wise ones at test time: HCFL+, eqs. (3)-(5).

    `mu` is μ̃ = 1/(1+μN) in [0, 1]: the larger, the weaker the penalty that ties a sample's weights to its client's.
    μ̃ = 0 is client-wise soft EM.
    """

    mu: float
    hard: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1:
            raise InputError(f"mu = {self.mu}: must lie between 0 and 1")

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's row for a client and for each of its samples."""
        return Weights(client, segments.each(client))

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """One EM step, all terms from the weights at the start of the round."""
        assert weights.sample is not None
        gamma = responsibilities(weights.sample, inputs.log_likelihood)  # (3)
        client = self.newcomer(weights.client, inputs)  # (4)
        sample = self.mu * gamma + (1 - self.mu) * inputs.segments.each(client)  # (5)
        return replace(weights, client=client, sample=sample), gamma

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """One client-wise EM step: ω̃ never depends on the sample-wise weights."""
        return inputs.segments.mean(responsibilities(inputs.segments.each(weights), inputs.log_likelihood))


@dataclass(frozen=True)
class SoftCounts:
    """u_k = share of the samples whose lowest-loss cluster is k, floored, every `period` rounds: FedSoft.

    γ puts each sample wholly on its best cluster. A newcomer takes the cluster with the lowest loss.
    """

    period: int = 2
    floor: float = 1e-4
    hard: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.period < 1:
            raise InputError(f"period = {self.period}: must be at least 1")
        if not 0 < self.floor < 1:
            raise InputError(f"floor = {self.floor}: must lie between 0 and 1")

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Count again every `period` rounds; a client that takes part for the first time counts in any round."""
        gamma = one_hot(inputs.log_likelihood.argmax(dim=1), inputs.log_likelihood.shape[1]).to(inputs.log_likelihood)
        due = (inputs.new | ((inputs.round - 1) % self.period == 0)) & ~given(weights, inputs)
        shares = inputs.segments.mean(gamma).clamp_min(self.floor)
        counted = shares / shares.sum(dim=1, keepdim=True)
        return replace(weights, client=torch.where(due, counted, weights.client)), gamma

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(inputs), inputs)[0].client


@dataclass(frozen=True)
class FuzzyCMeans:
    """u_k ∝ ‖θ_i − θ_k‖^(−2/(m−1)) of the client's trained model: fuzzy c-means of local models.

    A centre is the mean of the local models weighted by u^m. A client without memberships yet starts from the cluster
    with the lowest loss; a newcomer does not train and stays there.
    """

    fuzzifier: float = 2.0
    hard: ClassVar[bool] = False
    needs_own_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 < self.fuzzifier <= 10:
            raise InputError(f"fuzzifier = {self.fuzzifier}: must be greater than 1 and at most 10")

    @property
    def mass_power(self) -> float:
        """The fuzzifier m: a centre is the mean of the local models weighted by u^m."""
        return self.fuzzifier

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's rows; the client has no memberships yet."""
        return Weights(client)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """Keep the memberships that the last training gave."""
        chooses = inputs.new & ~given(weights, inputs)
        client = torch.where(chooses, self.newcomer(weights.client, inputs), weights.client)
        return replace(weights, client=client), inputs.segments.each(client)

    def settle(self, weights: Weights, distances: Tensor) -> Weights:
        """Return memberships by distance; a client whose model equals a centre belongs wholly to it.

        Equal centres, as given groups begin with, say nothing: memberships stay.
        """
        logs = distances.clamp_min(torch.finfo(distances.dtype).tiny).log()
        beyond = logs - logs.amin(dim=1, keepdim=True)
        found = torch.softmax(-2 / (self.fuzzifier - 1) * beyond, dim=1)
        alike = beyond.amax(dim=1, keepdim=True) == 0
        return replace(weights, client=torch.where(alike, weights.client, found))

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """Choose by loss."""
        return hard_weights(best_cluster(inputs), inputs)[0].client
