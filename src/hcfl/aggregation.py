"""From a round's reports to averages: per cluster, per part of a split, and what each client changed (spec §4)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.ensemble import Ensemble, flatten, rows
from hcfl.models import Network, Params
from hcfl.state import Update
from hcfl.tiers import Prototypes


@dataclass(frozen=True)
class Reports:
    """All trained models of a round, one row for each (participant, trained cluster)."""

    owners: Tensor
    """(rows,): position of the participant among the updates."""
    columns: Tensor
    """(rows,): the cluster."""
    started: Tensor
    """(rows,): the cluster whose model training started from."""
    sizes: Tensor
    """(rows,): N_i of the participant."""
    models: Ensemble
    """Heads by row; extractors by row in the full topology, by participant in the split one."""

    @classmethod
    def of(cls, updates: Sequence[Update], like: Ensemble) -> "Reports":
        """Line up the updates."""
        owners = [position for position, update in enumerate(updates) for _ in update.columns]
        return cls(
            owners=torch.tensor(owners),
            columns=torch.tensor([column for update in updates for column in update.columns]),
            started=torch.tensor([column for update in updates for column in update.started]),
            sizes=torch.tensor([float(updates[owner].samples) for owner in owners]),
            models=Ensemble(
                {name: torch.cat([update.extractors[name] for update in updates]) for name in like.extractors},
                {name: torch.cat([update.heads[name] for update in updates]) for name in like.heads},
                like.topology,
            ),
        )


def weighted_mean(received: Params, reported: Params, columns: Tensor, sizes: Tensor) -> Params:
    """θ_k = Σ_i N_i·θ_{k,i} / Σ_i N_i over the rows that report column k; a column nobody reports stays.

    Running statistics are averaged like weights; counters among them are rounded.
    """
    if not received:
        return {}
    device = next(iter(received.values())).device
    columns, sizes = columns.to(device), sizes.to(device)
    total = torch.zeros(len(next(iter(received.values()))), device=device).index_add_(0, columns, sizes)
    share = sizes / total[columns]
    means: Params = {}
    for name, old in received.items():
        shape = (-1,) + (1,) * (old.ndim - 1)
        values = reported[name].to(share.dtype) * share.view(shape)
        mean = torch.zeros(old.shape, dtype=share.dtype, device=device).index_add_(0, columns, values)
        mean = mean if old.is_floating_point() else mean.round()
        means[name] = torch.where((total > 0).view(shape), mean.to(old.dtype), old)
    return means


def aggregate(received: Ensemble, reports: Reports, samples: Tensor) -> Ensemble:
    """Average heads (full topology: whole models) per cluster, and the shared extractor over all participants."""
    heads = weighted_mean(received.heads, reports.models.heads, reports.columns, reports.sizes)
    if received.topology == "split":
        everybody = torch.zeros(len(samples), dtype=torch.long)
        extractors = weighted_mean(received.extractors, reports.models.extractors, everybody, samples)
    else:
        extractors = weighted_mean(received.extractors, reports.models.extractors, reports.columns, reports.sizes)
    return Ensemble(extractors, heads, received.topology)


def stack_prototypes(updates: Sequence[Update]) -> Prototypes:
    """Stack the participants' prototypes, one row each."""
    each = [update.prototypes for update in updates if update.prototypes is not None]
    return Prototypes(
        torch.stack([p.class_means for p in each]),
        torch.stack([p.class_counts for p in each]),
        torch.stack([p.mean for p in each]),
    )


def own_updates(network: Network, received: Ensemble, reports: Reports, members: Tensor) -> Tensor:
    """How each participant changed its own cluster's head (full topology: whole model), (participants, parameters)."""
    own = torch.nonzero(reports.columns == members[reports.owners]).flatten().tolist()
    full = received.topology == "full"

    def models(ensemble: Ensemble, columns: list[int]) -> Tensor:
        extractors = rows(ensemble.extractors, columns) if full else {}
        return flatten(rows(ensemble.heads, columns), extractors, network.buffers)

    return models(reports.models, own) - models(received, reports.started[own].tolist())


def whole_updates(network: Network, received: Ensemble, reports: Reports, members: Tensor) -> Tensor:
    """How each participant changed its own cluster's model, a shared extractor included."""
    own = own_updates(network, received, reports, members)
    if received.topology == "full":
        return own
    shared = [
        (reports.models.extractors[name] - sent).flatten(1)
        for name, sent in received.extractors.items()
        if name not in network.buffers
    ]
    return torch.cat([own, *shared], dim=1)


def part_model(
    ensemble: Ensemble, reports: Reports, participants: Sequence[int], part: Sequence[int], column: int
) -> Ensemble:
    """Average one cluster's model over a part of its clients; without participants it stays the cluster's."""
    inside = torch.tensor([client in part for client in participants])
    at = torch.nonzero(inside[reports.owners] & (reports.columns == column)).flatten().tolist()
    to = torch.zeros(len(at), dtype=torch.long)

    def average(received: Params, reported: Params) -> Params:
        return weighted_mean(rows(received, [column]), rows(reported, at), to, reports.sizes[at])

    heads = average(ensemble.heads, reports.models.heads)
    if ensemble.topology == "split":
        return Ensemble(ensemble.extractors, heads, "split")
    return Ensemble(average(ensemble.extractors, reports.models.extractors), heads, "full")


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
