"""What the server does in a round: aggregate, record, let tiers 4 and 3 decide, apply (spec §4 and §5)."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.aggregation import (
    Reports,
    aggregate,
    own_updates,
    part_model,
    stack_prototypes,
    whole_updates,
    with_columns,
)
from hcfl.clusters import FIRST, SECOND, Change, Removal, Rule, Split, remove_weights, split_weights, without
from hcfl.ensemble import Ensemble
from hcfl.methods import Method
from hcfl.models import Network
from hcfl.state import Broadcast, ServerState, Update
from hcfl.tiers import Assigned, Correlation, Decision, Participants, SplitDecision
from hcfl.tiers.formulation import class_shares
from hcfl.tiers.weighting import one_hot, uniform


def begin(method: Method, ensemble: Ensemble, clients: int, classes: int) -> ServerState:
    """Return the state before the first round: nobody has reported anything."""
    clusters = ensemble.clusters
    counts = torch.zeros(clients, clusters, classes) if method.formulation.uses_class_shares else None
    members = torch.full((clients,), -1)
    weights = uniform(clusters).repeat(clients, 1)
    if isinstance(method.weighting, Assigned):
        members = torch.arange(clients) if method.clusters is None else torch.zeros(clients, dtype=torch.long)
        weights = one_hot(members, clusters)
    return ServerState(
        round=0,
        ensemble=ensemble,
        clusters=tuple(range(clusters)),
        born=clusters,
        weights=weights,
        members=members,
        counts=counts,
        sizes=torch.zeros(clients),
        last_seen=torch.zeros(clients, dtype=torch.long),
    )


def broadcast(method: Method, state: ServerState, classes: int) -> Broadcast:
    """Return what the next round's participants receive."""
    device = next(iter(state.ensemble.heads.values())).device
    return Broadcast(
        round=state.round + 1,
        ensemble=state.ensemble,
        class_shares=shares(method, state, classes).to(device),
        clusters=state.clusters,
        changes=state.changes,
        weights=state.weights,
    )


def shares(method: Method, state: ServerState, classes: int) -> Tensor:
    """P_k(y) from the latest report of all clients, also those not sampled now, (clusters, classes)."""
    if state.counts is None:
        return torch.full((len(state.clusters), classes), 1 / classes)
    counts = state.counts.sum(dim=0)
    floor = method.formulation.floor if isinstance(method.formulation, Correlation) else Correlation.floor
    return class_shares(counts, floor)


def conclude(method: Method, network: Network, state: ServerState, updates: Sequence[Update]) -> ServerState:
    """Turn a round's updates into the next state: aggregate, record the reports, let tiers 4 and 3 decide, apply."""
    reports = Reports.of(updates, state.ensemble)
    samples = torch.tensor([float(update.samples) for update in updates])
    after = record(state, updates)
    after = replace(after, ensemble=aggregate(state.ensemble, reports, samples))

    seen = _participants(method, network, state.ensemble, after, reports, updates)
    distance = None if method.distance is None else method.distance.between(seen).cpu()
    occupied = _occupied(method, after)
    decision = method.adaptation.decide(seen, distance, occupied)
    return apply(after, decision, method.weighting.hard, reports, [update.client for update in updates])


def _occupied(method: Method, state: ServerState) -> Tensor:
    """Return which clusters are some client's own, (clusters,); everybody's last report counts, absent or not.

    Who has never reported could still join any of the clusters of the start, so those stay until all have spoken.
    """
    occupied = torch.bincount(state.members[state.members >= 0], minlength=len(state.clusters)) > 0
    if (state.members < 0).any():
        occupied |= torch.tensor([cluster < (method.clusters or 0) for cluster in state.clusters])
    return occupied


def record(state: ServerState, updates: Sequence[Update]) -> ServerState:
    """Remember each participant's report; a client's cluster is the one with its largest weight."""
    ids = torch.tensor([update.client for update in updates])
    weights, members, sizes = state.weights.clone(), state.members.clone(), state.sizes.clone()
    weights[ids] = torch.stack([update.weights.cpu() for update in updates])
    members[ids] = weights[ids].argmax(dim=1)
    sizes[ids] = torch.tensor([float(update.samples) for update in updates])
    last_seen = state.last_seen.clone()
    last_seen[ids] = state.round + 1
    counts = state.counts
    if counts is not None:
        counts = counts.clone()
        counts[ids] = torch.stack([update.counts.cpu() for update in updates if update.counts is not None])
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        members=members,
        counts=counts,
        sizes=sizes,
        last_seen=last_seen,
    )


def _participants(
    method: Method,
    network: Network,
    received: Ensemble,
    state: ServerState,
    reports: Reports,
    updates: Sequence[Update],
) -> Participants:
    """Gather what tiers 3 and 4 look at."""
    ids = [update.client for update in updates]
    members = state.members[ids]
    return Participants(
        clients=tuple(ids),
        members=members,
        weights=state.weights[ids, members].to(next(iter(received.heads.values())).device),
        prototypes=stack_prototypes(updates) if "prototypes" in method.needs else None,
        updates=own_updates(network, received, reports, members) if "updates" in method.needs else None,
        whole_updates=whole_updates(network, received, reports, members) if "whole updates" in method.needs else None,
        round=state.round,
    )


def apply(
    state: ServerState, decision: Decision, hard: bool, reports: Reports, participants: Sequence[int]
) -> ServerState:
    """Carry out a decision on the server's tables: splits first, then the removals (spec §4, steps 3-5)."""
    gone = [state.clusters[column] for column in decision.remove]
    for split in decision.splits:
        state = _split(state, split, hard, reports, participants)
    for cluster in gone:
        state = _remove(state, cluster)
    return state


def _split(
    state: ServerState, decision: SplitDecision, hard: bool, reports: Reports, participants: Sequence[int]
) -> ServerState:
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
    first, second = (
        part_model(state.ensemble, reports, participants, part, parent) for part in (decision.first, decision.second)
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


def _changed(state: ServerState, change: Change) -> ServerState:
    return replace(state, changes=(*state.changes, change))


def _known(state: ServerState, weights: Tensor) -> Tensor:
    """Keep clients of whom nothing is known uniform over the clusters of the day."""
    return torch.where((state.members >= 0).unsqueeze(1), weights, 1 / weights.shape[1])
