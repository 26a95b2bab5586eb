"""Measurement: Val, Test, clustering quality against the truth, and the bytes that travel."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.core.client import class_mix, placed, weights_of_today
from hcfl.core.cluster_log import follow
from hcfl.core.held_out import HeldOut
from hcfl.core.predictions import kept_models, log_densities, mixture, predictions_of_all, sample_weights
from hcfl.core.server import counted_clusters, shares
from hcfl.core.state import Broadcast, ClientState, ServerState, Update
from hcfl.data import Federation, Newcomer, Truth
from hcfl.data.backdoor import Backdoor
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import Network, Params
from hcfl.models.ensemble import Ensemble, class_log_probs, outputs_of
from hcfl.models.inputs import Scaled, some
from hcfl.models.tasks import Task
from hcfl.tiers import Conditional, EStepInputs, Prototypes, Weights
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.gaussians import (
    Gaussians,
    Moments,
    component_responsibilities,
    component_step,
    mixture_log_density,
)
from hcfl.tiers.weighting import responsibilities, uniform

FRESH_STEPS = 20
"""E-steps from uniform weights that a fresh newcomer takes."""


def held_out_inputs(federation: Federation) -> Scaled:
    """Return all clients' held-out inputs, one client's after another's."""
    return federation.inputs(federation.val_rows)


def predict_held_out(
    federation: Federation, network: Network, method: Method, state: ServerState, clients: Mapping[int, ClientState]
) -> HeldOut | None:
    """Predict all clients' held-out data with each one's ω̃, or its own model; None where there are none here."""
    rows, segments = federation.val_rows, federation.val_segments
    if not len(rows) or not len(federation.y):
        return None
    inputs = held_out_inputs(federation)
    if network.task.name == "classification":
        found = predictions_of_all(federation, network, method, state, clients, inputs, segments)
        return replace(HeldOut.of(segments.index, federation.y[rows], found.mixed), mixed=found.mixed.cpu())
    densities = log_densities(network, state, inputs)
    weights = sample_weights(method, state, clients, densities, segments)
    outputs = outputs_of(network, state.ensemble, inputs)
    answers = federation.answers[rows].to(outputs.device)
    parts = mixed_predictions(network.task, outputs, weights.to(outputs.device), answers)
    for client, model in enumerate(kept_models(clients, federation.clients) if method.local.kept else ()):
        if model is not None and segments.sizes[client]:
            at = torch.nonzero(segments.index == client).flatten().to(outputs.device)
            own = outputs_of(network, model, some(inputs, at))[:, :1]
            mine = mixed_predictions(network.task, own, own.new_ones(len(own), 1), answers[at])
            for whole, part in zip(parts, mine, strict=True):
                whole[at] = part
    mixed, bins, log_likelihood = (part.cpu() for part in parts)
    scores = network.task.score(mixed, answers.cpu())
    return HeldOut(segments.index, federation.y[rows], bins.argmax(dim=1), log_likelihood, bins.shape[1], scores, mixed)


def standard_error(federation: Federation, held_out: HeldOut) -> float | None:
    """Return the standard error of Val where a sample of the clients measures it; None where all of them do."""
    if federation.val_clients is None:
        return None
    return held_out.standard_error(int((federation.val_sizes > 0).sum()))


