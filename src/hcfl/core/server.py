"""What the server does in a round: aggregate, record, let tiers 4 and 3 decide, apply (Algorithm 1)."""

from dataclasses import replace

import torch
from torch import Tensor

from hcfl.core.aggregation import (
    Averaging,
    aggregate,
    common_model,
    own_models,
    own_updates,
    whole_updates,
    without_the_empty,
)
from hcfl.core.apply_decision import apply
from hcfl.core.cluster_log import placed_by
from hcfl.core.given_start import first_rows
from hcfl.core.lost_ids import counted, listed, unlisted
from hcfl.core.state import Broadcast, ServerState, Update
from hcfl.data.given_groups import GivenGroups
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.methods.method import KEPT_STATISTICS
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble
from hcfl.models.precision import matrix_products
from hcfl.tiers import Decision, Participants
from hcfl.tiers import gaussians as densities
from hcfl.tiers.distance import Distances, measured
from hcfl.tiers.formulation import class_shares
from hcfl.tiers.habits import HABITS
from hcfl.tiers.many_participants import drawn, extended
from hcfl.tiers.participants import probed
from hcfl.tiers.weighting import one_hot, uniform


def begin(
    method: Method, ensemble: Ensemble, clients: int, classes: int, groups: GivenGroups | None = None
) -> ServerState:
    """Return the state before the first round: no client has reported; each may have a given group."""
    clusters = ensemble.clusters
    sparse = clients > DENSE_CLIENTS
    counts = torch.zeros(0 if sparse else clients, clusters, classes) if method.uses_class_shares else None
    members = torch.full((clients,), -1)
    weights = uniform(clusters).repeat(clients, 1)
    if groups is not None:
        weights, members = first_rows(groups, method.weighting.hard)
    elif method.clusters is None:
        members = torch.arange(clients)
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
        last_seen=torch.zeros(clients, dtype=torch.int32),
        anchor=ensemble.select([0]) if method.uses_anchor else None,
        common=ensemble.select([0]) if method.local.uses_global_model else None,
        counted=torch.zeros(0, dtype=torch.long) if sparse and counts is not None else None,
    )


DENSE_CLIENTS = 2000
"""Up to so many clients, the table F has a row for each of them; of more, for those that reported."""


def enlarge(method: Method, state: ServerState, clients: int) -> ServerState:
    """Make room for clients that join later: they start with uniform weights."""
    more = clients - len(state.members)
    if more == 0:
        return state
    if method.clusters is None:
        raise InputError(f"method = {method.name}: has a cluster for each client from the start, no client can join")
    weights, counts = uniform(len(state.clusters)).repeat(more, 1), state.counts
    if counts is not None and state.counted is None:
        counts = torch.cat([counts, counts.new_zeros(more, *counts.shape[1:])])
    return replace(
        state,
        weights=torch.cat([state.weights, weights]),
        members=torch.cat([state.members, torch.full((more,), -1)]),
        counts=counts,
        sizes=torch.cat([state.sizes, torch.zeros(more)]),
        last_seen=torch.cat([state.last_seen, state.last_seen.new_zeros(more)]),
    )


def broadcast(method: Method, state: ServerState, classes: int) -> Broadcast:
    """Return what the next round's participants receive: models, P_k (clusters, classes), changes of clusters."""
    return Broadcast(
        round=state.round + 1,
        ensemble=state.ensemble,
        class_shares=shares(method, state, classes),
        clusters=state.clusters,
        changes=state.changes,
        weights=state.weights,
        anchor=state.anchor if method.uses_anchor else None,
        common=state.common,
        probe=_probe(method, state),
        gaussians=state.gaussians,
    )


def _probe(method: Method, state: ServerState) -> Ensemble | None:
    """Return the model that the next round's participants show a change of: the clusters' take turns.

    Clients that have several models already describe their data by the first.
    """
    asked = method.reports_in(state.round + 1)
    if "descriptors" in asked and len(state.clusters) > 1:
        return state.ensemble.select([0])
    if "probes" not in asked:
        return None
    return state.ensemble.select([probed(state.round + 1, method.traits.adaptation.asked_every, len(state.clusters))])


