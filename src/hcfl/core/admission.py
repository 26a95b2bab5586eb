"""Which uploads count, and why others do not. NaN and Inf never reach a model.

First each message by itself, before it is joined with others: its form (`problem_with`, `unlike`). Then all uploads of
a round at once: their numbers (`refusals`). All engines pass here; a refused upload is treated as if it had not come.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.core import running_statistics, serialization
from hcfl.core.held_out import LIKELIHOOD
from hcfl.core.refusal import NOT_FINITE, Check, Refusal, impossible
from hcfl.core.setting import RoundTask
from hcfl.core.state import Update
from hcfl.core.upload_form import Wanted, problem_with_form
from hcfl.models import Params
from hcfl.models.ensemble import Ensemble
from hcfl.tiers import Prototypes

MOST_SAMPLES = 10
"""An upload that counts more than so many times the samples that the client announced is refused."""

ROUNDING = 1e-3
"""The relative rounding error that sums and means may have."""


@dataclass(frozen=True)
class Asked:
    """What one client's upload has to fit."""

    round: int
    client: int
    clusters: int
    ensemble: Ensemble
    """The models that it got."""
    wanted: Wanted | None = None
    """What the server asked for beside models; None where the upload was computed in this process."""


def problem_with(update: Update, round_: int, asked: Asked) -> str | None:
    """Return what is wrong with the form of an upload, or None; `round_` is the round that the client says it is of."""
    if round_ != asked.round:
        return f"answered in round {round_}, but this is round {asked.round}"
    if update.clients != (asked.client,) or set(update.signatures) - {asked.client} or update.missing:
        return f"sent an update of clients {update.clients}"
    if problem := problem_with_form(update, asked.clusters, asked.wanted):
        return problem
    rows, shared = len(update.row_participants), asked.ensemble.topology == "split"
    models = {
        "extractors": (update.models.extractors, asked.ensemble.extractors, 1 if shared else rows),
        "heads": (update.models.heads, asked.ensemble.heads, rows),
    }
    for name, (sent, got, count) in models.items():
        needed = {part: (tensor.dtype, (count, *tensor.shape[1:])) for part, tensor in got.items()}
        if {part: (tensor.dtype, tuple(tensor.shape)) for part, tensor in sent.items()} != needed:
            return f"sent {name} that are not those of the model"
    if update.models.topology != asked.ensemble.topology:
        return f"sent models as {update.models.topology}, but they are {asked.ensemble.topology}"
    if update.row_participants.any():
        return "sent models that belong to no client"
    if update.moments is not None:  # here, since sums over all clients do not show it
        size = float(update.sizes)
        if not abs(float(update.moments.mass.sum()) - size) <= ROUNDING * size:
            return "sent moments that are not of its samples"
    return None


def unlike(updates: Sequence[Update]) -> list[int]:
    """Return the clients whose counts, prototypes or moments have other shapes than most: they cannot be joined."""
    forms = [_statistics_form(update) for update in updates]
    votes: Counter[str] = Counter()
    for form, update in zip(forms, updates, strict=True):
        votes[form] += len(update.clients)
    usual = votes.most_common(1)
    return [
        client for form, update in zip(forms, updates, strict=True) for client in update.clients if form != usual[0][0]
    ]


def _statistics_form(update: Update) -> str:
    """Return the kinds and shapes of what is put together of all participants, for any number of them."""
    _, rows = serialization.flatten((update.counts, update.prototypes, update.halves))
    _, sums = serialization.flatten((update.moments,))
    each = {name: (tensor.dtype, tensor.ndim and len(tensor) == len(update.clients)) for name, tensor in rows.items()}
    return str([each, [tensor.shape[1:] for tensor in rows.values()], {n: (t.dtype, t.shape) for n, t in sums.items()}])