def mixed_predictions(task: Task, outputs: Tensor, weights: Tensor, answers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σ_k ω_k·p_k(·|x) in the task's form, its bins' log-probabilities, and the log of its value at the answer.

    From outputs (samples, clusters, values) and weights (samples, clusters).
    """
    distribution = task.distribution(outputs)
    bins = torch.logsumexp(weights.log().unsqueeze(2) + task.bin_log_probs(distribution), dim=1)
    log_likelihood = torch.logsumexp(weights.log() + task.log_likelihood(outputs, answers), dim=1)
    return task.mix(distribution, weights), bins, log_likelihood


def scores_of(task: Task, mixed: Tensor, answers: Tensor, segments: Segments) -> Tensor:
    """Return the sum of each client's scores, (clients,): of classes, how many samples are predicted correctly."""
    return segments.sum(task.score(mixed, answers).cpu()).float()


def backdoor_success(
    federation: Federation,
    network: Network,
    state: ServerState,
    weights: tuple[Weights, ...],
    backdoor: Backdoor,
) -> float | None:
    """Return how often a marked test input of another class is taken for the target, over all virtual newcomers.

    `weights` are the newcomers' after this round. Where inputs have a density, it is left out: newcomers differ by ω̃.
    """
    if federation.test_x is None or not federation.newcomers:
        return None
    marked = Scaled(backdoor.marked(federation.test_x), federation.scaling)
    log_probs = class_log_probs(network, state.ensemble, marked)
    taken = []
    for newcomer, mine in zip(federation.newcomers, weights, strict=True):
        rows = torch.cat([newcomer.fit_rows, newcomer.score_rows])
        rows = rows[torch.cat([newcomer.fit_labels, newcomer.score_labels]) != backdoor.target].to(log_probs.device)
        scores = mixture(log_probs[rows], mine.client.expand(len(rows), -1).to(log_probs.device))
        taken.append(scores.argmax(dim=1).cpu() == backdoor.target)
    return float(torch.cat(taken).double().mean())


@dataclass(frozen=True)
class TestResult:
    """Accuracy for each concept, and the weights that the virtual newcomers go on with."""

    per_concept: tuple[float, ...]
    weights: tuple[Weights, ...]

    @property
    def mean(self) -> float | None:
        """Return the average over concepts, if there is a test set."""
        return sum(self.per_concept) / len(self.per_concept) if self.per_concept else None


def meet_newcomers(federation: Federation, method: Method, clusters: int) -> tuple[Weights, ...]:
    """Return the uniform weights that the virtual newcomers start with."""
    start = Weights(uniform(clusters).unsqueeze(0), components=method.uniform_components(clusters))
    return (start,) * len(federation.newcomers)


def catch_up_newcomers(weights: tuple[Weights, ...], before: ServerState, after: ServerState) -> tuple[Weights, ...]:
    """Let newcomers follow the clusters that were added and removed in a round."""
    changes = after.changes[len(before.changes) :]
    return tuple(follow(mine, before.clusters, changes, None) for mine in weights)


def without_shares(method: Method) -> Method:
    """Return a method whose E-step goes by log p_k(y|x) alone; refuse a method that has no P_k."""
    if not method.formulation.uses_class_shares:
        raise InputError(
            f"evaluation.plain_newcomers = true: {method.name} finds weights without P_k anyway, so it must be false"
        )
    return replace(method, formulation=Conditional())


def test_score(
    federation: Federation,
    network: Network,
    method: Method,
    after: ServerState,
    weights: tuple[Weights, ...],
    form: Literal["persistent", "fresh"],
) -> TestResult:
    """Let each virtual newcomer find its weights on labelled test samples and measure it on the others.

    Persistent newcomers go on from their weights and take one E-step; fresh ones start uniform. The test images are
    embedded once, not once per concept.
    """
    task, test = network.task, federation.test_inputs
    if test is None or not federation.newcomers:
        return TestResult((), weights)
    outputs = outputs_of(network, after.ensemble, test)
    counted = counted_clusters(method, after)
    densities = log_densities(network, after, test)
    class_shares = shares(method, after, federation.classes)
    steps = 1
    if form == "fresh":
        weights, steps = meet_newcomers(federation, method, len(after.clusters)), FRESH_STEPS
    scored, found = dict[str, list[Tensor]](), []
    for newcomer, mine in zip(federation.newcomers, weights, strict=True):
        fit = newcomer.fit_rows.to(outputs.device)
        log_prob = task.log_likelihood(outputs[fit], newcomer.fit_answers.to(outputs.device)).cpu()
        log_prob = log_prob.masked_fill(~counted, -torch.inf)
        for _ in range(steps):
            mine = newcomer_step(method, newcomer, log_prob, densities, class_shares, mine)
        rows = newcomer.score_rows
        segments, log_weights = Segments((len(rows),)), mine.client.log().expand(len(rows), -1)
        if densities is not None and mine.components is not None:
            log_weights = log_weights + mixture_log_density(mine.components, densities[rows], segments)
        weights_each = torch.softmax(log_weights, dim=1).to(outputs.device)
        mixed = task.mix(task.distribution(outputs[rows.to(outputs.device)]), weights_each)
        scored.setdefault(newcomer.name, []).append(task.score(mixed, newcomer.score_answers).cpu())
        found.append(mine)
    return TestResult(tuple(float(torch.cat(parts).mean()) for parts in scored.values()), tuple(found))


def newcomer_step(
    method: Method,
    newcomer: Newcomer,
    log_prob: Tensor,
    densities: Tensor | None,
    class_shares: Tensor,
    weights: Weights,
) -> Weights:
    """One E-step of a newcomer on its labelled samples; it never contributes to F, nor to the Gaussians.

    `log_prob` is log p_k(y|x) of its `fit` samples, (samples, clusters).
    """
    labels, components, density = newcomer.fit_labels, weights.components, None
    segments = Segments((len(labels),))
    if densities is not None and components is not None:
        density = mixture_log_density(components, densities[newcomer.fit_rows], segments)
    log_likelihood = method.formulation.log_likelihood(log_prob, labels, class_shares, density)
    if densities is not None and components is not None:
        gamma = responsibilities(segments.each(weights.client), log_likelihood)
        joint = component_responsibilities(components, densities[newcomer.fit_rows], gamma, segments)
        components = component_step(components, joint, segments)
    seen = EStepInputs(log_likelihood, segments, class_mix(labels, class_shares.shape[1], segments), class_shares)
    return Weights(method.weighting.newcomer(weights.client, seen), components=components)


@dataclass(frozen=True)
class Quality:
    """Clusters found against the true concepts, over the clients that have taken part; None where there is no truth."""

    ari: float | None = None
    ari_affected: float | None = None
    nmi: float | None = None
    purity: float | None = None


def clustering_quality(truth: Truth | None, members: NDArray[np.int64]) -> Quality:
    """Compare each client's cluster with its concept; −1 marks clients that never took part."""
    seen = members >= 0 if truth is None else (members >= 0) & (truth.concept >= 0)
    if truth is None or not seen.any():
        return Quality()
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score  # takes a second: not for clients

    true, found = truth.concept[seen], members[seen]
    affected = None if truth.affected is None else truth.affected[seen]
    return Quality(
        ari=float(adjusted_rand_score(true, found)),
        ari_affected=float(adjusted_rand_score(true[affected], found[affected]))
        if affected is not None and affected.any()
        else None,
        nmi=float(normalized_mutual_info_score(true, found)),
        purity=purity(true, found),
    )


def purity(true: NDArray[np.int64], found: NDArray[np.int64]) -> float:
    """Return the share of clients whose concept is the most common one of their cluster."""
    matches = sum(np.bincount(true[found == cluster]).max() for cluster in np.unique(found))
    return float(matches / len(true))


CHANGE_BYTES = 16
"""A cluster change as a client receives it: rule, parent, child and its own part, as four 32-bit numbers."""


def bytes_down(broadcast: Broadcast, method: Method, clients: Mapping[int, ClientState | None]) -> dict[str, int]:
    """Return what the server sends to all participants, by part; None stands for a client without a state yet.

    Clients get the changes since they last took part; clients that never did, the weights that they start from, and the
    initial model where it is needed (in round 1 it is what they get anyway). A client that the server assigned to a
    cluster gets this cluster's model only.
    """
    if not method.federated:
        return {}
    old = {client: state for client, state in clients.items() if state is not None}
    news = sum(change.round >= state.round for state in old.values() for change in broadcast.changes)
    each, new = len(clients), len(clients) - len(old)
    single = 0
    if method.traits.weighting.assigned_by_server:
        today = {client: weights_of_today(method, broadcast, client, state).client[0] for client, state in old.items()}
        weights = torch.stack([today.get(client, broadcast.weights[client]) for client in clients])
        single = int(placed(method, weights).sum())
    one, everything = broadcast.ensemble.select([0]), broadcast.ensemble
    extra = [part for part in (broadcast.common, broadcast.probe, broadcast.gaussians) if part is not None]
    anchor = 0 if broadcast.anchor is None or broadcast.round == 1 else _all_bytes(broadcast.anchor)
    return {
        "extractor": single * _size(one.extractors) + (each - single) * _size(everything.extractors),
        "heads": single * _size(one.heads) + (each - single) * _size(everything.heads),
        "class_shares": each * _bytes(broadcast.class_shares) if method.uses_class_shares else 0,
        "changes": CHANGE_BYTES * news,
        "weights": _bytes(broadcast.weights[0]) * new,
        "other models": each * sum(_all_bytes(part) for part in extra) + new * anchor,
    }


def bytes_up(method: Method, update: Update) -> dict[str, int]:
    """Return what all participants send, by part."""
    if not method.federated:
        return {}
    if update.sealed is not None:
        return {"sums": update.sealed}
    moments = 0 if update.moments is None else _all_bytes(update.moments)
    return {
        "extractor": _size(update.models.extractors),
        "heads": _size(update.models.heads),
        "prototypes": sum(_all_bytes(part) for part in (update.prototypes, update.halves) if part is not None),
        "counts": 0 if update.counts is None else _bytes(update.counts),
        "weights": _bytes(update.weights),
        "signatures": sum(_bytes(signature) for signature in update.signatures.values()),
        "reports": sum(_bytes(sent) for sent in update.reports.values()),
        "moments": len(update.clients) * moments,
    }


def _all_bytes(part: Ensemble | Prototypes | Moments | Gaussians) -> int:
    """Return the size of everything a message's part holds."""
    tensors = (getattr(part, entry.name) for entry in fields(part))
    return sum(_bytes(t) if isinstance(t, Tensor) else _size(t) for t in tensors if not isinstance(t, str))


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _size(params: Params) -> int:
    return sum(_bytes(tensor) for tensor in params.values())
