"""Algorithm 1: the training loop, one function from state to state; a method only fills the tiers."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import torch
from torch import Tensor

from hcfl import rng
from hcfl.core import collect, server
from hcfl.core.admission import refusals
from hcfl.core.changes import shortened
from hcfl.core.client_table import ClientTable
from hcfl.core.cluster_log import Split
from hcfl.core.evaluation import (
    TestResult,
    backdoor_success,
    bytes_down,
    bytes_up,
    catch_up_newcomers,
    clustering_quality,
    meet_newcomers,
    predict_held_out,
    standard_error,
    test_score,
    without_shares,
)
from hcfl.core.held_out import LIKELIHOOD, ByClass, reported_likelihood
from hcfl.core.predictions import as_clients_know
from hcfl.core.record import PHASES, Moment, Record, used_clusters
from hcfl.core.setting import RoundTask, Setting
from hcfl.core.state import Missing, PersonalPart, RunState, ServerState, Update
from hcfl.core.suspicion import Judged, judge
from hcfl.methods import Method
from hcfl.models.ensemble import Ensemble
from hcfl.tiers.distance import without_shared_class

MANY = 100_000
"""Above so many clients, participants are drawn without a permutation of all clients, which would take longer than
some rounds."""


def begin(setting: Setting, ensemble: Ensemble) -> RunState:
    """Return the state before the first round, from the initial models."""
    federation = setting.federation
    start = server.begin(setting.method, ensemble, federation.clients, federation.classes, federation.groups)
    return RunState(start, ClientTable(), meet_newcomers(federation, setting.method, ensemble.clusters))


def sample_clients(setting: Setting, round_: int) -> list[int]:
    """Draw this round's participants, in the order of their ids; who is known to have no data cannot take part."""
    federation = setting.federation
    wanted = max(1, round(setting.participation * federation.clients))
    generator = rng.numpy_generator(setting.seed, "participants", round_)
    if federation.clients > MANY and not federation.timeline:
        return sorted(generator.choice(federation.clients, wanted, replace=False, shuffle=False).tolist())
    drawn = generator.permutation(federation.clients)
    if federation.timeline and len(federation.x):  # not where data lie with the clients: files grow
        drawn = drawn[federation.train_sizes[drawn] > 0]
    return sorted(drawn[:wanted].tolist())


