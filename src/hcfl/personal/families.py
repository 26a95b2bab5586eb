"""Families of candidates: what a client can add to its group's model, with a grid of strengths each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Protocol

import torch
from torch import Tensor

from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.data.local_data import LocalData
from hcfl.models.ensemble import Copies, Ensemble, class_log_probs
from hcfl.models.inputs import some
from hcfl.personal import heads, prior
from hcfl.personal.fine_tune import ALONE, EPOCHS, Course, Tuning
from hcfl.tiers.client_segments import Segments

HALF = 0.5
"""How much of the prior a head starts from."""


@dataclass(frozen=True)
class Clients:
    """Some clients, as their personal parts are made."""

    ids: Sequence[int]
    data: LocalData
    """Their training data, with what they have set aside."""
    held: Tensor
    """(samples,): whether each was set aside."""
    group: Predictions
    """What their groups' models predict of these."""
    class_shares: Tensor
    """The class frequencies of each client's group, (clients, classes)."""
    models: Copies
    """The model of each client's main cluster, as a whole model."""
    seed: int

    @property
    def segments(self) -> Segments:
        """Which client each sample belongs to."""
        return self.data.segments

    @cached_property
    def labels(self) -> Tensor:
        """(samples,), where predictions are."""
        return self.data.labels.to(self.group.log_probs.device)

    @cached_property
    def rows(self) -> Sequence[Tensor]:
        """Rows of each client's samples."""
        return self.segments.split(torch.arange(len(self.data)))

    def counts(self, counted: Tensor) -> Tensor:
        """How many of the samples that are `counted` each client has of each class, (clients, classes)."""
        classes, cell = self.data.classes, self.segments.index * self.data.classes + self.data.labels
        return torch.bincount(cell[counted], minlength=len(self.segments) * classes).view(-1, classes)


class Family(Protocol):
    """Candidates of one kind, which differ in strength."""

    @property
    def size(self) -> int:
        """The number of candidates."""
        ...

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Log p(·|x) by what is fitted to the other samples, (samples, candidates, classes); only of those held out."""
        ...

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Make the parts of some clients, by their position, from all their training data: which candidate each has."""
        ...


@dataclass(frozen=True)
class Prior:
    """The client's class frequencies in place of its group's, as a whole or by half."""

    size = len(prior.STRENGTHS)

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Correct by the frequencies of what is not held out."""
        offsets = prior.correction(clients.counts(~clients.held), clients.class_shares)
        each = clients.segments.each(offsets).to(clients.group.log_probs).unsqueeze(1)
        strengths = torch.tensor(prior.STRENGTHS).to(each).view(1, -1, 1)
        return prior.corrected(clients.group.log_probs.unsqueeze(1), strengths * each)

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Return the offsets of the classes."""
        offsets = prior.correction(clients.counts(torch.ones_like(clients.held)), clients.class_shares)
        return {
            row: PersonalPart("prior", bias=prior.STRENGTHS[number] * offsets[row]) for row, number in chosen.items()
        }


@dataclass(frozen=True)
class Head:
    """An own head: a residual to what the prior corrected by half, held near it by a penalty."""

    size = len(heads.PENALTIES)

    def held_out(self, clients: Clients, tuning: Tuning) -> Tensor:
        """Fit a head for each penalty."""
        offsets, _ = self._start(clients, ~clients.held)
        return heads.held_out_log_probs(clients.group.features, offsets, clients.labels, clients.segments, clients.held)

    def parts(self, clients: Clients, tuning: Tuning, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Fit all heads at once; those that were not chosen are dropped."""
        if not chosen:
            return {}
        offsets, bias = self._start(clients, torch.ones_like(clients.held))
        penalties = torch.tensor([heads.PENALTIES[chosen.get(row, 0)] for row in range(len(clients.segments))])
        weight, more = heads.fitted(clients.group.features, offsets, clients.labels, clients.segments, penalties)
        return {row: PersonalPart("head", bias=bias[row] + more[row], weight=weight[row].clone()) for row in chosen}

    def _start(self, clients: Clients, counted: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the residual is added to: log p(·|x) of each sample, and the prior's offsets of each client."""
        offsets = prior.correction(clients.counts(counted), clients.class_shares)
        bias = (HALF * offsets).to(clients.group.log_probs)
        return prior.corrected(clients.group.log_probs, clients.segments.each(bias)), bias


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
        found = []
        for on, off in self.candidates:
            parts = [*([] if on is None else [tuned[on]]), *([] if off is None else [alone[off]])]
            found.append(torch.logsumexp(torch.stack(parts), dim=0) - log(len(parts)))
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
    """Log p(·|x) of every sample that is held out, after each stage, (samples, classes) each."""
    inputs, found = clients.data.inputs, []
    for models in stages:
        log_probs = torch.zeros_like(clients.group.log_probs)
        for client, mine in enumerate(clients.rows):
            at = mine[clients.held[mine]]
            if len(at):
                own = class_log_probs(tuning.network, models.of(client), some(inputs, at.to(inputs.device)))
                log_probs[at.to(log_probs.device)] = own[:, 0]
        found.append(log_probs)
    return found


def _side_by_side(models: Sequence[Ensemble]) -> Ensemble:
    """Return whole models as one ensemble."""
    extractors, heads = (
        {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        for parts in ([one.extractors for one in models], [one.heads for one in models])
    )
    return Ensemble(extractors, heads, "full")
