"""Families of candidates: what a client can add to its group's model, with a grid of strengths each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from hcfl.core.state import PersonalPart
from hcfl.models.ensemble import Copies, Ensemble, outputs_of
from hcfl.models.inputs import some
from hcfl.personal import heads, prior
from hcfl.personal.clients import Clients
from hcfl.personal.fine_tune import ALONE, EPOCHS, Course, Tuning
from hcfl.personal.links import Link, scoring_of, shifted

HALF = 0.5
"""How much of the prior a head starts from."""


class Family(Protocol):
    """Candidates of one kind, which differ in strength."""

    @property
    def size(self) -> int:
        """The number of candidates."""
        ...

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Predict by what is fitted to the other samples, (samples, candidates, values); only what is held out."""
        ...

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Make the parts of some clients, by their position, from all their training data: which candidate each has."""
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

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Return the offsets."""
        offsets = self.link.intercepts(clients, torch.ones_like(clients.held))
        return {
            row: PersonalPart("prior", bias=prior.STRENGTHS[number] * offsets[row]) for row, number in chosen.items()
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

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Fit all heads at once; those that were not chosen are dropped."""
        if not chosen:
            return {}
        offsets, bias = self._start(clients, torch.ones_like(clients.held))
        penalties = torch.tensor([heads.PENALTIES[chosen.get(row, 0)] for row in range(len(clients.segments))])
        features, answers = clients.group.features, clients.answers
        weight, more = heads.fitted(self.link, features, offsets, answers, clients.segments, penalties)
        return {row: PersonalPart("head", bias=bias[row] + more[row], weight=weight[row].clone()) for row in chosen}

    def _start(self, clients: Clients, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the residual is added to, on the link's scale, and the prior's offsets of each client."""
        group, bias = clients.group.mixed, HALF * self.link.intercepts(clients, counted)
        bias = bias.to(group)
        return self.link.scale(shifted(self.link, group, clients.segments.each(bias))), bias


@dataclass(frozen=True)
class WholeModels:
    """Whole models: the group's, trained on; the one that the client trains alone; and the mean of two such models."""

    alone: bool = False
    """Whether clients also train alone."""
    proximal: float = 0.0
    """λ of λ/2‖θ − θ_group‖², which holds the own model near the group's (Ditto)."""

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.candidates)

    @property
    def candidates(self) -> list[tuple[int | None, int | None]]:
        """For each candidate, after which stage the group's model is taken, and after which the one trained alone."""
        tuned = [(stage, None) for stage in range(len(EPOCHS))]
        if not self.alone:
            return [*tuned]
        last = len(ALONE) - 1
        return [*tuned, *[(None, stage) for stage in range(len(ALONE))], *[(stage, last) for stage, _ in tuned]]

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Train on what is not held out, and predict everything after each stage."""
        kept = [rows[~clients.held[rows]] for rows in clients.rows]
        everyone = range(len(kept))
        tuned = _predicted(clients, tuning, self._trained(clients, tuning, kept, everyone, alone=False))
        alone = _predicted(clients, tuning, self._trained(clients, tuning, kept, everyone, True)) if self.alone else []
        scoring, found = scoring_of(tuning.network.task), []
        for on, off in self.candidates:
            parts = [*([] if on is None else [tuned[on]]), *([] if off is None else [alone[off]])]
            found.append(scoring.average(torch.stack(parts, dim=1)))
        return torch.stack(found, dim=1)

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Train on all samples, as long as was chosen."""
        which = {row: self.candidates[number] for row, number in chosen.items()}
        models: dict[int, list[Ensemble]] = {row: [] for row in chosen}
        for place, alone in ((0, False), (1, True)):
            last = {row: stages[place] for row, stages in which.items() if stages[place] is not None}
            rows = [clients.rows[row] for row in last]
            for stage, found in enumerate(self._trained(clients, tuning, rows, list(last), alone) if last else ()):
                for position, (row, stop) in enumerate(last.items()):
                    if stop == stage:
                        models[row].append(found.of(position).map(torch.clone))
                if stage == max(stop for stop in last.values() if stop is not None):
                    break
        return {row: PersonalPart(self._kind(*which[row]), own=_side_by_side(own)) for row, own in models.items()}

    def _kind(self, on: int | None, off: int | None) -> str:
        if on is None:
            return "alone"
        if off is not None:
            return "both"
        return "proximal" if self.proximal else "fine-tune"

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


def _side_by_side(models: Sequence[Ensemble]) -> Ensemble:
    """Return whole models as one ensemble."""
    extractors, heads = (
        {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for parts in ([one.extractors for one in models], [one.heads for one in models])
    )
    return Ensemble(extractors, heads, "full")
