"""What clients train in a round, beside the four tiers: their clusters' models, or one model of their own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from hcfl import rng
from hcfl.ensemble import Copies, Ensemble, blends, copies, joined, rows, stack
from hcfl.errors import InputError
from hcfl.models import Network, Params
from hcfl.owners import Owners
from hcfl.tiers import Weights
from hcfl.tiers.weighting import one_hot
from hcfl.training import Batches, LocalData, LocalSGD, shuffle, train_extractor, train_heads, train_model


@dataclass(frozen=True)
class Plan:
    """Models to start from, each with its column of γ, and what holds them back."""

    start: Copies
    started: Tensor
    """(clients, models, clusters): the mixture of received models that each one starts from."""
    gamma: Tensor
    """(samples, models)."""
    anchor: Copies
    """What the proximal term pulls towards."""
    received: bool = True
    """Whether all start from the extractors that were received, whose features are known."""


@dataclass(frozen=True)
class Given:
    """What clients plan their training from."""

    received: Ensemble
    owners: Owners
    """Whose samples are whose."""
    weights: Weights
    gamma: Tensor
    """(samples, clusters)."""
    hard: bool
    """Whether everybody belongs to exactly one cluster."""
    common: Ensemble | None = None
    """The mean of all participants' models of the last round, where it was asked for."""
    own: Sequence[Ensemble | None] = ()
    """What each kept from the last time, where it did."""


class LocalTraining(Protocol):
    """Which models clients train, and in which clusters' averages they count."""

    @property
    def proximal(self) -> float:
        """λ of the term λ/2‖θ − anchor‖² in each loss."""
        ...

    @property
    def kept(self) -> bool:
        """Whether clients keep what they trained until the next time, and predict with it."""
        ...

    @property
    def uses_common(self) -> bool:
        """Whether the server must send the mean of all participants' models."""
        ...

    def plan(self, given: Given) -> Plan:
        """Decide what to train."""
        ...

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Return how much each trained model counts in each cluster's average, beside N_i, (clients, models, clusters).

        `weights` (clients, clusters) are how much each client counts there.
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
        weights, gamma = given.weights.client, given.gamma
        columns = torch.arange(weights.shape[1]).expand_as(weights)
        if given.hard:
            columns = weights.argmax(dim=1, keepdim=True)
            gamma = gamma.gather(1, given.owners.each(columns))
        start = copies(given.received, columns)
        anchor = start if given.common is None else copies(given.common, torch.zeros_like(columns))
        return Plan(start, one_hot(columns, weights.shape[1]), gamma, anchor)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Each model counts in its cluster; with hard weights, in the one that the client has joined by now."""
        clients, clusters = weights.shape
        if hard:
            return one_hot(weights.argmax(dim=1, keepdim=True), clusters)
        return torch.eye(clusters).expand(clients, clusters, clusters)


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
        mixture = start = blends(given.received, weights)
        known = [mine for mine in given.own if mine is not None]
        if known:
            start = Copies.stack([mine or mixture.of(client) for client, mine in enumerate(given.own)])
        return Plan(start, weights.unsqueeze(1), torch.ones_like(given.gamma[:, :1]), mixture, received=not known)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Let the one model count everywhere."""
        return weights.unsqueeze(1)


def _check_proximal(proximal: float) -> None:
    if not proximal >= 0:
        raise InputError(f"proximal = {proximal}: must not be negative")


Phase = Literal["heads", "extractor"]
"""What is being trained: heads on features that are known, or an extractor, alone or together with heads."""


@dataclass(frozen=True)
class Job:
    """The training of some clients, to be done."""

    plan: Plan
    features: Tensor | None
    """Of the extractors that training starts from, in the split topology."""
    data: LocalData
    batches: Batches
    sgd: LocalSGD
    purposes: Sequence[tuple[int | str, ...]]
    """For each client, the name of the random numbers that layers draw in training, and of dropout's masks."""
    velocity: Copies | None = None
    """The momentum that clients begin with, of what they train; None: all begin at rest, and keep none."""

    def key(self, client: int, phase: Phase) -> int:
        """Return what a client's masks of dropout come from, the same for all of its models."""
        seed, *purpose = self.purposes[client]
        return rng.derive(int(seed), *purpose, "dropout", phase)


