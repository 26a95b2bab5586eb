"""Makes clients' personal parts: candidates are scored on what was set aside, and each client mixes some of them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.config import PersonalKind
from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble, outputs_of
from hcfl.models.inputs import Inputs
from hcfl.models.tasks import VARIANCE_FLOOR, Task
from hcfl.personal.clients import Clients
from hcfl.personal.families import Family, Head, Own, OwnHead, Prior, WholeModels
from hcfl.personal.fine_tune import PROXIMAL, Tuning
from hcfl.personal.inner_split import Gains
from hcfl.personal.links import link_of, scoring_of
from hcfl.personal.stacking import own_weights
from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class Candidate:
    """One thing that a client can mix with its group's model."""

    family: int
    number: int
    """Which of the family's candidates."""


def families_of(kind: PersonalKind, task: Task) -> list[Family]:
    """Return what a client mixes with its group's model: heads before whole models."""
    link = link_of(task)
    added: list[Family] = [] if link is None else [Prior(link), Head(link)]
    families: dict[PersonalKind, list[Family]] = {
        "none": [],
        "prior": added[:1],
        "head": added,
        "fine-tune": [WholeModels()],
        "proximal": [WholeModels(proximal=penalty) for penalty in PROXIMAL],
        "mixture": [*added, WholeModels()],
        "auto": [*added, WholeModels(alone=True)],
    }
    return families[kind]


def candidates_of(kind: PersonalKind, task: Task) -> list[Candidate]:
    """Return all that clients can mix with their group's model."""
    families = families_of(kind, task)
    return [Candidate(place, number) for place, family in enumerate(families) for number in range(family.size)]


def gains_of(kind: PersonalKind, clients: Clients, tuning: Tuning) -> Gains:
    """Score all candidates of a kind: how much better than the group's model they predict what was set aside."""
    task = tuning.network.task
    scoring = scoring_of(task)
    held = clients.held.to(clients.group.mixed.device)
    answers, group = clients.answers[held], scoring.of_group(clients.group)[held]
    predicted = [family.held_out(clients, tuning)[held] for family in families_of(kind, task)]
    columns = [group] + [predicted[one.family][:, one.number] for one in candidates_of(kind, task)]
    segments = Segments(tuple(clients.segments.sum(clients.held.long()).tolist()))
    found = Gains.of(scoring.scores(columns, answers, segments).cpu(), segments)
    errors = scoring.errors(columns, answers, segments)
    return found if errors is None else replace(found, errors=errors[0], learnt=errors[1])


def make(kind: PersonalKind, clients: Clients, tuning: Tuning, gains: Gains, common: Tensor) -> list[PersonalPart]:
    """Make the personal part of each client from all its training data; `none` where its group's model is all of it.

    `gains` are what these clients found, and `common` are the weights of all clients of the federation.
    """
    task = tuning.network.task
    families, candidates = families_of(kind, task), candidates_of(kind, task)
    weights = own_weights(gains, common)
    chosen: list[dict[int, list[int]]] = [defaultdict(list) for _ in families]
    for row, column in torch.nonzero(weights[:, 1:]).tolist():
        chosen[candidates[column].family][row].append(candidates[column].number)
    made = [family.made(clients, tuning, needed) for family, needed in zip(families, chosen, strict=True)]
    parts = []
    for row, mine in enumerate(weights):
        columns = torch.nonzero(mine[1:]).flatten().tolist()
        own = [made[candidates[column].family][row, candidates[column].number] for column in columns]
        names = [families[candidates[column].family].name(candidates[column].number) for column in columns]
        parts.append(_assembled(names, own, mine[[0, *(column + 1 for column in columns)]].float()))
    return parts if gains.errors is None else with_variances(parts, gains, weights)


def _assembled(names: Sequence[str], own: Sequence[Own], weights: Tensor) -> PersonalPart:
    """Put a client's own parts together, of which heads come first, and then whole models."""
    shares: dict[str, float] = defaultdict(float)
    for name, weight in zip(names, weights[1:].tolist(), strict=True):
        shares[name] += weight
    bias, weight = _stacked([one for one in own if isinstance(one, OwnHead)])
    return PersonalPart(
        kind=max(shares, key=lambda name: shares[name], default="none"),
        weights=weights,
        bias=bias,
        weight=weight,
        own=_side_by_side([one for one in own if isinstance(one, Ensemble)]),
    )


def _stacked(heads: Sequence[OwnHead]) -> tuple[Tensor | None, Tensor | None]:
    """Return heads as one tensor of biases and one of weights; where none has weights, there is none."""
    if not heads:
        return None, None
    bias, known = torch.stack([one.bias for one in heads]), [one.weight for one in heads if one.weight is not None]
    if not known:
        return bias, None
    return bias, torch.stack([torch.zeros_like(known[0]) if one.weight is None else one.weight for one in heads])


def _side_by_side(models: Sequence[Ensemble]) -> Ensemble | None:
    """Return whole models as one ensemble."""
    if not models:
        return None
    extractors, heads = (
        {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for parts in ([one.extractors for one in models], [one.heads for one in models])
    )
    return Ensemble(extractors, heads, "full")


def with_variances(parts: Sequence[PersonalPart], gains: Gains, weights: Tensor) -> list[PersonalPart]:
    """Add the variance of numbers around each client's prediction: its mean squared error on what was set aside.

    The variance that the group has learnt counts as one sample more. The mean of both is that of their logarithms: an
    own model can be a hundred times nearer than its group.
    """
    assert gains.errors is not None
    assert gains.learnt is not None
    segments, number = gains.segments, gains.samples
    squares = (gains.errors * segments.each(weights)).sum(dim=1).square()
    found = (segments.sum(squares) / number.clamp_min(1)).clamp_min(VARIANCE_FLOOR)
    variances = ((number * found.log() + gains.learnt.log()) / (number + 1)).exp()
    return [
        part if part.kind == "none" else replace(part, variance=variance)
        for part, variance in zip(parts, variances.tolist(), strict=True)
    ]


def predict(network: Network, part: PersonalPart, group: Predictions, inputs: Inputs) -> Tensor:
    """Predict one client's samples with its personal part, (samples, values), in the form of the task."""
    return predicted(network.task, part, group, None if part.own is None else outputs_of(network, part.own, inputs))


def predicted(task: Task, part: PersonalPart, group: Predictions, outputs: Tensor | None) -> Tensor:
    """Return the same from the outputs of the client's own models, (samples, models, values), where it has some."""
    scoring, link = scoring_of(task), link_of(task)
    each = [group.mixed.unsqueeze(1)]
    if part.bias is not None and link is not None:
        added = part.bias.to(group.mixed)
        if part.weight is not None:
            added = added + torch.einsum("sf,hfv->shv", group.features, part.weight.to(group.mixed))
        each.append(link.predicted(link.scale(group.mixed).unsqueeze(1) + added, group.mixed.unsqueeze(1)))
    if outputs is not None:
        models = [scoring.of_model(outputs[:, [model]]) for model in range(outputs.shape[1])]
        each.append(torch.stack(models, dim=1))
    mixed = scoring.mixed(torch.cat(each, dim=1), part.weights)
    if part.variance is None:
        return mixed
    mean = mixed[:, 0]
    return torch.stack([mean, torch.full_like(mean, part.variance)], dim=1)
