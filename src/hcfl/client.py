"""What one client does in a round: catch up, E-step, prototypes, local training (spec §3 and §5)."""

from dataclasses import replace

import torch
from torch import Tensor

from hcfl import rng
from hcfl.clusters import follow
from hcfl.ensemble import Ensemble, flatten, forward, rows, stack
from hcfl.methods import Method
from hcfl.models import Network
from hcfl.state import Broadcast, ClientState, Update
from hcfl.tiers import SettlesAfterTraining, Weights
from hcfl.tiers.distance import prototypes
from hcfl.tiers.formulation import class_counts, objective
from hcfl.training import (
    LocalData,
    LocalSGD,
    batch_indices,
    cross_entropy_per_cluster,
    train_extractor,
    train_heads,
    train_model,
)


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
    received, labels = broadcast.ensemble, data.labels
    sgd = replace(sgd, proximal=method.proximal)
    weights = catch_up(method, data, broadcast, client, state)

    features, logits = forward(network, received, data.inputs)
    log_prob = -cross_entropy_per_cluster(logits, labels)
    log_likelihood = method.formulation.log_likelihood(log_prob, labels, broadcast.class_shares)
    weights, gamma = method.weighting.e_step(weights, log_likelihood)

    columns = started = _trained_columns(method, weights)
    generator = rng.torch_generator(seed, "batches", broadcast.round, client)
    batches = batch_indices(len(data), sgd, generator, singles=not network.buffers)
    with rng.scoped(seed, "local training", broadcast.round, client):
        trained = _train(network, received, features, data, gamma, started, batches, sgd)

    if isinstance(method.weighting, SettlesAfterTraining):
        weights = method.weighting.settle(weights, parameter_distances(network, received, trained))
        columns = _trained_columns(method, weights)

    update = Update(
        client=client,
        samples=len(data),
        columns=columns,
        started=started,
        extractors=trained.extractors,
        heads=trained.heads,
        weights=weights.client,
        objective=float(objective(log_likelihood, weights.client)),
        counts=class_counts(gamma, labels, data.classes) if method.formulation.uses_class_shares else None,
        prototypes=prototypes(features, labels, data.classes)
        if "prototypes" in method.needs and features is not None
        else None,
    )
    return update, ClientState(broadcast.round, broadcast.clusters, weights)


def catch_up(method: Method, data: LocalData, broadcast: Broadcast, client: int, state: ClientState | None) -> Weights:
    """Bring a client's weights to the clusters of today; somebody new starts from what the server has of it."""
    if state is None:
        return method.weighting.start(broadcast.weights[client].to(data.inputs.device), len(data))
    missed = [change for change in broadcast.changes if change.round >= state.round]
    mine, _ = follow(state.weights.client.unsqueeze(0), state.clusters, missed, client)
    if state.weights.sample is None:
        return Weights(mine[0])
    return Weights(mine[0], follow(state.weights.sample, state.clusters, missed, client)[0])


def _trained_columns(method: Method, weights: Weights) -> tuple[int, ...]:
    """All clusters with soft weights; only its own with hard ones, so that no other is trained, or decays."""
    return (int(weights.client.argmax()),) if method.weighting.hard else tuple(range(len(weights.client)))


def _train(
    network: Network,
    received: Ensemble,
    features: Tensor | None,
    data: LocalData,
    gamma: Tensor,
    columns: tuple[int, ...],
    batches: list[Tensor],
    sgd: LocalSGD,
) -> Ensemble:
    """Train the given clusters: heads, then the extractor (split), or whole models (full)."""
    if features is not None:
        own = gamma[:, columns]
        heads = train_heads(network, rows(received.heads, columns), features, data.labels, own, batches, sgd)
        extractor = train_extractor(network, received.extractor(0), heads, data, own, batches, sgd)
        return Ensemble(stack([extractor]), heads, received.topology)
    models = [
        train_model(
            network,
            received.extractor(k),
            rows(received.heads, [k]),
            data,
            gamma[:, k : k + 1],
            batches,
            sgd,
        )
        for k in columns
    ]
    heads = {name: torch.cat([head[name] for _, head in models]) for name in received.heads}
    return Ensemble(stack([extractor for extractor, _ in models]), heads, received.topology)


def parameter_distances(network: Network, received: Ensemble, trained: Ensemble) -> Tensor:
    """‖θ_k − θ_i‖₂ of one trained model to every cluster, over all parameters that are the cluster's own."""

    def own(ensemble: Ensemble) -> Tensor:
        extractors = ensemble.extractors if ensemble.topology == "full" else {}
        return flatten(ensemble.heads, extractors, network.buffers)

    distances: Tensor = torch.linalg.vector_norm(own(received) - own(trained), dim=1)
    return distances
