"""Tiers 3 and 4 with many participants: a sample is compared pair by pair, and the others join the parts it found.

Distances of all pairs grow with the square of the number of participants. So of more than `MANY` participants a
seeded sample decides which clusters split or merge and which of its clients move. The other participants of a cluster
that splits go to the part whose members are nearer on average, `REFERENCE` members of each: the work grows with their
number. Where habits split a cluster, the distance does not see the parts, and the others find theirs by E-steps, as
absent clients do.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hcfl import rng
from hcfl.tiers.adaptation.decision import Decision, SplitDecision
from hcfl.tiers.distance import Distance, measured
from hcfl.tiers.habits import HABITS
from hcfl.tiers.participants import Participants

MANY, SAMPLE = 2000, 1000
"""Of more participants than the first, as many as the second are compared with each other."""

REFERENCE = 40
"""How many members of each part stand for it when other participants are placed."""


def drawn(participants: Participants, many: int = MANY, sample: int = SAMPLE) -> Participants:
    """Return a sample of the participants, drawn by the run's seed and the round; all, where there are not so many."""
    number = len(participants.clients)
    if number <= many:
        return participants
    generator = rng.numpy_generator(participants.seed, "compared participants", participants.round)
    return participants.some(torch.from_numpy(np.sort(generator.choice(number, sample, replace=False))))


def extended(decision: Decision, distance: Distance, sample: Participants, participants: Participants) -> Decision:
    """Place all participants of the clusters that split, where a sample of them has decided."""
    if not decision.splits or HABITS in (decision.memory or {}):
        return decision
    looked_at = set(sample.clients)
    splits = tuple(_extended(split, distance, looked_at, participants) for split in decision.splits)
    return replace(decision, splits=splits)


def _extended(
    split: SplitDecision, distance: Distance, looked_at: set[int], participants: Participants
) -> SplitDecision:
    row_of = {client: row for row, client in enumerate(participants.clients)}
    others = [
        row
        for row in torch.nonzero(participants.members == split.parent).flatten().tolist()
        if participants.clients[row] not in looked_at
    ]
    first, second = (evenly([row_of[client] for client in part], REFERENCE) for part in (split.first, split.second))
    known, joins = torch.tensor([*first, *second]), list[bool]()
    for rows in torch.split(torch.tensor(others, dtype=torch.long), 2 * REFERENCE):
        found = measured(distance, participants.some(torch.cat([known, rows])))[len(known) :, : len(known)]
        joins += nearer(found, len(first)).tolist()
    placed = list(zip((participants.clients[row] for row in others), joins, strict=True))
    return replace(
        split,
        first=tuple(sorted([*split.first, *(client for client, joined in placed if not joined)])),
        second=tuple(sorted([*split.second, *(client for client, joined in placed if joined)])),
    )


def nearer(distances: Tensor, first: int) -> Tensor:
    """Whether rows are nearer to the second part, on average; the columns of the first part come first.

    >>> nearer(torch.tensor([[1.0, 1.0, 3.0], [2.0, 2.0, 1.0], [0.0, 0.0, 0.0]]), 2).tolist()
    [False, True, False]
    """
    return distances[:, first:].mean(dim=1) < distances[:, :first].mean(dim=1)


def evenly(rows: Sequence[int], most: int) -> list[int]:
    """Return at most so many of the rows, evenly chosen.

    >>> evenly([0, 1, 2, 3, 4], 3)
    [0, 2, 4]
    """
    if len(rows) <= most:
        return list(rows)
    return [rows[at] for at in np.linspace(0, len(rows) - 1, most).round().astype(int)]
