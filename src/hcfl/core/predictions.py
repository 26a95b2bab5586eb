"""What clients predict with the models of their groups: Σ_k ω̃_k p_k(·|x), or a model that they keep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.core.cluster_log import follow
from hcfl.core.state import ClientState, ServerState
from hcfl.data import Federation
from hcfl.methods import Method
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble, embed, forward
from hcfl.models.inputs import Inputs, some
from hcfl.models.tasks import Task
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.gaussians import mixture_log_density


def mixture(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Return log Σ_k ω̃_k·p_k(·|x), (samples, classes), from (samples, clusters, classes) and weights per sample."""
    return torch.logsumexp(weights.log().unsqueeze(2) + log_probs, dim=1)


def log_densities(network: Network, state: ServerState, inputs: Inputs) -> Tensor | None:
    """Log N_a(z) of scaled inputs under each Gaussian, (samples, Gaussians), where the formulation models them."""
    if state.gaussians is None or state.anchor is None:
        return None
    return state.gaussians.log_densities(state.gaussians.embed(embed(network, state.anchor.extractor(0), inputs)))


@dataclass(frozen=True)
class Predictions:
    """What some clients predict with the models of their groups, before anything personal."""

    mixed: Tensor
    """Σ_k ω̃_k p_k(·|x), or what a model says that the client keeps, in the form of the task: (samples, values), of
    classes log p(·|x)."""
    features: Tensor
    """φ(x) by the extractor of each client's main cluster, (samples, features)."""
    log_likelihood: Tensor | None = None
    """Log Σ_k ω̃_k p_k(y|x), (samples,), where the answers were given."""


@torch.no_grad()
def predictions(
    network: Network,
    ensemble: Ensemble,
    inputs: Inputs,
    segments: Segments,
    weights: Tensor,
    own: Sequence[Ensemble | None] = (),
    answers: Tensor | None = None,
) -> Predictions:
    """Predict the samples of some clients with weights for each sample, (samples, clusters); `own` are kept models.

    Every extractor runs once, on the samples that have weight on its cluster.
    """
    task = network.task
    if ensemble.topology == "split":
        features, outputs = forward(network, ensemble, inputs)
        assert features is not None
        weights = weights.to(outputs.device)
        mixed = task.mix(task.distribution(outputs), weights)
        likelihood = None
        if answers is not None:
            likelihood = _of_answers(task, outputs, answers.to(outputs.device), weights)
    else:
        mixed, features, likelihood = _of_full_models(network, ensemble, inputs, weights, answers)
    for client, model in enumerate(own):
        if model is not None and segments.sizes[client]:
            at = torch.nonzero(segments.index == client).flatten().to(mixed.device)
            mine = some(inputs, at)
            features[at] = embed(network, model.extractor(0), mine)
            outputs = network.logits(model.heads, features[at])[:, :1]
            alone = outputs.new_ones(len(outputs), 1)
            mixed[at] = task.mix(task.distribution(outputs), alone)
            if likelihood is not None and answers is not None:
                likelihood[at] = _of_answers(task, outputs, answers.to(mixed.device)[at], alone)
    return Predictions(mixed, features, likelihood)


def _of_answers(task: Task, outputs: Tensor, answers: Tensor, weights: Tensor) -> Tensor:
    """Log Σ_k ω_k·p_k(y|x), (samples,)."""
    return torch.logsumexp(weights.log() + task.log_likelihood(outputs, answers), dim=1)


def _of_full_models(
    network: Network, ensemble: Ensemble, inputs: Inputs, weights: Tensor, answers: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Mix full models: the mixture, the features of each sample's main cluster, and log p(y|x) of known answers."""
    task, main, device = network.task, weights.argmax(dim=1), inputs.device
    used = torch.nonzero((weights > 0).any(dim=0)).flatten().tolist()
    weights = weights.to(device)
    of_each, features, likelihoods = [], torch.empty(0), torch.empty(0)
    for place, cluster in enumerate(used):
        at = torch.nonzero(weights[:, cluster] > 0).flatten()
        seen = embed(network, ensemble.extractor(cluster), some(inputs, at))
        outputs = network.logits({name: tensor[[cluster]] for name, tensor in ensemble.heads.items()}, seen)
        if not place:
            features = seen.new_zeros(len(inputs), seen.shape[1])
            likelihoods = seen.new_full((len(inputs), len(used)), -torch.inf)
        mine = main.to(device)[at] == cluster
        features[at[mine]] = seen[mine]
        of_each.append((at, task.distribution(outputs)[:, 0]))
        if answers is not None:
            likelihoods[at, place] = task.log_likelihood(outputs, answers.to(device)[at])[:, 0]
    mixed = task.mix_parts(of_each, weights[:, used])
    likelihood = None if answers is None else torch.logsumexp(weights[:, used].log() + likelihoods, dim=1)
    return mixed, features, likelihood


def sample_weights(
    method: Method, state: ServerState, clients: Mapping[int, ClientState], densities: Tensor | None, segments: Segments
) -> Tensor:
    """Return the weights that all clients' samples are predicted with, (samples, clusters)."""
    weights = segments.each(state.weights)
    if densities is None:
        return weights
    density = mixture_log_density(_components(method, state, clients), densities, segments)
    return torch.softmax(weights.log() + density, dim=1)


def kept_models(clients: Mapping[int, ClientState], number: int) -> list[Ensemble | None]:
    """Return the model that each client keeps and predicts with; None where it has none."""
    kept = {client: known.own for client, known in clients.items()}
    return [kept.get(client) for client in range(number)]


def predictions_of_all(
    federation: Federation,
    network: Network,
    method: Method,
    state: ServerState,
    clients: Mapping[int, ClientState],
    inputs: Inputs,
    segments: Segments,
    answers: Tensor | None = None,
) -> Predictions:
    """Predict scaled samples of all clients, one client's after another's."""
    densities = log_densities(network, state, inputs)
    weights = sample_weights(method, state, clients, densities, segments)
    own = kept_models(clients, federation.clients) if method.local.kept else ()
    return predictions(network, state.ensemble, inputs, segments, weights, own, answers)


def as_clients_know(state: ServerState, clients: Mapping[int, ClientState]) -> ServerState:
    """Return the server's state with every client's own weights, where clients told the server less."""
    weights = state.weights.clone()
    for client, known in clients.items():
        missed = [change for change in state.changes if change.round >= known.round]
        weights[client] = follow(known.weights, known.clusters, missed, client).client[0]
    return replace(state, weights=weights)


def _components(method: Method, state: ServerState, clients: Mapping[int, ClientState]) -> Tensor:
    """Every client's ρ, (clients, clusters, Gaussians); uniform for clients that never took part."""
    start = method.uniform_components(len(state.clusters))
    assert start is not None
    table = start.repeat(len(state.members), 1, 1)
    for client, known in clients.items():
        missed = [change for change in state.changes if change.round >= known.round]
        now = follow(known.weights, known.clusters, missed, client).components
        assert now is not None
        table[client] = now[0]
    return table