def refusals(task: RoundTask, update: Update) -> dict[int, Refusal]:
    """Return the clients of a round's uploads whose numbers are impossible, and why."""
    if not update.clients:
        return {}
    if update.sealed is not None:  # a sum does not show single clients
        return {} if update.finite.all() else dict.fromkeys(update.clients, NOT_FINITE)
    found: dict[int, Refusal] = {}
    for wrong, reason in _checks(task, update):
        for position in torch.nonzero(wrong).flatten().tolist():
            found.setdefault(update.clients[position], reason(position))
    return found


def _checks(task: RoundTask, update: Update) -> Iterator[Check]:
    buffers, longest = task.setting.network.buffers, task.setting.admission.longest_model
    lengths = _lengths(update.models, update.row_participants, buffers)
    finite = _finite(update, measured=not buffers and bool(lengths.isfinite().all()))
    yield ~finite, lambda _: NOT_FINITE

    if buffers:
        yield from running_statistics.checks(task, update, finite)

    if not update.noised:  # noise hides whether weights and counts can be those of a client
        announced = task.setting.federation.train_sizes
        yield from _of_samples(update, announced)
        if update.held_out is not None:
            begins = task.setting.begins_step(task.broadcast.round)  # then clients measure on all new samples
            federation = task.setting.federation
            new = federation.news if federation.timeline else federation
            most = (new if begins else federation).val_sizes
            yield _held_out(update, new.train_sizes, most, task.setting.network.task.lowest)
            if update.by_class is not None:
                yield _by_class(update.held_out, update.by_class)
            if LIKELIHOOD in update.reports:
                half = torch.ceil(update.held_out[:, 1] / 2)
                yield (
                    update.reports[LIKELIHOOD][:, 1].cpu() != half,
                    impossible("sent a likelihood of other held-out samples than every second one"),
                )

    fine = lengths[finite[update.row_participants]]
    if len(fine):
        usual = torch.maximum(fine.median(), _sent_lengths(task.broadcast.ensemble, buffers).max())
        ratio = lengths / usual
        yield (
            _by_participant(update, ratio > longest),
            lambda at: _too_long(float(ratio[update.row_participants == at].max())),
        )


def _too_long(ratio: float) -> Refusal:
    return Refusal("too long", f"sent a model that is {ratio:.3g} times as long as most others and the one it got")


def _impossible_size(size: float) -> Refusal:
    return Refusal("impossible", f"sent a size of {size:g}, which it cannot have")


def _of_samples(update: Update, announced: NDArray[np.int64]) -> Iterator[Check]:
    """Check that weights, counts and prototypes can be those of a client's samples; `announced` are all clients' N_i.

    N_i is 0 for a client that has not announced it.
    """
    sizes, most = update.sizes, _most_samples(update, announced)
    yield (sizes < 1) | (sizes > most), lambda at: _impossible_size(float(sizes[at]))

    no_share = (update.weights < 0).any(dim=1) | ((update.weights.sum(dim=1) - 1).abs() > ROUNDING)
    yield no_share, impossible("sent weights that are no distribution")

    mass, started, own = update.mass, update.started, sizes[update.row_participants].unsqueeze(1)
    mixed = (started < 0).any(dim=1) | ((started.sum(dim=1) - 1).abs() > ROUNDING)
    counts_too_much = ((mass < 0) | (mass > own * (1 + ROUNDING))).any(dim=1)
    together = torch.zeros_like(update.weights).index_add(0, update.row_participants, mass.to(update.weights))
    several_times = (together > sizes.unsqueeze(1) * (1 + ROUNDING)).any(dim=1)
    wrong = _by_participant(update, mixed | counts_too_much) | several_times
    yield wrong, impossible("sent models that count more than its samples")

    if update.counts is not None:
        off = (update.counts.sum(dim=(1, 2)) - sizes).abs() > ROUNDING * sizes
        yield (update.counts < 0).flatten(1).any(dim=1) | off, impossible("sent counts that are not of its samples")
    if update.prototypes is not None:
        forged = _forged(update.prototypes, sizes).cpu()
        yield forged, impossible("sent prototypes that cannot be those of its samples")
    if update.halves is not None and update.prototypes is not None:
        half = torch.ceil(update.prototypes.class_counts / 2)
        other = (update.halves.class_counts != half).any(dim=1) | _forged(update.halves, half.sum(dim=1))
        yield other.cpu(), impossible("sent prototypes of half its samples that cannot be theirs")


