"""Auxo-style cohorts: clusters that grow and split where each round sees few clients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hcfl import rng
from hcfl.errors import InputError
from hcfl.tiers.adaptation.decision import Decision, MoveDecision, SplitDecision
from hcfl.tiers.adaptation.partition import sketched
from hcfl.tiers.participants import Participants, Statistic

KEPT = 0.8
"""How much of a cohort's direction stays from round to round."""

PAIRS = 20
"""How many pairs of clients must have been compared, within halves and across, before a cohort splits."""


@dataclass(frozen=True)
class GrowingCohorts:
    """Cohorts for low participation, after Auxo (Liu et al., 2023).

    No round sees all clients, so nothing is decided from one round. A cohort has a direction, the leading principal
    direction of its participants' updates, followed from round to round. Each participant leans to one of its sides,
    and leanings add up. Clients whose side is known from earlier rounds test the two sides: the cohort splits when
    their updates are farther apart across sides than within, by `gain` in 1 − cos, and both sides have `smallest`
    clients.
    A participant's score in its cohort rises by 1 − d/(d̄ + σ), d the distance of its update to the others' mean; a
    client whose score falls below −1 goes to the cohort where its score is highest, 0 where it has never been.
    """

    gain: float = 0.2
    smallest: int = 4
    adaptive: ClassVar[bool] = True
    uses_distance: ClassVar[bool] = False
    needs: ClassVar[Statistic | None] = "whole updates"
    splits: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.gain < 2:
            raise InputError(f"gain = {self.gain}: must be greater than 0 and less than 2")
        if self.smallest < 1:
            raise InputError(f"smallest = {self.smallest}: must be at least 1")

    def decide(self, participants: Participants, distance: Tensor | None, occupied: Tensor) -> Decision:
        """Let participants lean, score them, and split the cohorts whose sides differ."""
        assert participants.whole_updates is not None
        assert participants.everyone is not None
        updates = normalize(sketched(participants.whole_updates, participants.seed).double(), dim=1)
        size, cohorts = len(participants.everyone), len(occupied)
        leaning = _larger(participants.memory.get("leaning"), size)
        score = _larger(participants.memory.get("score"), size, cohorts)
        pairs = _larger(participants.memory.get("pairs"), cohorts, 4)
        direction = _larger(participants.memory.get("direction"), cohorts, updates.shape[1])
        splits, moves = list[SplitDecision](), list[MoveDecision]()
        for column in sorted(set(participants.members.tolist())):
            rows = torch.nonzero(participants.members == column).flatten()
            clients = torch.tensor([participants.clients[row] for row in rows.tolist()])
            if len(rows) < 2:
                continue
            seen = updates[rows]
            pairs[column] += compared_sides(seen, leaning[clients])
            centred = seen - seen.mean(dim=0)
            direction[column] = followed(direction[column], centred)
            leaning[clients] += normalize(centred, dim=1) @ direction[column]
            if cohorts > 1 and len(rows) > 2:
                score[clients, column] += rewards(seen)
                for client in clients[score[clients, column] < -1].tolist():
                    to = self._preferred(participants, client, score[client])
                    if to != column:
                        moves.append(MoveDecision(client, to, with_model=False))
                        leaning[client] = 0
            if split := self._split(participants, column, leaning, pairs[column]):
                splits.append(split)
                leaning[list(split.first + split.second)] = 0
                score[list(split.first + split.second)] = 0
                pairs[column], direction[column] = 0, 0
        memory = {"leaning": leaning, "score": score, "pairs": pairs, "direction": direction}
        return Decision(tuple(splits), moves=tuple(moves), memory=memory)

    def _preferred(self, participants: Participants, client: int, score: Tensor) -> int:
        """Return the cohort with a client's highest score; one of them, drawn, where there are several."""
        best = torch.nonzero(score == score.max()).flatten().tolist()
        return int(rng.numpy_generator(participants.seed, "cohort", participants.round, client).choice(best))

    def _split(
        self, participants: Participants, column: int, leaning: Tensor, compared: Tensor
    ) -> SplitDecision | None:
        """Split a cohort whose two sides are far enough apart; the larger side keeps the cohort."""
        assert participants.everyone is not None
        within, inside, across, outside = compared.tolist()
        mine = participants.everyone == column
        sides = [torch.nonzero(mine & side).flatten().tolist() for side in (leaning > 0, leaning < 0)]
        second, first = sorted(sides, key=lambda side: (len(side), side))
        if min(inside, outside) < PAIRS or len(second) < self.smallest:
            return None
        farther = across / outside - within / inside
        if farther < self.gain:
            return None
        mean = (within + across) / (inside + outside)
        return SplitDecision(column, tuple(first), tuple(second), "one-hot", farther, mean, self.gain)


def _larger(kept: Tensor | None, *shape: int) -> Tensor:
    """Return a copy of this shape, with zeros for clients and cohorts that came since."""
    larger = torch.zeros(shape, dtype=torch.float64)
    if kept is not None:
        larger[tuple(slice(length) for length in kept.shape)] = kept
    return larger


def compared_sides(updates: Tensor, leaning: Tensor) -> Tensor:
    """Sum and number of 1 − cos within sides, then across sides, (4,), over pairs of clients whose side is known.

    From updates of length 1 (clients, parameters) and leanings (clients,).
    """
    side = leaning.sign()
    same = (side.unsqueeze(1) * side.unsqueeze(0)).triu(diagonal=1)
    apart = 1 - updates @ updates.T
    parts = [part for chosen in (same > 0, same < 0) for part in ((apart * chosen).sum(), chosen.sum())]
    return torch.stack([part.double() for part in parts])


def followed(direction: Tensor, centred: Tensor) -> Tensor:
    """Follow the leading principal direction of updates (clients, parameters) that have mean zero.

    The first time it is this round's own; later the round moves it towards where its updates vary along it.
    """
    if not direction.any():
        leading: Tensor = torch.linalg.svd(centred, full_matrices=False).Vh[0]
        return leading * leading[leading.abs().argmax()].sign()
    seen = centred.T @ (centred @ direction) / centred.square().sum().clamp_min(torch.finfo(centred.dtype).tiny)
    return normalize(KEPT * direction + (1 - KEPT) * seen, dim=0)


def rewards(updates: Tensor) -> Tensor:
    """1 − d/(d̄ + σ) of each client, (clients,), d the 1 − cos of its update and the mean of the others'."""
    others = (updates.sum(dim=0) - updates) / (len(updates) - 1)
    apart = 1 - (updates * normalize(others, dim=1)).sum(dim=1)
    scale = apart.mean() + apart.std(correction=0)
    return 1 - apart / scale.clamp_min(torch.finfo(apart.dtype).tiny)
