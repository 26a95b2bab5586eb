"""What clients train beside the four tiers: their clusters' models, one model of their own, or a head of their own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from hcfl.config import Order
from hcfl.errors import InputError
from hcfl.models.ensemble import Copies, Ensemble, blends, copies, stack
from hcfl.tiers import Weights
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting import one_hot


@dataclass(frozen=True)
class Plan:
    """The models that clients train: where they start, how samples weigh, and what the proximal term pulls towards."""

    start: Copies
    started: Tensor
    """(clients, models, clusters): the mixture of received models that each one starts from."""
    gamma: Tensor
    """(samples, models)."""
    anchor: Copies
    """What the proximal term pulls towards."""
    received: bool = True
    """Whether all start from the received extractors, so that the features of the E-step can be used again."""


@dataclass(frozen=True)
class PlanInputs:
    """What several clients plan their local training from."""

    received: Ensemble
    segments: Segments
    """How many samples each client has."""
    weights: Weights
    gamma: Tensor
    """(samples, clusters)."""
    hard: bool
    """Whether every client belongs to exactly one cluster."""
    global_model: Ensemble | None = None
    """The mean of all participants' models of the last round, where `uses_global_model`."""
    own: Sequence[Ensemble | None] = ()
    """The model that each client kept from its last round; None for clients without one."""


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
    def uses_global_model(self) -> bool:
        """Whether the server must send the mean of all participants' models."""
        ...

    def plan(self, inputs: PlanInputs) -> Plan:
        """Return the models to train."""
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
    participants' models of the last round (StoCFL). Soft weights weigh samples, and all participants' models of a
    cluster count alike in its average, as in the paper: a cluster that has a third of the clients learns a third as
    fast as it would alone. With `by_weight`, a model counts by its client's weight on the cluster, too.
    """

    proximal: float = 0.0
    towards: Literal["received", "global"] = "received"
    by_weight: bool = False
    trains_cluster_models: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_proximal(self.proximal)
        if self.towards not in ("received", "global"):
            raise InputError(f"towards = {self.towards!r}: must be received or global")

    @property
    def kept(self) -> bool:
        """The models are the clusters'."""
        return False

    @property
    def uses_global_model(self) -> bool:
        """Only as the anchor of the proximal term."""
        return self.towards == "global"

    def plan(self, inputs: PlanInputs) -> Plan:
        """Train each model from where the cluster left it; where weights are hard, no other is trained, or decays."""
        weights, gamma = inputs.weights.client, inputs.gamma
        columns = torch.arange(weights.shape[1]).expand_as(weights)
        if inputs.hard:
            columns = weights.argmax(dim=1, keepdim=True)
            gamma = gamma.gather(1, inputs.segments.each(columns))
        start = copies(inputs.received, columns)
        anchor = start if inputs.global_model is None else copies(inputs.global_model, torch.zeros_like(columns))
        return Plan(start, one_hot(columns, weights.shape[1]), gamma, anchor)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Each model counts in its cluster; with hard weights, in the one that the client has joined by now."""
        clients, clusters = weights.shape
        if hard:
            return one_hot(weights.argmax(dim=1, keepdim=True), clusters)
        return torch.diag_embed(weights) if self.by_weight else torch.eye(clusters).expand(clients, clusters, clusters)


@dataclass(frozen=True)
class OwnModel:
    """One model of the client's own, which counts in every cluster's average with the client's weight there.

    It starts from the mixture Σ_k u_k θ_k of what was received, or, if `kept`, from where the client left it the last
    time; λ/2‖θ − Σ_k u_k θ_k‖² holds it near the mixture: FedSoft. A kept model is also what the client predicts with.
    """

    kept: bool = True
    proximal: float = 0.01
    uses_global_model: ClassVar[bool] = False
    trains_own_model: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_proximal(self.proximal)

    def plan(self, inputs: PlanInputs) -> Plan:
        """Train one model on all samples alike."""
        weights = inputs.weights.client
        mixture = start = blends(inputs.received, weights)
        known = [mine for mine in inputs.own if mine is not None]
        if known:
            start = Copies.stack([mine or mixture.of(client) for client, mine in enumerate(inputs.own)])
        return Plan(start, weights.unsqueeze(1), torch.ones_like(inputs.gamma[:, :1]), mixture, received=not known)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Let the one model count everywhere."""
        return weights.unsqueeze(1)


@dataclass(frozen=True)
class OwnHead:
    """The received extractor with a head of the client's own, which it keeps between rounds: FedRep and FedPer.

    Heads are averaged, too, for new clients only; a client goes on from its own. It predicts with what it trained last.
    """

    order: Order | None = None
    """Heads first (FedRep) or together with the extractor (FedPer); None: as the configuration says."""
    kept: ClassVar[bool] = True
    proximal: ClassVar[float] = 0.0
    uses_global_model: ClassVar[bool] = False
    trains_own_model: ClassVar[bool] = True

    def plan(self, inputs: PlanInputs) -> Plan:
        """Train one model on all samples alike, from the received extractor and the head of the last time."""
        weights = inputs.weights.client
        received = blends(inputs.received, weights)
        heads = stack([(mine or received.of(client)).heads for client, mine in enumerate(inputs.own)])
        start = Copies(received.extractors, heads, received.topology)
        return Plan(start, weights.unsqueeze(1), torch.ones_like(inputs.gamma[:, :1]), start)

    def mass(self, weights: Tensor, hard: bool) -> Tensor:
        """Let the one model count everywhere."""
        return weights.unsqueeze(1)


def _check_proximal(proximal: float) -> None:
    if not proximal >= 0:
        raise InputError(f"proximal = {proximal}: must not be negative")