def most_held_out(train: NDArray[np.int64], held_out: NDArray[np.int64], client: int, size: float) -> float:
    """Return how many samples a client can hold out that announced `train` and `held_out`, and now trains on `size`.

    A client whose training data have grown may hold out more in the same proportion; one that announced nothing can
    have as much as the largest.
    """
    if not train[client]:
        return MOST_SAMPLES * int(held_out.max(initial=0)) or torch.inf
    return math.ceil(int(held_out[client]) * max(1.0, size / int(train[client])))


def _held_out(update: Update, train: NDArray[np.int64], held_out: NDArray[np.int64], lowest: float) -> Check:
    """Check lowest ≤ right ≤ samples ≤ what the client can hold out; `lowest` is 0 where samples are right or wrong."""
    assert update.held_out is not None
    right, samples = update.held_out.double().unbind(dim=1)
    most = [
        most_held_out(train, held_out, client, size)
        for client, size in zip(update.clients, update.sizes.nan_to_num(posinf=0).tolist(), strict=True)
    ]
    wrong = ~((right >= lowest) & (right <= samples) & (samples <= torch.tensor(most, dtype=torch.float64)))
    return wrong, lambda at: Refusal(
        "impossible", f"sent held_out that cannot be: {float(right[at]):g} of {float(samples[at]):g} samples right"
    )


def _by_class(held_out: Tensor, by_class: Tensor) -> Check:
    """Check counts by class against those of all samples: they add up, and none is right without label and guess."""
    right, labelled, predicted = by_class.double().unbind(dim=1)
    totals = torch.stack([right.sum(dim=1), labelled.sum(dim=1), predicted.sum(dim=1)], dim=1)
    fits = totals == held_out.double()[:, [0, 1, 1]]
    can_be = (right <= labelled) & (right <= predicted) & (by_class == by_class.floor()).all(dim=1)
    wrong = ~(fits.all(dim=1) & can_be.all(dim=1))
    return wrong, impossible("sent counts of held-out samples by class that cannot be")


def _finite(update: Update, measured: bool) -> Tensor:
    """Whether each participant sent no NaN and no Inf, (participants,); `measured`: its models are finite."""
    fine = update.sizes.isfinite() & update.weights.isfinite().all(dim=1)
    if update.objective is not None:
        fine = fine & update.objective.isfinite()
    if not measured:
        fine = fine & update.finite
    rows = update.mass.isfinite().all(dim=1) & update.started.isfinite().all(dim=1)
    fine = fine & ~_by_participant(update, ~rows)
    parts: list[Tensor | None] = [update.counts, update.held_out, update.by_class, *update.reports.values()]
    for sent in (update.prototypes, update.halves):
        if sent is not None:
            parts += [sent.class_means, sent.class_counts, sent.mean]
    for part in parts:
        if part is not None:
            fine = fine & part.flatten(1).isfinite().all(dim=1).cpu()
    if not update.signatures:
        return fine
    unreadable = {client for client, sent in update.signatures.items() if not sent.isfinite().all()}
    return fine & torch.tensor([client not in unreadable for client in update.clients])


def _most_samples(update: Update, announced: NDArray[np.int64]) -> Tensor:
    """Return the most samples that each participant can have; one that announced nothing counts as the largest."""
    largest = int(announced.max(initial=0)) or torch.inf
    known = [int(announced[client]) or largest for client in update.clients]
    return MOST_SAMPLES * torch.tensor(known, dtype=update.sizes.dtype)


