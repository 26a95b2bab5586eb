"""From a round's updates to averages: per cluster, per part of a split, and what each client changed (spec §4).

Every average is one product: models × how much each counts in each average, their mass.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.ensemble import Ensemble, flatten, mix, rows
from hcfl.models import Network, Params
from hcfl.state import Update
from hcfl.tiers import MoveDecision
from hcfl.tiers.weighting import one_hot


def own_rows(update: Update, members: Tensor) -> list[int]:
    """Return, for each participant, the row of the model that counts in its own cluster."""
    counts = update.mass[torch.arange(len(update.owners)), members[update.owners]] > 0
    return torch.nonzero(counts).flatten().tolist()


def moved(update: Update, moves: Sequence[MoveDecision]) -> Update:
    """Let the only model of each client that moves count in its new cluster, or nowhere."""
    mass, position = update.mass.clone(), {client: row for row, client in enumerate(update.clients)}
    for move in moves:
        if move.client in position:
            mine = update.owners == position[move.client]
            size = float(update.sizes[position[move.client]])
            mass[mine] = size * one_hot(move.to, mass.shape[1]) if move.with_model else 0
    return replace(update, mass=mass)


def weighted_mean(received: Params, reported: Params, mass: Tensor) -> Params:
    """θ_k = Σ_r m_rk·θ_r / Σ_r m_rk over all reported models, from mass (models, clusters); without mass it stays.

    Running statistics are averaged like weights; counters among them are rounded.
    """
    if not received:
        return {}
    total, device = mass.sum(dim=0), next(iter(received.values())).device
    share = torch.where(total > 0, mass / total, 0).T.to(device)
    means = {name: mix(share, reported[name]) for name in received}
    if (idle := torch.nonzero(total == 0).flatten().to(device)).numel():
        for name, old in received.items():
            means[name][idle] = old[idle]
    return means


def aggregate(received: Ensemble, update: Update) -> Ensemble:
    """Average heads (full topology: whole models) per cluster, and a shared extractor over all participants."""
    shared = received.topology == "split"
    mass = update.sizes.unsqueeze(1) if shared else update.mass
    return Ensemble(
        weighted_mean(received.extractors, update.models.extractors, mass),
        weighted_mean(received.heads, update.models.heads, update.mass),
        received.topology,
    )


def without_the_empty(ensemble: Ensemble, update: Update) -> Ensemble:
    """Set the models of clusters that no participant trained to zero, as some public code does."""
    alive = update.mass.sum(dim=0) > 0
    return ensemble.map(lambda tensor: tensor * alive.to(tensor).view(-1, *(1,) * (tensor.ndim - 1)))


def common_model(received: Ensemble, update: Update, members: Tensor) -> Ensemble:
    """N_i-weighted mean of every participant's model of its own cluster, as an ensemble of one."""
    own = own_rows(update, members)
    everybody = update.sizes.unsqueeze(1)
    extractors = update.models.extractors if received.topology == "split" else rows(update.models.extractors, own)
    first = received.select([0])
    return Ensemble(
        weighted_mean(first.extractors, extractors, everybody),
        weighted_mean(first.heads, rows(update.models.heads, own), everybody),
        received.topology,
    )


def own_parameters(network: Network, ensemble: Ensemble) -> Tensor:
    """Return what is each cluster's own as (models, parameters): heads, in the full topology whole models."""
    return flatten(ensemble.heads, ensemble.extractors if ensemble.topology == "full" else {}, network.buffers)


def own_models(network: Network, update: Update, members: Tensor) -> Tensor:
    """Return each participant's trained parameters that are its own cluster's, (participants, parameters)."""
    return own_parameters(network, update.models.select(own_rows(update, members)))


def own_updates(network: Network, received: Ensemble, update: Update, members: Tensor) -> Tensor:
    """How each participant changed its own cluster's head (full topology: whole model), (participants, parameters)."""
    before = own_parameters(network, received)
    started = update.started[own_rows(update, members)].to(before)
    return own_models(network, update, members) - started @ before


def whole_updates(network: Network, received: Ensemble, update: Update, members: Tensor) -> Tensor:
    """How each participant changed its own cluster's model, a shared extractor included."""
    own = own_updates(network, received, update, members)
    if received.topology == "full":
        return own
    shared = [
        (update.models.extractors[name] - sent).reshape(len(update.clients), -1)
        for name, sent in sorted(received.extractors.items())
        if name not in network.buffers
    ]
    return torch.cat([own, *shared], dim=1)


def part_model(ensemble: Ensemble, update: Update, part: Sequence[int], column: int) -> Ensemble:
    """Average one cluster's model over a part of its clients; without participants it stays the cluster's."""
    members = set(part)
    inside = torch.tensor([client in members for client in update.clients])[update.owners]
    mass = (update.mass[:, column] * inside).unsqueeze(1)
    parent = ensemble.select([column])
    heads = weighted_mean(parent.heads, update.models.heads, mass)
    if ensemble.topology == "split":
        return Ensemble(ensemble.extractors, heads, "split")
    return Ensemble(weighted_mean(parent.extractors, update.models.extractors, mass), heads, "full")


def merged(ensemble: Ensemble, kept: Sequence[int], owner: Sequence[int], sizes: Tensor) -> Ensemble:
    """Size-weighted means of merged clusters: `kept` columns stay, `owner` says into which of them each one went."""
    weights = torch.stack([(torch.tensor(owner) == column) * sizes for column in kept])
    untouched = weights.sum(dim=1) == 0  # nobody has told the size of a cluster whose client never took part
    weights[untouched, torch.tensor(kept)[untouched]] = 1
    shares = weights / weights.sum(dim=1, keepdim=True)
    return ensemble.map(lambda tensor: mix(shares.to(tensor.device), tensor))


def with_columns(ensemble: Ensemble, parent: int, first: Ensemble, second: Ensemble) -> Ensemble:
    """Put the first part's model in the parent's column and append the second's."""

    def place(old: Params, one: Params, two: Params) -> Params:
        return {
            name: torch.cat([tensor[:parent], one[name], tensor[parent + 1 :], two[name]])
            for name, tensor in old.items()
        }

    heads = place(ensemble.heads, first.heads, second.heads)
    if ensemble.topology == "split":
        return Ensemble(ensemble.extractors, heads, "split")
    return Ensemble(place(ensemble.extractors, first.extractors, second.extractors), heads, "full")
