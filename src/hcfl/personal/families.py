"""Families of candidates: what a client can mix with its group's model, with a grid of strengths each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hcfl.models.ensemble import Copies, Ensemble, outputs_of
from hcfl.models.inputs import some
from hcfl.personal import heads, prior
from hcfl.personal.clients import Clients
from hcfl.personal.fine_tune import ALONE, EPOCHS, Course, Tuning
from hcfl.personal.links import Link, scoring_of, shifted

HALF = 0.5
"""How much of the prior a head starts from."""


@dataclass(frozen=True)
class OwnHead:
    """What a client adds to its group's prediction on the scale of the task."""

    bias: Tensor
    """(values,)."""
    weight: Tensor | None = None
    """(features, values)."""


Own = OwnHead | Ensemble
"""A part of a client's own: a head, or a whole model."""

Chosen = Mapping[int, Sequence[int]]
"""The numbers of the candidates that clients, by their position, need."""


class Family(Protocol):
    """Candidates of one kind, which differ in strength."""

    @property
    def size(self) -> int:
        """The number of candidates."""
        ...

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Predict by what is fitted to the other samples, (samples, candidates, values); only what is held out."""
        ...

    def name(self, number: int) -> str:
        """Return the kind of a candidate."""
        ...

    def made(self, clients: Clients, tuning: Tuning, chosen: Chosen) -> dict[tuple[int, int], Own]:
        """Make candidates from all training data of clients, by the client's position and the candidate's number."""
        ...


@dataclass(frozen=True)
class Prior:
    """What the client's answers are without looking at inputs, in place of its group's, as a whole or by half."""

    link: Link

    size = len(prior.STRENGTHS)

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Correct by what is not held out."""
        offsets = self.link.intercepts(clients, ~clients.held)
        group = clients.group.mixed
        each = clients.segments.each(offsets).to(group).unsqueeze(1)
        strengths = torch.tensor(prior.STRENGTHS).to(each).view(1, -1, 1)
        return shifted(self.link, group.unsqueeze(1), strengths * each)

    def name(self, number: int) -> str:
        """Return prior."""
        return "prior"

    def made(self, clients: Clients, tuning: Tuning, chosen: Chosen) -> dict[tuple[int, int], Own]:
        """Return the offsets."""
        offsets = self.link.intercepts(clients, torch.ones_like(clients.held)).to(clients.group.mixed)
        return {
            (row, number): OwnHead(prior.STRENGTHS[number] * offsets[row])
            for row, numbers in chosen.items()
            for number in numbers
        }


@dataclass(frozen=True)
class Head:
    """An own head: a residual to what the prior corrected by half, held near it by a penalty."""

    link: Link

    size = len(heads.PENALTIES)

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Fit a head for each penalty."""
        offsets, _ = self._start(clients, ~clients.held)
        features, answers = clients.group.features, clients.answers
        found = heads.held_out(self.link, features, offsets, answers, clients.segments, clients.held)
        return self.link.predicted(found, clients.group.mixed.unsqueeze(1))

    def name(self, number: int) -> str:
        """Return head."""
        return "head"

    def made(self, clients: Clients, tuning: Tuning, chosen: Chosen) -> dict[tuple[int, int], Own]:
        """Fit all heads at once; those that are not needed are dropped."""
        found: dict[tuple[int, int], Own] = {}
        if not chosen:
            return found
        offsets, bias = self._start(clients, torch.ones_like(clients.held))
        features, answers = clients.group.features, clients.answers
        for row, weight, more in heads.fitted(self.link, features, offsets, answers, clients.segments):
            for number in chosen.get(row, ()):
                found[row, number] = OwnHead(bias[row] + more[number], weight[number].clone())
        return found

    def _start(self, clients: Clients, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the residual is added to, on the link's scale, and the prior's offsets of each client."""
        group, bias = clients.group.mixed, HALF * self.link.intercepts(clients, counted)
        bias = bias.to(group)
        return self.link.scale(shifted(self.link, group, clients.segments.each(bias))), bias


@dataclass(frozen=True)
class WholeModels:
    """Whole models: the group's, trained on; and the one that the client trains alone."""

    alone: bool = False
    """Whether clients also train alone."""
    proximal: float = 0.0
    """λ of λ/2‖θ − θ_group‖², which holds the own model near the group's (Ditto)."""

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.candidates)

    @property
    def candidates(self) -> list[tuple[bool, int]]:
        """For each candidate, whether the client trains it alone, and after which stage it is taken."""
        alone = [(True, stage) for stage in range(len(ALONE))] if self.alone else []
        return [(False, stage) for stage in range(len(EPOCHS))] + alone

    def name(self, number: int) -> str:
        """Return how the model is trained."""
        alone, _ = self.candidates[number]
        return "alone" if alone else "proximal" if self.proximal else "fine-tune"

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Train on what is not held out, and predict everything after each stage."""
        kept = [rows[~clients.held[rows]] for rows in clients.rows]
        everyone, found = range(len(kept)), []
        for alone in (False, True) if self.alone else (False,):
            found += _predicted(clients, tuning, self._trained(clients, tuning, kept, everyone, alone))
        return torch.stack(found, dim=1)

    def made(self, clients: Clients, tuning: Tuning, chosen: Chosen) -> dict[tuple[int, int], Own]:
        """Train on all samples, as long as is needed."""
        found: dict[tuple[int, int], Own] = {}
        for alone in (False, True):
            wanted = [
                (row, number, self.candidates[number][1])
                for row, numbers in chosen.items()
                for number in numbers
                if self.candidates[number][0] == alone
            ]
            if not wanted:
                continue
            rows = sorted({row for row, _, _ in wanted})
            place = {row: position for position, row in enumerate(rows)}
            samples, last = [clients.rows[row] for row in rows], max(stage for _, _, stage in wanted)
            for stage, models in enumerate(self._trained(clients, tuning, samples, rows, alone)):
                for row, number, at in wanted:
                    if at == stage:
                        found[row, number] = models.of(place[row]).map(torch.clone)
                if stage == last:
                    break
        return found

    def _trained(
        self, clients: Clients, tuning: Tuning, samples: Sequence[Tensor], rows: Sequence[int], alone: bool
    ) -> Iterator[Copies]:
        """Train some clients' models on some of their samples, and give them after each stage."""
        if alone:
            start = Copies.stack([tuning.start] * len(rows))
        else:
            start = clients.models.map(lambda tensor: tensor[list(rows)])
        purposes = [("personal training", int(alone), clients.ids[row]) for row in rows]
        course = Course(start, samples, clients.seed, purposes)
        return tuning.stages(clients.data, course, ALONE if alone else EPOCHS, self.proximal)


def _predicted(clients: Clients, tuning: Tuning, stages: Iterator[Copies]) -> list[Tensor]:
    """Predict every sample that is held out, after each stage, (samples, values) each."""
    inputs, found, scoring = clients.data.inputs, [], scoring_of(tuning.network.task)
    for models in stages:
        predicted = torch.zeros_like(scoring.of_group(clients.group))
        for client, mine in enumerate(clients.rows):
            at = mine[clients.held[mine]]
            if len(at):
                outputs = outputs_of(tuning.network, models.of(client), some(inputs, at.to(inputs.device)))
                at = at.to(predicted.device)
                predicted[at] = scoring.of_model(outputs, clients.answers[at])
        found.append(predicted)
    return found
