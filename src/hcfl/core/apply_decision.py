"""A decision of tier 3 carried out on the server's tables: move, split, merge, remove."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.core.aggregation import MEAN, Averaging, aggregate, merged, moved, part_model, with_columns
from hcfl.core.cluster_log import (
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
from hcfl.core.lost_ids import counted_everywhere, last_lists, unlisted
from hcfl.core.state import ServerState, Update
from hcfl.models.ensemble import Ensemble
from hcfl.tiers import Decision, MergeDecision, MoveDecision, SplitDecision
from hcfl.tiers.weighting import one_hot


def apply(
    received: Ensemble,
    state: ServerState,
    decision: Decision,
    hard: bool,
    update: Update,
    averaging: Averaging = MEAN,
) -> ServerState:
    """Carry out a decision: moves, splits, merges, then removals.

    `received` are the models of the round's start, `state` has the averaged ones and the new reports, `hard` says
    whether each client belongs to exactly one cluster. Every step is recorded in `ServerState.changes`.
    """
    ids = state.clusters
    if decision.moves:
        update = moved(update, decision.moves) if hard else update
        ensemble = aggregate(received, update, averaging) if hard else state.ensemble
        state = replace(_placed(state, decision.moves, hard), ensemble=ensemble)
    before = state
    for split in decision.splits:
        counts = counted_everywhere(update) if decision.lost_ids else update
        state = _split(state, split, "move" if hard else split.rule, counts, averaging)
    if decision.lost_ids and decision.splits:
        state = _by_lists(before, state, decision.splits, update, averaging)
    if decision.merges:
        state = _merge(state, decision.merges, ids)
    for column in decision.remove:
        state = _remove(state, ids[column])
    return state


def _split(
    state: ServerState, decision: SplitDecision, rule: Rule, update: Update, averaging: Averaging
) -> ServerState:
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
    first, second = (
        part_model(state.ensemble, update, part, parent, averaging) for part in (decision.first, decision.second)
    )
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


def _by_lists(
    before: ServerState,
    state: ServerState,
    splits: Sequence[SplitDecision],
    update: Update,
    averaging: Averaging,
) -> ServerState:
    """Put clients where public code of CFL has them after a split by positions, which may name any client.

    A client is in the last list that names it. A client that no list names goes on alone, from its own model.
    """
    last = last_lists(state)
    elsewhere = [
        MoveDecision(client, state.column(cluster), with_model=True)
        for client, cluster in sorted(last.items())
        if state.members[client] >= 0 and state.clusters[int(state.members[client])] != cluster
    ]
    if elsewhere:
        state = _placed(state, elsewhere, hard=True)
    torn = torch.isin(before.members, torch.tensor([split.parent for split in splits]))
    for client in torch.nonzero(torn).flatten().tolist():
        if client not in last:
            alone = SplitDecision(int(state.members[client]), (), (client,), "one-hot", 0.0, 0.0, 0.0)
            state = _split(state, alone, "alone", counted_everywhere(update), averaging)
    occupied = set(state.members.tolist())
    empty = [column for column, lonely in enumerate(unlisted(state).tolist()) if lonely and column not in occupied]
    for cluster in [state.clusters[column] for column in empty]:
        state = _remove(state, cluster)
    return state


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


def _merge(state: ServerState, decisions: Sequence[MergeDecision], ids: tuple[int, ...]) -> ServerState:
    """Let clusters take in others, one after another; models all at once, since means of means are means."""
    sizes = torch.zeros(len(state.clusters)).index_add_(0, state.members.clamp_min(0), state.sizes)
    owner = list(range(len(state.clusters)))  # a split in the same round has added columns
    weights, members, counts, clusters = state.weights, state.members, state.counts, state.clusters
    changes: list[Change] = []
    for decision in decisions:
        change = Merge(state.round, ids[decision.into], ids[decision.gone], decision.distance, decision.threshold)
        into, gone = clusters.index(change.into), clusters.index(change.gone)
        owner = [decision.into if cluster == decision.gone else cluster for cluster in owner]
        weights = merge_weights(weights, into, gone)
        members = torch.where(members == gone, into, members)
        members = torch.where(members > gone, members - 1, members)
        if counts is not None:
            counts = torch.stack([merge_weights(each, into, gone) for each in counts.unbind(dim=2)], dim=2)
        clusters = without(clusters, change.gone)
        changes.append(change)
    return replace(
        state,
        ensemble=merged(state.ensemble, [state.column(cluster) for cluster in clusters], owner, sizes),
        clusters=clusters,
        weights=weights,
        members=members,
        counts=counts,
        changes=(*state.changes, *changes),
    )


def _placed(state: ServerState, moves: Sequence[MoveDecision], hard: bool) -> ServerState:
    """Put clients into other clusters, and leave models as they are."""
    clients, columns = [move.client for move in moves], [move.to for move in moves]
    change = Move(state.round, tuple(clients), tuple(state.clusters[column] for column in columns))
    weights, members, counts = state.weights.clone(), state.members.clone(), state.counts
    weights[clients] = one_hot(torch.tensor(columns), len(state.clusters))
    members[clients] = torch.tensor(columns)
    if hard and counts is not None:
        counts, rows = counts.clone(), _rows_of(state, clients)
        counts[rows] = weights[clients].unsqueeze(2) * counts[rows].sum(dim=1, keepdim=True)
    return replace(_changed(state, change), weights=weights, members=members, counts=counts)


def _rows_of(state: ServerState, clients: Sequence[int]) -> Tensor:
    """Return the rows of `counts` that belong to clients, which have all reported."""
    ids = torch.tensor(clients)
    return ids if state.counted is None else torch.searchsorted(state.counted, ids)


def _changed(state: ServerState, change: Change) -> ServerState:
    return replace(state, changes=(*state.changes, change))


def _known(state: ServerState, weights: Tensor) -> Tensor:
    """Keep clients that never took part uniform over the current clusters."""
    return torch.where((state.members >= 0).unsqueeze(1), weights, 1 / weights.shape[1])
