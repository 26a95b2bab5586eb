"""Makes clients' personal parts: candidates are scored on what the inner split holds out, and each client takes one."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.config import PersonalKind
from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.models import Network
from hcfl.models.ensemble import outputs_of
from hcfl.models.inputs import Inputs
from hcfl.models.tasks import Task
from hcfl.personal.clients import Clients
from hcfl.personal.families import Family, Head, Prior, WholeModels
from hcfl.personal.fine_tune import PROXIMAL, Tuning
from hcfl.personal.inner_split import Gains, Pool
from hcfl.personal.links import Scoring, link_of, scoring_of, shifted
from hcfl.tiers.client_segments import Segments

SHARES = (0.25, 0.5, 0.75, 1.0)
"""The shares of the own prediction that mixtures try."""


@dataclass(frozen=True)
class Candidate:
    """One thing that a client can add to its group's model."""

    family: int
    number: int
    """Which of the family's candidates."""
    share: float = 1.0
    """Of the own prediction; the rest is the group's."""


def families_of(kind: PersonalKind, task: Task) -> list[Family]:
    """Return what a client chooses among, beside its group's model."""
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
    """Return all that clients choose among, beside their group's model."""
    shares = SHARES if kind == "mixture" else (1.0,)
    return [
        Candidate(place, number, share)
        for place, family in enumerate(families_of(kind, task))
        for number in range(family.size)
        for share in shares
    ]


def gains_of(kind: PersonalKind, clients: Clients, tuning: Tuning) -> Gains:
    """Score all candidates of a kind: how much better than the group's model they predict what was set aside."""
    task = tuning.network.task
    scoring, candidates = scoring_of(task), candidates_of(kind, task)
    held = clients.held.to(clients.group.mixed.device)
    answers, group = clients.answers[held], scoring.of_group(clients.group)[held]
    predicted = [family.held_out(clients, tuning)[held] for family in families_of(kind, task)]
    columns = [group] + [mixed(scoring, group, predicted[one.family][:, one.number], one.share) for one in candidates]
    segments = Segments(tuple(clients.segments.sum(clients.held.long()).tolist()))
    found = Gains.of(scoring.scores(columns, answers, segments).cpu(), segments)
    variances = scoring.variances(columns, answers, segments)
    return found if variances is None else replace(found, variances=variances[:, 1:])


def make(kind: PersonalKind, clients: Clients, tuning: Tuning, gains: Gains, pool: Pool) -> list[PersonalPart]:
    """Make the personal part of each client from all its training data; `none` where the group serves it as well.

    `gains` are what these clients found, and `pool` is what all clients of the federation found.
    """
    task = tuning.network.task
    candidates = candidates_of(kind, task)
    columns = pool.best(gains).tolist()
    best = [None if column == 0 else candidates[column - 1] for column in columns]
    made: dict[int, PersonalPart] = {}
    for place, family in enumerate(families_of(kind, task)):
        chosen = {row: one.number for row, one in enumerate(best) if one is not None and one.family == place}
        made |= family.parts(clients, tuning, chosen)
    parts = []
    for row, one in enumerate(best):
        part = made.get(row, PersonalPart("none"))
        if one is not None and one.share < 1:
            part = replace(part, kind="mixture", share=one.share)
        if one is not None and gains.variances is not None:
            part = replace(part, variance=float(gains.variances[row, columns[row] - 1]))
        parts.append(part)
    return parts


def mixed(scoring: Scoring, group: Tensor, own: Tensor, share: float) -> Tensor:
    """Return (1 − share)·p_group + share·p_own."""
    return own if share == 1 else scoring.mixed(group, own, share)


def predict(network: Network, part: PersonalPart, group: Predictions, inputs: Inputs) -> Tensor:
    """Predict one client's samples with its personal part, (samples, values), in the form of the task."""
    return predicted(network.task, part, group, None if part.own is None else outputs_of(network, part.own, inputs))


def predicted(task: Task, part: PersonalPart, group: Predictions, outputs: Tensor | None) -> Tensor:
    """Return the same from the outputs of the client's own models, (samples, models, values), where it has some."""
    scoring, link = scoring_of(task), link_of(task)
    own = group.mixed
    if outputs is not None:
        each = [scoring.of_model(outputs[:, [model]]) for model in range(outputs.shape[1])]
        own = scoring.average(torch.stack(each, dim=1))
    elif link is not None:
        offset = torch.zeros(()) if part.bias is None else part.bias
        offset = offset.to(group.mixed)
        own = shifted(
            link, group.mixed, offset if part.weight is None else offset + group.features @ part.weight.to(offset)
        )
    both = mixed(scoring, group.mixed, own, part.share)
    if part.variance is None:
        return both
    mean = both[:, 0]
    return torch.stack([mean, torch.full_like(mean, part.variance)], dim=1)