def shares(method: Method, state: ServerState, classes: int) -> Tensor:
    """P_k(y) from the latest report of all clients, also those not sampled now, (clusters, classes).

    All alike, so that it cancels, where the method does not use it, and where habits keep clusters apart (`habits`).
    """
    if state.counts is None or HABITS in state.memory:
        return torch.full((len(state.clusters), classes), 1 / classes)
    return class_shares(state.counts.sum(dim=0), method.traits.formulation.share_floor)


@matrix_products(rounded=False)
def conclude(
    method: Method,
    network: Network,
    state: ServerState,
    update: Update,
    seed: int = 0,
    averaged: Update | None = None,
    step: int = 0,
) -> tuple[ServerState, Distances | None]:
    """Turn a round's updates into the next state: aggregate, record the reports, let tiers 4 and 3 decide, apply.

    `averaged` are the updates as they count in averages, where that is not as they came; `step` is the step of time.
    Also return the distances that tier 3 decided by, where it does.
    """
    after, averaged = record(state, update), update if averaged is None else averaged
    averaging = Averaging(method.aggregation, network.buffers)
    table = listed(after)[list(update.clients)] if method.traits.adaptation.lost_ids else None
    ensemble = aggregate(state.ensemble, averaged if table is None else counted(averaged, table), averaging)
    if method.traits.weighting.zero_empty:
        ensemble = without_the_empty(ensemble, averaged)
    common, ids = state.common, list(update.clients)
    if common is not None:
        common = common_model(state.ensemble, replace(averaged, mass=update.mass), after.members[ids], averaging)
    after = replace(
        after,
        ensemble=ensemble,
        anchor=state.ensemble.select([0]) if "descriptors" in method.reports_in(after.round) else state.anchor,
        common=common,
        gaussians=_estimate(method, state, update),
    )

    seen = replace(_participants(method, network, state, after, update), listed=table, seed=seed, step=step)
    looked_at = drawn(seen) if _compares_pairs(method) else seen
    distance = None if method.distance is None else measured(method.distance, looked_at)
    wait = seen.round <= method.warm_up
    decision = Decision() if wait else method.adaptation.decide(looked_at, distance, _occupied(method, after))
    if looked_at is not seen and method.distance is not None:
        decision = extended(decision, method.distance, looked_at, seen)
    decided_by = None if distance is None else Distances(looked_at.clients, distance)
    applied = apply(state.ensemble, after, decision, method.weighting.hard, averaged, averaging)
    return applied if decision.memory is None else replace(applied, memory=decision.memory), decided_by


def _compares_pairs(method: Method) -> bool:
    """Whether tier 3 splits clusters by the distances of this round's participants, so that a sample can decide."""
    adaptation = method.traits.adaptation
    return method.distance is not None and adaptation.splits and not adaptation.lost_ids and not _by_signature(method)


def _by_signature(method: Method) -> bool:
    """Whether only what the server keeps is compared: then of all clients that it knows."""
    return bool(method.needs) and method.needs <= KEPT_STATISTICS


def _estimate(method: Method, state: ServerState, update: Update) -> densities.Gaussians | None:
    """Return the Gaussians from this round's summed statistics; the first round's give the principal axes."""
    number, traits = method.formulation.gaussians, method.traits.formulation
    if not number:
        return None
    assert update.moments is not None
    if state.gaussians is None:
        return densities.initial_gaussians(update.moments, number, traits.principal_axes, traits.variance_floor)
    return densities.refit(state.gaussians, update.moments, traits.variance_floor)