@dataclass(frozen=True)
class Trained:
    """What training gave."""

    models: Copies
    velocity: Copies | None = None
    """The momentum at the end, where clients keep it."""


def job(
    network: Network,
    sgd: LocalSGD,
    data: LocalData,
    plan: Plan,
    features: Tensor | None,
    seed: int,
    names: Sequence[tuple[int | str, ...]],
    purposes: Sequence[tuple[int | str, ...]],
    velocity: Copies | None = None,
) -> Job:
    """Shuffle the samples of each client by its own random numbers, which `names` tell apart."""
    generators = [rng.torch_generator(seed, *name) for name in names]
    batches = shuffle(data.owners, sgd, generators, singles=not network.buffers)
    return Job(plan, features, data, batches, sgd, purposes, velocity)


Trainer = Callable[[Network, Job], Trained]
"""The training of some clients, as an engine does it."""


def at_rest(network: Network, start: Copies) -> Copies:
    """Return a velocity of zero for everything that training from `start` changes."""
    zero = start.map(torch.zeros_like)
    extractors = {name: tensor for name, tensor in zero.extractors.items() if name not in network.untrained}
    return Copies(extractors, zero.heads, zero.topology)


def train(network: Network, job: Job) -> Trained:
    """Train what is planned, one client after another."""
    trained = []
    velocity = None if job.velocity is None else job.velocity.map(torch.clone)
    for client, (seed, *purpose) in enumerate(job.purposes):
        with rng.scoped(int(seed), *purpose):
            trained.append(_train_one(network, job, client, None if velocity is None else velocity.of(client)))
    return Trained(Copies.stack(trained), velocity)


def _train_one(network: Network, job: Job, client: int, velocity: Ensemble | None) -> Ensemble:
    """Train one client's extractor and heads in the order that was asked for (split), or its whole models (full).

    The velocity, where there is one, is updated in place.
    """
    inputs, device, batches, sgd = job.data.inputs, job.data.inputs.device, job.batches.of(client), job.sgd
    start, anchor = job.plan.start.of(client), job.plan.anchor.of(client)
    labels, gamma = job.data.labels.to(device), job.plan.gamma.to(device)
    key = job.key(client, "extractor")
    if start.topology == "split":
        extractor, heads, anchors = start.extractor(0), start.heads, (anchor.extractor(0), anchor.heads)
        momenta = None if velocity is None else (velocity.extractor(0), velocity.heads)
        samples = labels, gamma, batches, sgd
        if sgd.order == "together":
            extractor, heads = train_model(network, extractor, heads, inputs, *samples, anchors, momenta, key)
        else:
            assert job.features is not None
            of_extractor, of_heads = momenta or (None, None)
            first = job.key(client, "heads")
            heads = train_heads(network, heads, job.features, *samples, anchors[1], of_heads, first)
            extractor = train_extractor(network, extractor, heads, inputs, *samples, anchors[0], of_extractor, key)
        return Ensemble(stack([extractor]), heads, "split")
    models = [
        train_model(
            network,
            start.extractor(k),
            rows(start.heads, [k]),
            inputs,
            labels,
            gamma[:, [k]],
            batches,
            sgd,
            (anchor.extractor(k), rows(anchor.heads, [k])),
            None if velocity is None else (velocity.extractor(k), _column(velocity.heads, k)),
            key,
        )
        for k in range(start.clusters)
    ]
    return Ensemble(stack([extractor for extractor, _ in models]), joined([head for _, head in models]), "full")


def _column(heads: Params, k: int) -> Params:
    """Return one head of several, as views."""
    return {name: tensor[k : k + 1] for name, tensor in heads.items()}
