"""Makes clients' personal parts: candidates are scored on what the inner split holds out, and each client takes one."""

from dataclasses import dataclass, replace
from math import log

import torch
from torch import Tensor

from hcfl.config import PersonalKind
from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.models import Network
from hcfl.models.ensemble import class_log_probs
from hcfl.models.inputs import Inputs
from hcfl.personal.families import Clients, Family, Head, Prior, WholeModels
from hcfl.personal.fine_tune import PROXIMAL, Tuning
from hcfl.personal.inner_split import Gains, Pool, score
from hcfl.personal.prior import corrected
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


def families_of(kind: PersonalKind) -> list[Family]:
    """Return what a client chooses among, beside its group's model."""
    families: dict[PersonalKind, list[Family]] = {
        "none": [],
        "prior": [Prior()],
        "head": [Prior(), Head()],
        "fine-tune": [WholeModels()],
        "proximal": [WholeModels(proximal=penalty) for penalty in PROXIMAL],
        "mixture": [Prior(), Head(), WholeModels()],
        "auto": [Prior(), Head(), WholeModels(alone=True)],
    }
    return families[kind]


def candidates_of(kind: PersonalKind) -> list[Candidate]:
    """Return all that clients choose among, beside their group's model."""
    shares = SHARES if kind == "mixture" else (1.0,)
    return [
        Candidate(place, number, share)
        for place, family in enumerate(families_of(kind))
        for number in range(family.size)
        for share in shares
    ]


def gains_of(kind: PersonalKind, clients: Clients, tuning: Tuning) -> Gains:
    """Score all candidates of a kind: how much better than the group's model they predict what was set aside."""
    held = clients.held.to(clients.group.log_probs.device)
    labels, group = clients.labels[held], clients.group.log_probs[held]
    predicted = [family.held_out(clients, tuning)[held] for family in families_of(kind)]
    columns = [score(group, labels)] + [
        score(mixed(group, predicted[one.family][:, one.number], one.share), labels) for one in candidates_of(kind)
    ]
    number_held = clients.segments.sum(clients.held.long()).tolist()
    return Gains.of(torch.stack(columns, dim=1).cpu(), Segments(tuple(number_held)))


def make(kind: PersonalKind, clients: Clients, tuning: Tuning, gains: Gains, pool: Pool) -> list[PersonalPart]:
    """Make the personal part of each client from all its training data; `none` where the group serves it as well.

    `gains` are what these clients found, and `pool` is what all clients of the federation found.
    """
    candidates = candidates_of(kind)
    best = [None if column == 0 else candidates[column - 1] for column in pool.best(gains).tolist()]
    made: dict[int, PersonalPart] = {}
    for place, family in enumerate(families_of(kind)):
        chosen = {row: one.number for row, one in enumerate(best) if one is not None and one.family == place}
        made |= family.parts(clients, tuning, chosen)
    parts = []
    for row, one in enumerate(best):
        part = made.get(row, PersonalPart("none"))
        parts.append(part if one is None or one.share == 1 else replace(part, kind="mixture", share=one.share))
    return parts


def mixed(group: Tensor, own: Tensor, share: float) -> Tensor:
    """Log of (1 − share)·p_group + share·p_own, from their logarithms."""
    return own if share == 1 else torch.logaddexp(own + log(share), group + log(1 - share))


def predict(network: Network, part: PersonalPart, group: Predictions, inputs: Inputs) -> Tensor:
    """Log p(·|x) of one client's samples with its personal part, (samples, classes)."""
    if part.own is not None:
        each = class_log_probs(network, part.own, inputs)
        own = torch.logsumexp(each, dim=1) - log(each.shape[1])
    else:
        offset = torch.zeros(()) if part.bias is None else part.bias
        offset = offset.to(group.log_probs)
        own = corrected(
            group.log_probs, offset if part.weight is None else offset + group.features @ part.weight.to(offset)
        )
    return mixed(group.log_probs, own, part.share)
