"""What one client does in a round: catch up, E-step, evidence for tiers 3 and 4, local training (spec §3 and §5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl import rng
from hcfl.aggregation import own_parameters
from hcfl.clusters import follow, missed_split
from hcfl.ensemble import Ensemble, embed, flatten, forward
from hcfl.local import Given, Job, Plan, train
from hcfl.method import Method
from hcfl.models import Network
from hcfl.state import Broadcast, ClientState, Update
from hcfl.tiers import Assigned, FuzzyCMeans, Prototypes, Seen, SettlesAfterTraining, Signs, Weights
from hcfl.tiers.distance import prototypes
from hcfl.tiers.formulation import class_counts, objective
from hcfl.tiers.gaussians import (
    Moments,
    component_responsibilities,
    component_step,
    feature_moments,
    gaussian_moments,
    mixture_log_density,
)
from hcfl.tiers.weighting import uniform
from hcfl.training import LocalData, LocalSGD, batch_indices, cross_entropy_per_cluster


@dataclass(frozen=True)
class Work:
    """What a client is about to train, and what it already knows to report."""

    client: int
    data: LocalData
    first: bool
    """Whether it takes part for the first time."""
    weights: Weights
    log_likelihood: Tensor
    gamma: Tensor
    features: Tensor | None
    moments: Moments | None
    jobs: tuple[Job, ...]
    """Its part of the round's training, then, where it is wanted, its first update of the initial model."""


def take_part(
    method: Method,
    network: Network,
    sgd: LocalSGD,
    data: LocalData,
    broadcast: Broadcast,
    client: int,
    state: ClientState | None,
    seed: int,
) -> tuple[Update, ClientState]:
    """Do one client's work of a round; `state` is None for a client that takes part for the first time."""
    weights = catch_up(method, data, broadcast, client, state)
    looked = forward(network, broadcast.ensemble.select(columns_of(method, weights)), data.inputs)
    work = prepare(method, network, sgd, data, broadcast, client, state, seed, weights, looked)
    trained = [train(network, job) for job in work.jobs]
    return finish(method, network, broadcast, work, trained)


def prepare(
    method: Method,
    network: Network,
    sgd: LocalSGD,
    data: LocalData,
    broadcast: Broadcast,
    client: int,
    state: ClientState | None,
    seed: int,
    weights: Weights,
    looked: tuple[Tensor | None, Tensor],
) -> Work:
    """E-step and plan, from the client's weights and what `forward` gave for the clusters that it looks at."""
    features, labels = looked[0], data.labels
    log_likelihood, inputs = _likelihood(method, network, data, broadcast, weights, looked[1])
    seen = Seen(
        log_likelihood,
        class_mix=torch.bincount(labels, minlength=data.classes) / len(labels),
        class_shares=broadcast.class_shares,
        round=broadcast.round,
        first=state is None,
    )
    after, gamma = method.weighting.e_step(weights, seen)
    components, moments = inputs.m_step(weights.components, gamma)
    weights = replace(after, components=components)

    received, own = broadcast.ensemble, None if state is None else state.own
    plan = method.local.plan(Given(received, weights, gamma, method.weighting.hard, broadcast.common, own))
    start = _features(network, plan, received, features, data)
    local = replace(sgd, proximal=method.local.proximal)
    generator = rng.torch_generator(seed, "batches", broadcast.round, client)
    batches = batch_indices(len(data), local, generator, singles=not network.buffers)
    job = Job(plan, start, data, batches, local, (seed, "local training", broadcast.round, client))
    jobs = [job]
    if state is None and "first updates" in method.needs:
        jobs.append(_first_update(network, sgd, data, broadcast, client, seed))
    return Work(client, data, state is None, weights, log_likelihood, gamma, features, moments, tuple(jobs))


def finish(
    method: Method, network: Network, broadcast: Broadcast, work: Work, trained: Sequence[Ensemble]
) -> tuple[Update, ClientState]:
    """Turn what was trained into what the client sends and keeps."""
    weights, data = work.weights, work.data
    if isinstance(method.weighting, SettlesAfterTraining):
        distances = parameter_distances(network, broadcast.ensemble, trained[0])
        weights = replace(method.weighting.settle(weights, distances), components=weights.components)
    update = Update(
        client=work.client,
        samples=len(data),
        extractors=trained[0].extractors,
        heads=trained[0].heads,
        started=work.jobs[0].plan.started,
        mass=method.local.mass(_counted(method, weights), method.weighting.hard),
        weights=weights.client,
        objective=float(objective(work.log_likelihood, weights.client)),
        counts=class_counts(work.gamma, data.labels, data.classes) if method.uses_class_shares else None,
        prototypes=_prototypes(method, work.features, data),
        signature=_signature(method, network, work, trained[1] if len(trained) > 1 else None),
        moments=work.moments,
    )
    kept = trained[0] if method.local.kept else None
    return update, ClientState(broadcast.round, broadcast.clusters, weights, kept)


def catch_up(method: Method, data: LocalData, broadcast: Broadcast, client: int, state: ClientState | None) -> Weights:
    """Bring a client's weights to the clusters of today; somebody new starts from what the server has of it."""
    if state is None:
        start = method.weighting.start(broadcast.weights[client].to(data.inputs.device), len(data))
        return replace(start, components=method.uniform_components(len(start.client), data.inputs.device))
    return weights_of_today(method, broadcast, client, state)


