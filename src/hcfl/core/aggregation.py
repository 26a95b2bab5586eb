"""From a round's updates to averages: per cluster, per part of a split, and what each client changed.

Every mean is one product: models × how much each counts in each average, their mass. Other averages
(`hcfl.methods.robust_means`) take its place where a method has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hcfl.core.state import Update
from hcfl.methods.robust_means import NOTHING, Average, Mean
from hcfl.models import Network, Params
from hcfl.models.ensemble import Ensemble, flatten, mix
from hcfl.tiers import MoveDecision
from hcfl.tiers.traits import AggregationTraits, traits_of
from hcfl.tiers.weighting import one_hot

BELONGS = 0.5
"""A client belongs to its cluster, and to others in which its weight is at least this share of its largest."""


def belongs(weights: Tensor) -> Tensor:
    """Whether each participant belongs to each cluster, (participants, clusters), from its weights."""
    return weights >= BELONGS * weights.max(dim=1, keepdim=True).values


def within(update: Update) -> Update:
    """Let models count only in the clusters that their clients belong to.

    With soft weights each client sends a head for every cluster, also for those that it hardly trained. Such a head is
    nearly the one that was sent out: to an average that leaves out what is unusual, a cluster's members would be it.
    """
    return replace(update, mass=update.mass * belongs(update.weights)[update.row_participants])


def own_rows(update: Update, members: Tensor) -> list[int]:
    """Return, for each participant, the row of the model that counts in its own cluster."""
    counts = update.mass[torch.arange(len(update.row_participants)), members[update.row_participants]] > 0
    return torch.nonzero(counts).flatten().tolist()


def moved(update: Update, moves: Sequence[MoveDecision]) -> Update:
    """Let the only model of each client that moves count in its new cluster, or nowhere."""
    mass, position = update.mass.clone(), {client: row for row, client in enumerate(update.clients)}
    for move in moves:
        if move.client in position:
            mine = update.row_participants == position[move.client]
            size = float(update.sizes[position[move.client]])
            mass[mine] = size * one_hot(move.to, mass.shape[1]) if move.with_model else 0
    return replace(update, mass=mass)


@dataclass(frozen=True)
class Averaging:
    """How models become one: which average, and which of the extractor's tensors are no parameters."""

    average: Average = field(default_factory=Mean)
    buffers: frozenset[str] = NOTHING
    """Running statistics: averaged like parameters, but never compared."""

    @property
    def is_mean(self) -> bool:
        """Whether the average is the mean."""
        return traits_of(AggregationTraits, self.average).is_mean

    def extractors(self, received: Params, reported: Params, mass: Tensor) -> Params:
        """Average extractors (models, …) by mass (models, clusters); without mass, the received ones stay."""
        return self.average.combine(received, reported, mass, self.buffers)

    def heads(self, received: Params, reported: Params, mass: Tensor) -> Params:
        """Average heads (models, …) by mass (models, clusters); without mass, the received ones stay."""
        return self.average.combine(received, reported, mass, NOTHING)


MEAN = Averaging()

EXTRACTOR, HEAD = "extractor.", "head."
"""What names begin with where a whole model is averaged at once."""


def aggregate(received: Ensemble, update: Update, averaging: Averaging = MEAN) -> Ensemble:
    """Average heads (full topology: whole models) per cluster, and a shared extractor over all participants.

    `received` are the models that the server sent out; a cluster whose mass is 0 keeps its received model. A shared
    extractor is weighted by N_i, heads and whole models by `update.mass` (rows, clusters). An average other than the
    mean compares models, so it gets only those of a cluster's own clients.
    """
    if not averaging.is_mean:
        update = within(update)
    if received.topology == "full":
        return _whole(received, update.models, update.mass, averaging)
    return Ensemble(
        averaging.extractors(received.extractors, update.models.extractors, update.sizes.unsqueeze(1)),
        averaging.heads(received.heads, update.models.heads, update.mass),
        "split",
    )


def _whole(received: Ensemble, models: Ensemble, mass: Tensor, averaging: Averaging) -> Ensemble:
    """Average full models, each as one: how far it is from others is told by all of it."""
    old, new = (
        {
            **{EXTRACTOR + name: tensor for name, tensor in each.extractors.items()},
            **{HEAD + name: tensor for name, tensor in each.heads.items()},
        }
        for each in (received, models)
    )
    found = averaging.average.combine(old, new, mass, frozenset(EXTRACTOR + name for name in averaging.buffers))
    extractors = {name: found[EXTRACTOR + name] for name in received.extractors}
    return Ensemble(extractors, {name: found[HEAD + name] for name in received.heads}, "full")


def without_the_empty(ensemble: Ensemble, update: Update) -> Ensemble:
    """Set the models of clusters that no participant trained to zero, as some public code does."""
    alive = update.mass.sum(dim=0) > 0
    return ensemble.map(lambda tensor: tensor * alive.to(tensor).view(-1, *(1,) * (tensor.ndim - 1)))


def common_model(received: Ensemble, update: Update, members: Tensor, averaging: Averaging = MEAN) -> Ensemble:
    """N_i-weighted mean of every participant's model of its own cluster, as an ensemble of one."""
    own, sizes, first = own_rows(update, members), update.sizes.unsqueeze(1), received.select([0])
    models = update.models.select(own)
    if received.topology == "full":
        return _whole(first, models, sizes, averaging)
    return Ensemble(
        averaging.extractors(first.extractors, models.extractors, sizes),
        averaging.heads(first.heads, models.heads, sizes),
        "split",
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


def part_model(
    ensemble: Ensemble,
    update: Update,
    part: Sequence[int],
    column: int,
    averaging: Averaging = MEAN,
) -> Ensemble:
    """Average one cluster's model over a part of its clients; without participants it stays the cluster's."""
    members = set(part)
    inside = torch.tensor([client in members for client in update.clients])[update.row_participants]
    mass = (update.mass[:, column] * inside).unsqueeze(1)
    parent = ensemble.select([column])
    if ensemble.topology == "full":
        return _whole(parent, update.models, mass, averaging)
    return Ensemble(ensemble.extractors, averaging.heads(parent.heads, update.models.heads, mass), "split")


def merged(ensemble: Ensemble, kept: Sequence[int], owner: Sequence[int], sizes: Tensor) -> Ensemble:
    """Size-weighted means of merged clusters: `kept` columns stay, `owner` says into which of them each one went."""
    weights = torch.stack([(torch.tensor(owner) == column) * sizes for column in kept])
    untouched = weights.sum(dim=1) == 0  # a cluster whose clients never took part has no known size
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