def _forged(prototypes: Prototypes, sizes: Tensor) -> Tensor:
    """Whether the classes are not those of so many samples, or the mean is not the classes' mean, (participants,)."""
    counts, means = prototypes.class_counts, prototypes.class_means
    sizes = sizes.to(counts.device)
    expected = (counts.unsqueeze(2) * means).sum(dim=1) / counts.sum(dim=1, keepdim=True).clamp_min(1)
    off = (prototypes.mean - expected).abs().amax(dim=1)
    allowed = ROUNDING * (means.abs() * (counts > 0).unsqueeze(2)).amax(dim=(1, 2))
    other_samples = (counts < 0).any(dim=1) | ((counts.sum(dim=1) - sizes).abs() > ROUNDING * sizes)
    return other_samples | (off > allowed)


def _by_participant(update: Update, rows: Tensor) -> Tensor:
    """Whether something holds of some model of each participant, from whether it holds of each model."""
    return torch.zeros(len(update.clients), dtype=torch.bool).index_fill(0, update.row_participants[rows], True)


def _lengths(models: Ensemble, row_participants: Tensor, buffers: frozenset[str]) -> Tensor:
    """‖θ‖₂ of every model with its extractor, (rows,), without running statistics; on the CPU."""
    heads, extractors = _squares(models.heads), _squares(models.extractors, buffers)
    each = models.topology == "split" and len(extractors) > 1
    return (heads + (extractors[row_participants] if each else extractors)).sqrt()


def _sent_lengths(ensemble: Ensemble, buffers: frozenset[str]) -> Tensor:
    """‖θ_k‖₂ of every cluster's model with its extractor."""
    return (_squares(ensemble.heads) + _squares(ensemble.extractors, buffers)).sqrt()


def _squares(params: Params, skip: frozenset[str] = frozenset()) -> Tensor:
    """Return the sum of squares of every model; one 0 where there are no numbers."""
    norms = [
        torch.linalg.vector_norm(tensor.reshape(len(tensor), -1), dim=1)
        for name, tensor in params.items()
        if name not in skip and tensor.is_floating_point()
    ]
    return torch.stack(norms).double().square().sum(dim=0).cpu() if norms else torch.zeros(1, dtype=torch.float64)


def only(update: Update, admitted: Tensor) -> Update:
    """Return what some participants sent, from admitted (participants,).

    Moments are the sum over all participants and cannot be taken apart: the caller has to run the others again.
    """
    rows, shared = admitted[update.row_participants], update.models.topology == "split"

    def some(params: Params, which: Tensor) -> Params:
        return {name: tensor[which.to(tensor.device)] for name, tensor in params.items()}

    def mine(tensor: Tensor) -> Tensor:
        return tensor[admitted.to(tensor.device)]

    clients = tuple(client for client, stays in zip(update.clients, admitted.tolist(), strict=True) if stays)

    def of_some(sent: Prototypes | None) -> Prototypes | None:
        return None if sent is None else Prototypes(mine(sent.class_means), mine(sent.class_counts), mine(sent.mean))

    return replace(
        update,
        clients=clients,
        sizes=mine(update.sizes),
        models=Ensemble(
            some(update.models.extractors, admitted if shared else rows),
            some(update.models.heads, rows),
            update.models.topology,
        ),
        row_participants=(admitted.long().cumsum(dim=0) - 1)[update.row_participants[rows]],
        started=update.started[rows],
        mass=update.mass[rows],
        weights=mine(update.weights),
        objective=None if update.objective is None else mine(update.objective),
        counts=None if update.counts is None else mine(update.counts),
        prototypes=of_some(update.prototypes),
        halves=of_some(update.halves),
        signatures={client: update.signatures[client] for client in clients if client in update.signatures},
        reports={name: mine(sent) for name, sent in update.reports.items()},
        held_out=None if update.held_out is None else mine(update.held_out),
        by_class=None if update.by_class is None else mine(update.by_class),
    )
