"""A decision of tier 3 carried out on the server's tables: split, move, merge, remove (spec §4, steps 3-5)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.aggregation import Reports, aggregate, merged, part_model, with_columns
from hcfl.clusters import (
    FIRST,
    SECOND,
    Change,
    Merge,
    Move,
    Removal,
    Rule,
    Split,
    merge_weights,
    remove_weights,
    split_weights,
    without,
)
from hcfl.state import ServerState
from hcfl.tiers import Decision, MergeDecision, MoveDecision, SplitDecision
from hcfl.tiers.weighting import one_hot


def apply(state: ServerState, decision: Decision, hard: bool, reports: Reports) -> ServerState:
    """Carry out a decision on the server's tables: splits, moves, merges, then the removals (spec §4, steps 3-5)."""
    ids = state.clusters
    for split in decision.splits:
        state = _split(state, split, hard, reports)
    if decision.moves:
        state = _move(state, decision.moves, hard, reports)
    for merge in decision.merges:
        state = _merge(state, merge, ids)
    for column in decision.remove:
        state = _remove(state, ids[column])
    return state


def _split(state: ServerState, decision: SplitDecision, hard: bool, reports: Reports) -> ServerState:
    rule: Rule = "move" if hard else "halve" if decision.halve else "one-hot"
    change = Split(
        round=state.round,
        parent=state.clusters[decision.parent],
        child=state.born,
        first=decision.first,
        second=decision.second,
        rule=rule,
        maximum=decision.maximum,
        mean=decision.mean,
        threshold=decision.threshold,
    )
    parts = change.parts(len(state.members))
    parent = decision.parent
    first, second = (part_model(state.ensemble, reports, part, parent) for part in (decision.first, decision.second))
    counts = state.counts
    return replace(
        _changed(state, change),
        ensemble=with_columns(state.ensemble, parent, first, second),
        clusters=(*state.clusters, change.child),
        born=state.born + 1,
        weights=_known(state, split_weights(state.weights, parent, parts, rule)),
        members=torch.where(parts == SECOND, len(state.clusters), torch.where(parts == FIRST, parent, state.members)),
        counts=None if counts is None else torch.cat([counts, counts[:, [parent]]], dim=1),
    )


def _remove(state: ServerState, cluster: int) -> ServerState:
    column = state.column(cluster)
    keep = [k for k in range(len(state.clusters)) if k != column]
    counts = state.counts
    weights = _known(state, remove_weights(state.weights, column))
    members = torch.where(state.members > column, state.members - 1, state.members)
    return replace(
        _changed(state, Removal(state.round, cluster)),
        ensemble=state.ensemble.map(lambda tensor: tensor[keep]),
        clusters=without(state.clusters, cluster),
        weights=weights,
        members=torch.where(state.members == column, weights.argmax(dim=1), members),
        counts=None if counts is None else counts[:, keep],
    )


def _merge(state: ServerState, decision: MergeDecision, ids: tuple[int, ...]) -> ServerState:
    change = Merge(state.round, ids[decision.into], ids[decision.gone], decision.distance, decision.threshold)
    into, gone = state.column(change.into), state.column(change.gone)
    sizes = torch.zeros(len(state.clusters)).index_add_(0, state.members.clamp_min(0), state.sizes)
    keep = [k for k in range(len(state.clusters)) if k != gone]
    members = torch.where(state.members == gone, into, state.members)
    counts = state.counts
    if counts is not None:
        counts = counts.clone()
        counts[:, into] += counts[:, gone]
        counts = counts[:, keep]
    return replace(
        _changed(state, change),
        ensemble=merged(state.ensemble, into, gone, sizes),
        clusters=without(state.clusters, change.gone),
        weights=merge_weights(state.weights, into, gone),
        members=torch.where(members > gone, members - 1, members),
        counts=counts,
    )


def _move(state: ServerState, moves: Sequence[MoveDecision], hard: bool, reports: Reports) -> ServerState:
    """Put clients into other clusters; with hard weights, what they trained counts where they are now."""
    clients, columns = [move.client for move in moves], [move.to for move in moves]
    change = Move(state.round, tuple(clients), tuple(state.clusters[column] for column in columns))
    weights, members, counts = state.weights.clone(), state.members.clone(), state.counts
    weights[clients] = one_hot(torch.tensor(columns), len(state.clusters))
    members[clients] = torch.tensor(columns)
    if hard and counts is not None:
        counts = counts.clone()
        counts[clients] = weights[clients].unsqueeze(2) * counts[clients].sum(dim=1, keepdim=True)
    ensemble = state.ensemble
    if hard and reports.mass.shape[1] == len(state.clusters):  # beside a split, models are the split's to place
        ensemble = aggregate(ensemble, reports.moved(clients, columns))
    return replace(_changed(state, change), ensemble=ensemble, weights=weights, members=members, counts=counts)


def _changed(state: ServerState, change: Change) -> ServerState:
    return replace(state, changes=(*state.changes, change))


def _known(state: ServerState, weights: Tensor) -> Tensor:
    """Keep clients of whom nothing is known uniform over the clusters of the day."""
    return torch.where((state.members >= 0).unsqueeze(1), weights, 1 / weights.shape[1])