def play_round(
    setting: Setting, state: RunState, evaluate: bool = True, personal: bool = False
) -> tuple[RunState, Record]:
    """Play one round (Algorithm 1): return the state after it, and what it gave.

    Without `evaluate`, Val and Test are not measured. With `personal`, clients also make and measure their personal
    parts; these change neither the server's state nor the clients'.
    """
    times = [perf_counter()]
    setting = setting.at(state.server.round + 1)
    federation, method, network = setting.federation, setting.method, setting.network

    # 1. Sample clients and send them the models, P_k and the clusters that were added and removed.
    message = server.broadcast(method, state.server, federation.classes)
    participants = sample_clients(setting, message.round)

    # 2. Clients: catch up, E-step, local training. Uploads that fail the admission checks do not count.
    before = ClientTable.of(state.clients)
    known = before.some(participants)
    admitted = run_clients(RoundTask(setting, message, participants, known))
    update, clients = admitted.update, before.after(admitted.states)
    participants = list(update.clients)

    # 3. Server: judge the uploads, aggregate, distances (tier 4), adapt (tier 3).
    times.append(perf_counter())  # not before: looking at the update waited for a GPU
    judged = judged_uploads(setting, state.server, update)
    averaged = none_too_long(setting, state.server, update if judged is None else judged.update)
    after, distances = server.conclude(
        method, network, state.server, update, setting.seed, averaged, setting.step(message.round)
    )
    after = after if judged is None else replace(after, evidence=judged.evidence)
    if setting.begins_step(after.round + 1):
        after = server.end_step(after)
    times.append(perf_counter())

    # 4. Evaluate and record.
    newcomers = catch_up_newcomers(state.newcomers, state.server, after)
    val, held_out, scores, val_honest, backdoor, test = None, None, None, None, None, TestResult((), newcomers)
    began = setting.begins_step(after.round)
    parts: Mapping[int, PersonalPart] = {}
    secret = update.noised or update.sealed is not None
    if evaluate:
        own = update.held_out
        seen = as_clients_know(after, clients) if secret else after
        if own is None:
            held_out = predict_held_out(federation, network, method, seen, clients)
        if held_out is not None:
            scores = held_out.scores_of(federation.clients if federation.val_clients is None else None)
            if personal and setting.personal is not None:
                scores, parts = setting.personal.measure(setting, seen, clients, scores)
        shared = None if own is None or began else _share(own, network.task.lowest)
        val = shared if held_out is None else held_out.accuracy
        if held_out is not None and setting.attackers:
            val_honest = held_out.accuracy_without(setting.attackers)
        seen_by = without_shares(method) if setting.plain_newcomers else method
        test = test_score(federation, network, seen_by, after, newcomers, setting.newcomers)
        if setting.backdoor is not None:
            backdoor = backdoor_success(federation, network, after, test.weights, setting.backdoor)
    prequential = None
    if began:
        own = update.held_out  # clients that measure by themselves begin a step with all of its new samples
        prequential = measure_before(setting, state, secret) if own is None else _share(own, network.task.lowest)
    changes = after.changes[len(state.server.changes) :]
    counts = server.counted_clusters(method, after).tolist()
    members = server.cluster_sizes(after.members, len(after.clusters)).tolist()
    sizes = {cluster: members[column] for column, cluster in enumerate(after.clusters) if counts[column]}
    record = Record(
        round=after.round,
        participants=len(participants),
        objective=None if update.objective is None else float(update.objective.sum() / update.sizes.sum()),
        val=val,
        val_error=None if held_out is None else standard_error(federation, held_out),
        val_personal=None if scores is None else scores.val_personal,
        val_honest=val_honest,
        backdoor=backdoor,
        test=test.mean,
        test_per_concept=test.per_concept,
        val_worst_client=(_worst(update) if evaluate else None) if held_out is None else held_out.worst_client,
        by_class=(_by_class(update) if evaluate else None) if held_out is None else ByClass.of(held_out.confusion()),
        likelihood=None if held_out is None or secret else held_out.choosing_log_likelihood,
        received_likelihood=reported_likelihood(update.reports.get(LIKELIHOOD)) if evaluate else None,
        clusters=used_clusters(sizes),
        cluster_sizes=sizes,
        quality=clustering_quality(federation.truth, after.members.numpy()),
        without_shared_class=_without_shared_class(method, update),
        down=bytes_down(message, method, {client: known.get(client) for client in participants}),
        up=bytes_up(method, update),
        seconds=_by_phase(*times, perf_counter()),
        changes=changes,
        distances=distances if any(isinstance(change, Split) for change in changes) else None,
        missing=admitted.missing,
        anomalies=None if judged is None else judged.anomalies,
        time=moment(setting, after, prequential),
    )
    return RunState(after, clients, test.weights, scores, parts), record


def measure_before(setting: Setting, state: RunState, secret: bool) -> float | None:
    """Return prequential Val: the share of a step's new samples that are predicted by what clients had before it."""
    server = as_clients_know(state.server, state.clients) if secret else state.server
    found = predict_held_out(setting.federation.news, setting.network, setting.method, server, state.clients)
    return None if found is None else found.accuracy


def moment(setting: Setting, after: ServerState, prequential: float | None) -> Moment | None:
    """Return where a round is in time, with each client's cluster and, where it is known, its concept."""
    if setting.rounds_per_step is None:
        return None
    truth = setting.federation.truth
    return Moment(
        step=setting.step(after.round) + 1,
        prequential=prequential,
        members=tuple(after.clusters[column] if column >= 0 else None for column in after.members.tolist()),
        concepts=None if truth is None else tuple(truth.concept.tolist()),
    )


