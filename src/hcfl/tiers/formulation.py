"""Tier 1, formulation: what L_k is (spec §2). Everything stays in log space."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Formulation(Protocol):
    """The log-likelihood of labelled samples under each cluster.

    The cluster-wise correction, where there is one, does not depend on the parameters, so the training loss of
    every formulation is γ-weighted cross-entropy.
    """

    @property
    def uses_class_shares(self) -> bool:
        """Whether clients must report F, so that the server can send P_k(y)."""
        ...

    def log_likelihood(self, log_prob: Tensor, labels: Tensor, class_shares: Tensor) -> Tensor:
        """Return log L_k(x_j, y_j) as (samples, clusters).

        `log_prob` is log p_k(y_j|x_j) as (samples, clusters), `labels` (samples,), `class_shares` P_k(y) as
        (clusters, classes).
        """
        ...


@dataclass(frozen=True)
class Conditional:
    """log L_k = log p_k(y|x): FedAvg, IFCA, FeSEM, FedEM."""

    uses_class_shares: bool = False

    def log_likelihood(self, log_prob: Tensor, labels: Tensor, class_shares: Tensor) -> Tensor:
        """Return the negative cross-entropy itself."""
        return log_prob


@dataclass(frozen=True)
class Correlation:
    """log L_k = log p_k(y|x) − log P_k(y): FedRC.

    Dividing by the cluster's class share removes the reward for clusters that merely hold the right labels, so that
    only a different P(y|x) tells clusters apart.
    """

    floor: float = 1e-8
    """Counts below it are raised to it, so that P_k(y) is never 0."""
    uses_class_shares: bool = True

    def log_likelihood(self, log_prob: Tensor, labels: Tensor, class_shares: Tensor) -> Tensor:
        """Return the log of the density ratio p_k(y|x) / P_k(y)."""
        return log_prob - class_shares.log().T[labels]


def class_counts(responsibilities: Tensor, labels: Tensor, classes: int) -> Tensor:
    """F_{k,c} = Σ_j 1[y_j = c]·γ_jk of one client, as (clusters, classes)."""
    counts = responsibilities.new_zeros(classes, responsibilities.shape[1])
    return counts.index_add_(0, labels, responsibilities).T.contiguous()


def class_shares(counts: Tensor, floor: float = 1e-8) -> Tensor:
    """P_k(y=c) = F_{g,k,c} / Σ_c' F_{g,k,c'} from the summed counts F_g (clusters, classes).

    Counts are floored first; before any client has reported, this makes P_k uniform and it cancels in the E-step.
    """
    floored = counts.clamp_min(floor)
    return floored / floored.sum(dim=1, keepdim=True)


def objective(log_likelihood: Tensor, weights: Tensor) -> Tensor:
    """Σ_j log Σ_k ω_k·L_k(x_j, y_j) for client-wise (clusters,) or sample-wise (samples, clusters) weights: eq. (1)."""
    return torch.logsumexp(weights.log() + log_likelihood, dim=1).sum()
