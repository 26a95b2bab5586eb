"""What a client trains in a round, beside the four tiers: its clusters' models, or one model of its own."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from hcfl import rng
from hcfl.ensemble import Ensemble, blend, rows, stack
from hcfl.errors import InputError
from hcfl.models import Network
from hcfl.tiers import Weights
from hcfl.tiers.weighting import one_hot
from hcfl.training import LocalData, LocalSGD, train_extractor, train_heads, train_model


@dataclass(frozen=True)
class Plan:
    """Models to start from, each with its column of γ, and what holds them back."""

    start: Ensemble
    started: Tensor
    """(models, clusters): the mixture of received models that each one starts from."""
    gamma: Tensor
    """(samples, models)."""
    anchor: Ensemble
    """What the proximal term pulls towards."""


@dataclass(frozen=True)
class Given:
    """What a client plans its training from."""

    received: Ensemble
    weights: Weights
    gamma: Tensor
    """(samples, clusters)."""
    hard: bool
    """Whether it belongs to exactly one cluster."""
    common: Ensemble | None = None
    """The mean of all participants' models of the last round, where it was asked for."""
    own: Ensemble | None = None
    """What it kept from the last time."""


class LocalTraining(Protocol):
    """Which models a client trains, and in which clusters' averages they count."""

    @property
    def proximal(self) -> float:
        """λ of the term λ/2‖θ − anchor‖² in each loss."""
        ...

    @property
    def kept(self) -> bool:
        """Whether the client keeps what it trained until the next time, and predicts with it."""
        ...

    @property
    def uses_common(self) -> bool:
        """Whether the server must send the mean of all participants' models."""
        ...

    def plan(self, given: Given) -> Plan:
        """Decide what to train."""
        ...

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Return how much each trained model counts in each cluster's average, beside N_i, (models, clusters).

        `weights` (clusters,) are how much the client counts there.
        """
        ...


@dataclass(frozen=True)
class ClusterModels:
    """The clusters' models: with soft weights all, each weighted by its γ; with hard ones, the client's own cluster's.

    The proximal term's anchor is the model that was received (FedSoft's variants of HCFL+), or the mean of all
    participants' models of the last round (StoCFL).
    """

    proximal: float = 0.0
    towards: Literal["received", "global"] = "received"

    def __post_init__(self) -> None:
        _check_proximal(self.proximal)
        if self.towards not in ("received", "global"):
            raise InputError(f"towards = {self.towards!r}: must be received or global")

    @property
    def kept(self) -> bool:
        """The models are the clusters'."""
        return False

    @property
    def uses_common(self) -> bool:
        """Only to be held near it."""
        return self.towards == "global"

    def plan(self, given: Given) -> Plan:
        """Train each model from where the cluster left it; where weights are hard, no other is trained, or decays."""
        weights, common = given.weights.client, given.common
        columns = [int(weights.argmax())] if given.hard else list(range(len(weights)))
        start = given.received.select(columns)
        anchor = start if common is None else common.map(lambda one: one.expand(len(columns), *one.shape[1:]))
        return Plan(start, one_hot(torch.tensor(columns), len(weights)), given.gamma[:, columns], anchor)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Each model counts in its cluster; with hard weights, in the one that the client has joined by now."""
        return one_hot(weights.argmax().cpu(), len(weights)).unsqueeze(0) if hard else torch.eye(len(weights))


@dataclass(frozen=True)
class OwnModel:
    """One model of the client's own, which counts in every cluster's average with the client's weight there.

    It starts from the mixture Σ_k u_k θ_k of what was received, or, if `kept`, from where the client left it the last
    time; λ/2‖θ − Σ_k u_k θ_k‖² holds it near the mixture: FedSoft. A kept model is also what the client predicts with.
    """

    kept: bool = True
    proximal: float = 0.01
    uses_common: bool = False

    def __post_init__(self) -> None:
        _check_proximal(self.proximal)

    def plan(self, given: Given) -> Plan:
        """Train one model on all samples alike."""
        weights = given.weights.client
        mixture = blend(given.received, weights)
        return Plan(given.own or mixture, weights.cpu().unsqueeze(0), torch.ones_like(given.gamma[:, :1]), mixture)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Let the one model count everywhere."""
        return weights.cpu().unsqueeze(0)


def _check_proximal(proximal: float) -> None:
    if not proximal >= 0:
        raise InputError(f"proximal = {proximal}: must not be negative")


@dataclass(frozen=True)
class Job:
    """A training to be done."""

    plan: Plan
    features: Tensor | None
    """Of the extractor that training starts from, in the split topology."""
    data: LocalData
    batches: list[Tensor]
    sgd: LocalSGD
    purpose: tuple[int | str, ...]
    """Names the random numbers that layers draw in training."""


def train(network: Network, job: Job) -> Ensemble:
    """Train what is planned: heads, then the extractor (split), or whole models (full)."""
    seed, *purpose = job.purpose
    with rng.scoped(int(seed), *purpose):
        return _train(network, job)


def _train(network: Network, job: Job) -> Ensemble:
    data, batches, sgd = job.data, job.batches, job.sgd
    start, anchor, gamma = job.plan.start, job.plan.anchor, job.plan.gamma
    if start.topology == "split":
        assert job.features is not None
        heads = train_heads(network, start.heads, job.features, data.labels, gamma, batches, sgd, anchor.heads)
        extractor = train_extractor(network, start.extractor(0), heads, data, gamma, batches, sgd, anchor.extractor(0))
        return Ensemble(stack([extractor]), heads, "split")
    models = [
        train_model(
            network,
            start.extractor(k),
            rows(start.heads, [k]),
            data,
            gamma[:, [k]],
            batches,
            sgd,
            (anchor.extractor(k), rows(anchor.heads, [k])),
        )
        for k in range(start.clusters)
    ]
    heads = {name: torch.cat([head[name] for _, head in models]) for name in start.heads}
    return Ensemble(stack([extractor for extractor, _ in models]), heads, "full")