def run_clients(task: RoundTask) -> collect.Admitted:
    """Execute the participants until enough uploads count, at most `admission.tries` times.

    Raises `NoQuorumError` where they never do, or where most models diverged.
    """
    engine, missing = task.setting.engine, tuple[Missing, ...]()
    for attempt in range(task.setting.admission.tries):
        task = task.attempt(attempt)
        update, states = engine.execute(task)
        refused = refusals(task, update)
        missing += collect.missing_clients(update, refused, attempt)
        if len(update.clients) - len(refused) >= task.needed:
            if refused and update.moments is not None:  # sums over all clients cannot be taken apart: run the others
                update, states = engine.execute(task.only([one for one in update.clients if one not in refused]))
                refused = {}
            return collect.admit(update, states, refused, missing)
        if collect.diverged(update, refused):
            raise collect.divergence(task, missing)
        if not update.missing:
            break  # all clients answered, and would send the same again
    raise collect.no_quorum(task, missing)


def judged_uploads(setting: Setting, state: ServerState, update: Update) -> Judged | None:
    """Judge the uploads of a round, where clients can be put into quarantine and single uploads can be seen."""
    threshold = setting.admission.quarantine
    if threshold is None or _hidden(update):
        return None
    evidence = torch.zeros(setting.federation.clients, 2) if state.evidence is None else state.evidence
    return judge(setting.network, state.ensemble, update, evidence, threshold, "prototypes" in setting.method.needs)


def none_too_long(setting: Setting, state: ServerState, update: Update) -> Update:
    """Shorten the changes that are too long, where single uploads can be seen."""
    longest = setting.admission.longest_change
    return (
        update
        if longest is None or _hidden(update)
        else shortened(state.ensemble, update, setting.network.buffers, longest)
    )


def _hidden(update: Update) -> bool:
    return update.sealed is not None or update.noised


def _by_phase(*times: float) -> dict[str, float]:
    """Return the seconds of each phase from the times between which they lie."""
    return {phase: end - begin for phase, (begin, end) in zip(PHASES, pairwise(times), strict=True)}


def _share(held_out: Tensor, lowest: float) -> float | None:
    """Return the mean score from held_out (participants, 2), measured on the models the round began with.

    None where there are no samples, or where a sum that hides single clients is no share.
    """
    right, samples = held_out.sum(dim=0).tolist()
    return right / samples if samples and lowest <= right <= samples * (1 + 1e-6) else None


def _worst(update: Update) -> float | None:
    """Return the lowest mean score of a participant that measured by itself; None where single ones are not known."""
    if update.held_out is None or _hidden(update):
        return None
    right, samples = update.held_out[update.held_out[:, 1] > 0].double().unbind(dim=1)
    return float((right / samples).min()) if len(samples) else None


def _by_class(update: Update) -> ByClass | None:
    """Return what participants that measured by themselves say of each class; None where they held out nothing."""
    if update.by_class is None or not bool(update.by_class.any()):
        return None
    return ByClass.of_counts(update.by_class.sum(dim=0))


def _without_shared_class(method: Method, update: Update) -> float | None:
    """Return the share of pairs of participants that share no class: class-wise distances say nothing of them."""
    if update.prototypes is None or "prototypes" not in method.needs:
        return None
    return without_shared_class(update.prototypes)


def play(setting: Setting, state: RunState, rounds: int) -> Iterator[tuple[RunState, Record]]:
    """Play until `rounds` rounds are completed; give the state and the record of each.

    >>> for state, record in play(setting, begin(setting, ensemble), rounds=30):  # doctest: +SKIP
    ...     print(record.round, record.val)
    """
    while (done := state.server.round) < rounds:
        last, every = done + 1 == rounds, setting.personal_every
        personal = last or (every is not None and (done + 1) % every == 0)
        measured = personal or (done + 1) % setting.evaluate_every == 0
        state, record = play_round(setting, state, measured, personal)
        yield state, record