def _occupied(method: Method, state: ServerState) -> Tensor:
    """Return which clusters are some client's own, (clusters,); the last report of absent clients counts, too.

    A client that never reported could still join any initial cluster, so those stay until all clients have reported.
    """
    sizes = cluster_sizes(state.members, len(state.clusters))
    occupied = sizes > 0
    if int(sizes.sum()) < len(state.members):
        occupied |= torch.tensor([cluster < (method.clusters or 0) for cluster in state.clusters])
    if method.traits.adaptation.remembers:
        occupied |= torch.tensor([cluster in state.remembered for cluster in state.clusters])
    return occupied


def cluster_sizes(members: Tensor, clusters: int) -> Tensor:
    """Return how many clients have each cluster as their own, (clusters,)."""
    return torch.bincount(members + 1, minlength=clusters + 1)[1:]  # of a million four times as fast as numpy


def end_step(state: ServerState) -> ServerState:
    """Remember which clusters have clients at the end of a step of time."""
    sizes = cluster_sizes(state.members, len(state.clusters)).tolist()
    used = {cluster for cluster, size in zip(state.clusters, sizes, strict=True) if size}
    return replace(state, remembered=tuple(sorted({*state.remembered, *used} & set(state.clusters))))


def counted_clusters(method: Method, state: ServerState) -> Tensor:
    """Return which clusters count as such, (clusters,): all but those of clients that the public code of CFL lost."""
    return ~unlisted(state) if method.traits.adaptation.lost_ids else torch.ones(len(state.clusters), dtype=torch.bool)


def record(state: ServerState, update: Update) -> ServerState:
    """Remember each participant's report; a client's cluster is the one with its largest weight, where it is known."""
    ids = torch.tensor(update.clients)
    weights, members, sizes = state.weights.clone(), state.members.clone(), state.sizes.clone()
    if update.sealed is None:
        weights[ids] = update.weights
        members[ids] = weights[ids].argmax(dim=1)
    sizes[ids] = update.sizes
    last_seen = state.last_seen.clone()
    last_seen[ids] = state.round + 1
    state = with_counts(state, ids, update.counts)
    return replace(
        state,
        round=state.round + 1,
        weights=weights,
        members=members,
        sizes=sizes,
        last_seen=last_seen,
        signatures={**state.signatures, **update.signatures},
    )


def with_counts(state: ServerState, ids: Tensor, reported: Tensor | None) -> ServerState:
    """Put the counts (participants, clusters, classes) of some clients into the table."""
    counts, counted = state.counts, state.counted
    if counts is None or reported is None:
        return state
    if counted is None:
        return replace(state, counts=counts.index_copy(0, ids, reported))
    clients, place = torch.unique(torch.cat([counted, ids]), return_inverse=True)
    table = counts.new_zeros(len(clients), *counts.shape[1:])
    table[place[: len(counted)]] = counts
    table[place[len(counted) :]] = reported
    return replace(state, counts=table, counted=clients)


def _participants(
    method: Method, network: Network, before: ServerState, state: ServerState, update: Update
) -> Participants:
    """Gather what tiers 3 and 4 look at, of this round's participants; if only signatures, of all known clients."""
    received, needs = before.ensemble, method.needs
    ids = sorted(state.signatures) if _by_signature(method) else list(update.clients)
    members = state.members[ids]
    named = placed_by(state.changes)
    return Participants(
        clients=tuple(ids),
        members=members,
        weights=state.weights[ids, members].to(next(iter(received.heads.values())).device),
        prototypes=update.prototypes,
        constant=network.task.constant,
        halves=update.halves,
        updates=own_updates(network, received, update, members) if "updates" in needs else None,
        whole_updates=whole_updates(network, received, update, members) if "whole updates" in needs else None,
        models=own_models(network, update, members) if "models" in needs else None,
        signatures=torch.stack([state.signatures[client] for client in ids]) if KEPT_STATISTICS & needs else None,
        sizes=state.sizes[ids],
        undecided=not state.changes,
        reports=update.reports,
        memory=state.memory,
        everyone=state.members,
        unplaced=torch.tensor([client not in named for client in ids], dtype=torch.bool),
        round=state.round,
    )