def weights_of_today(method: Method, broadcast: Broadcast, client: int, state: ClientState) -> Weights:
    """Apply the changes that a client missed to its weights.

    A client with hard weights that was absent when its cluster was split belongs to neither part until it chooses.
    """
    missed = [change for change in broadcast.changes if change.round >= state.round]
    weights = follow(state.weights, state.clusters, missed, client)
    if method.weighting.hard and missed_split(state.weights, state.clusters, missed, client):
        return replace(weights, client=uniform(len(weights.client)).to(weights.client))
    return weights


def columns_of(method: Method, weights: Weights) -> list[int]:
    """Return the clusters that a client looks at: its own where the server has assigned it to one, else all."""
    placed = is_placed(method, weights.client)
    return [int(weights.client.argmax())] if placed else list(range(len(weights.client)))


def is_placed(method: Method, weights: Tensor) -> bool:
    """Whether the server has assigned a client to a cluster: then it needs no other cluster's model."""
    return isinstance(method.weighting, Assigned) and float(weights.max()) == 1


@dataclass(frozen=True)
class _Inputs:
    """A client's inputs as the formulation models them: nothing, features in round 1, z with the Gaussians later."""

    features: Tensor | None = None
    z: Tensor | None = None
    log_densities: Tensor | None = None

    def m_step(self, components: Tensor | None, gamma: Tensor) -> tuple[Tensor | None, Moments | None]:
        """Return the new mixing ρ and what the server needs to estimate the Gaussians."""
        if components is None or self.features is None:
            return components, None
        if self.log_densities is None or self.z is None:
            return components, feature_moments(self.features)
        joint = component_responsibilities(components, self.log_densities, gamma)
        return component_step(components, joint), gaussian_moments(joint, self.z)


def _likelihood(
    method: Method, network: Network, data: LocalData, broadcast: Broadcast, weights: Weights, logits: Tensor
) -> tuple[Tensor, _Inputs]:
    """Return log L_k (samples, clusters) and the inputs as they are modelled, from the logits of `columns_of`."""
    columns = columns_of(method, weights)
    log_prob = -cross_entropy_per_cluster(logits, data.labels)
    inputs, log_density = _Inputs(), None
    if weights.components is not None:
        assert broadcast.anchor is not None
        embedded = embed(network, broadcast.anchor.extractor(0), data.inputs)
        inputs = _Inputs(embedded)
        if broadcast.gaussians is not None:
            z = broadcast.gaussians.embed(embedded)
            densities = broadcast.gaussians.log_densities(z)
            inputs = _Inputs(embedded, z, densities)
            log_density = mixture_log_density(weights.components[columns], densities)
    seen = method.formulation.log_likelihood(log_prob, data.labels, broadcast.class_shares[columns], log_density)
    log_likelihood = seen.new_full((len(data), len(weights.client)), -torch.inf)
    log_likelihood[:, columns] = seen
    return log_likelihood, inputs


def parameter_distances(network: Network, received: Ensemble, trained: Ensemble) -> Tensor:
    """‖θ_k − θ_i‖₂ of one trained model to every cluster, over all parameters that are the cluster's own."""
    apart = own_parameters(network, received) - own_parameters(network, trained)
    distances: Tensor = torch.linalg.vector_norm(apart, dim=1)
    return distances


def _counted(method: Method, weights: Weights) -> Tensor:
    """How much a client counts in each cluster: its weight, in fuzzy c-means u^m."""
    return weights.client**method.weighting.fuzzifier if isinstance(method.weighting, FuzzyCMeans) else weights.client


def _features(
    network: Network, plan: Plan, received: Ensemble, features: Tensor | None, data: LocalData
) -> Tensor | None:
    """Return the features of the extractor that training starts from: the shared one, or the client's own."""
    if features is None or plan.start.extractors is received.extractors:
        return features
    return embed(network, plan.start.extractor(0), data.inputs)


def _prototypes(method: Method, features: Tensor | None, data: LocalData) -> Prototypes | None:
    """Prototypes of the shared features, or of their norms."""
    if features is not None and "prototypes" in method.needs:
        return prototypes(features, data.labels, data.classes)
    if features is not None and "feature norms" in method.needs:
        return prototypes(torch.linalg.vector_norm(features, dim=1, keepdim=True), data.labels, data.classes)
    return None


def _first_update(
    network: Network, sgd: LocalSGD, data: LocalData, broadcast: Broadcast, client: int, seed: int
) -> Job:
    """Plan one local epoch from the initial model."""
    assert broadcast.anchor is not None
    anchor = broadcast.anchor
    once = replace(sgd, epochs=1, proximal=0.0)
    generator = rng.torch_generator(seed, "signature", client)
    batches = batch_indices(len(data), once, generator, singles=not network.buffers)
    plan = Plan(anchor, torch.ones(1, 1), data.inputs.new_ones(len(data), 1), anchor)
    features = embed(network, anchor.extractor(0), data.inputs) if anchor.topology == "split" else None
    return Job(plan, features, data, batches, once, (seed, "signature", client))


def _signature(method: Method, network: Network, work: Work, trained: Ensemble | None) -> Tensor | None:
    """Return what a client sends once: its update of the initial model, or what the distance makes of its data."""
    if trained is not None:
        anchor = work.jobs[1].plan.start
        before, after = (flatten(model.heads, model.extractors, network.buffers) for model in (anchor, trained))
        return (after - before)[0]
    if work.first and "signatures" in method.needs and isinstance(method.distance, Signs):
        return method.distance.signature(work.data.inputs, work.data.labels)
    return None
