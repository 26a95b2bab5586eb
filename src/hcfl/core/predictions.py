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

    log_probs: Tensor
    """Log p(·|x), (samples, classes): Σ_k ω̃_k p_k, or a model that the client keeps."""
    features: Tensor
    """φ(x) by the extractor of each client's main cluster, (samples, features)."""


@torch.no_grad()
def predictions(
    network: Network,
    ensemble: Ensemble,
    inputs: Inputs,
    segments: Segments,
    weights: Tensor,
    own: Sequence[Ensemble | None] = (),
) -> Predictions:
    """Predict the samples of some clients with weights for each sample, (samples, clusters); `own` are kept models.

    Every extractor runs once, on the samples that have weight on its cluster.
    """
    if ensemble.topology == "split":
        features, logits = forward(network, ensemble, inputs)
        assert features is not None
        log_probs = mixture(torch.log_softmax(logits, dim=2), weights.to(logits.device))
    else:
        log_probs, features = _of_full_models(network, ensemble, inputs, weights)
    for client, model in enumerate(own):
        if model is not None and segments.sizes[client]:
            at = torch.nonzero(segments.index == client).flatten().to(log_probs.device)
            mine = some(inputs, at)
            features[at] = embed(network, model.extractor(0), mine)
            log_probs[at] = torch.log_softmax(network.logits(model.heads, features[at]), dim=2)[:, 0]
    return Predictions(log_probs, features)


def _of_full_models(network: Network, ensemble: Ensemble, inputs: Inputs, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mix full models: log p(·|x), and the features of each sample's main cluster."""
    parts, main = [], weights.argmax(dim=1)
    for cluster in torch.nonzero((weights > 0).any(dim=0)).flatten().tolist():
        at = torch.nonzero(weights[:, cluster] > 0).flatten()
        rows = at.to(inputs.device)
        features = embed(network, ensemble.extractor(cluster), some(inputs, rows))
        heads = {name: tensor[[cluster]] for name, tensor in ensemble.heads.items()}
        log_prob = torch.log_softmax(network.logits(heads, features), dim=2)[:, 0]
        weighted = log_prob + weights[at, cluster].log().to(rows.device).unsqueeze(1)
        parts.append((rows, (main[at] == cluster).to(rows.device), features, weighted))
    _, _, features, log_prob = parts[0]
    all_features = features.new_zeros(len(inputs), features.shape[1])
    log_probs = log_prob.new_full((len(inputs), log_prob.shape[1]), -torch.inf)
    for rows, mine, features, log_prob in parts:
        log_probs[rows] = torch.logaddexp(log_probs[rows], log_prob)
        all_features[rows[mine]] = features[mine]
    return log_probs, all_features


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
) -> Predictions:
    """Predict scaled samples of all clients, one client's after another's."""
    densities = log_densities(network, state, inputs)
    weights = sample_weights(method, state, clients, densities, segments)
    own = kept_models(clients, federation.clients) if method.local.kept else ()
    return predictions(network, state.ensemble, inputs, segments, weights, own)


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
