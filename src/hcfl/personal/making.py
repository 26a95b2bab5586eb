"""Makes clients' personal parts: candidates are scored on what the inner split holds out, and each client takes one."""

from dataclasses import replace

import torch
from torch import Tensor

from hcfl.config import PersonalKind
from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.models import Network
from hcfl.models.ensemble import class_log_probs
from hcfl.models.inputs import Inputs
from hcfl.personal.families import Clients, Family, FineTune, Head, Prior
from hcfl.personal.fine_tune import PROXIMAL, Tuning
from hcfl.personal.inner_split import best_candidate
from hcfl.personal.prior import corrected
from hcfl.tiers.client_segments import Segments

MIXTURE_STEPS = 30
"""EM steps that find the share of the own prediction in a mixture."""


def families_of(kind: PersonalKind, tuning: Tuning) -> list[Family]:
    """Return what a client chooses among, beside its group's model."""
    families: dict[PersonalKind, list[Family]] = {
        "none": [],
        "prior": [Prior()],
        "head": [Prior(), Head()],
        "fine-tune": [FineTune(tuning)],
        "proximal": [FineTune(tuning, penalty) for penalty in PROXIMAL],
        "mixture": [Prior(), Head(), FineTune(tuning)],
        "auto": [Prior(), Head(), FineTune(tuning)],
    }
    return families[kind]


def make(kind: PersonalKind, clients: Clients, tuning: Tuning) -> list[PersonalPart]:
    """Make the personal part of each client from its own training data; `none` where the group serves it as well."""
    segments, families = clients.segments, families_of(kind, tuning)
    tables = [clients.scores(family.held_out(clients)) for family in families]
    table = torch.cat([clients.scores(clients.group.log_probs.unsqueeze(1)), *tables], dim=1)
    share = torch.ones(len(segments))
    if kind in ("mixture", "auto"):
        own = segments.mean(table[:, 1:]).argmax(dim=1) + 1
        weight, score = mixture_share(table[:, 0], table.gather(1, segments.each(own).unsqueeze(1))[:, 0], segments)
        rivals = table if kind == "auto" else table[:, :1]
        column = best_candidate(torch.cat([rivals, score.unsqueeze(1)], dim=1), segments)
        mixed = column == rivals.shape[1]
        column, share = torch.where(mixed, own, column), torch.where(mixed, weight, share)
    else:
        column = best_candidate(table, segments)
    made: dict[int, PersonalPart] = {}
    first = 1
    for family, scores in zip(families, tables, strict=True):
        last = first + scores.shape[1]
        made |= family.parts(clients, {row: at - first for row, at in enumerate(column.tolist()) if first <= at < last})
        first = last
    return [_with_share(made.get(row, PersonalPart("none")), float(share[row])) for row in range(len(segments))]


def _with_share(part: PersonalPart, share: float) -> PersonalPart:
    return part if share == 1 else replace(part, kind="mixture", share=share)


def mixture_share(group: Tensor, own: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """Return the share of the own prediction that held-out samples favour, (clients,), and the mixture's scores.

    `group` and `own` are log p(y|x) of the true labels, (samples,). The share maximises the held-out likelihood, with
    one more sample that speaks for the group.
    """
    share = torch.full((len(segments),), 0.5)

    def joint(share: Tensor) -> tuple[Tensor, Tensor]:
        each = segments.each(share)
        return each.log() + own, (1 - each).log() + group

    for _ in range(MIXTURE_STEPS):
        mine, theirs = joint(share)
        share = segments.sum(torch.sigmoid(mine - theirs)) / (segments.lengths + 1)
    return share, torch.logaddexp(*joint(share))


def predict(network: Network, part: PersonalPart, group: Predictions, inputs: Inputs) -> Tensor:
    """Log p(·|x) of one client's samples with its personal part, (samples, classes)."""
    if part.own is not None:
        own = class_log_probs(network, part.own, inputs)[:, 0]
    else:
        offset = torch.zeros(()) if part.bias is None else part.bias
        offset = offset.to(group.log_probs)
        own = corrected(
            group.log_probs, offset if part.weight is None else offset + group.features @ part.weight.to(offset)
        )
    if part.share == 1:
        return own
    share = torch.tensor(part.share)
    return torch.logaddexp(share.log() + own, (1 - share).log() + group.log_probs)
