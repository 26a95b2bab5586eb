"""Families of candidates: what a client can add to its group's model, with a grid of strengths each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart
from hcfl.data.local_data import LocalData
from hcfl.models.ensemble import Copies, class_log_probs
from hcfl.models.inputs import some
from hcfl.personal import heads, prior
from hcfl.personal.fine_tune import EPOCHS, Course, Tuning
from hcfl.personal.inner_split import best_candidate, fold_of_each, held_out_score
from hcfl.tiers.client_segments import Segments

FOLDS = 4
"""Parts of each client's training data, each held out once."""


@dataclass(frozen=True)
class Clients:
    """Some clients, as their personal parts are made."""

    ids: Sequence[int]
    data: LocalData
    """Their training data."""
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
    def fold(self) -> Tensor:
        """The fold of each sample, (samples,)."""
        return fold_of_each(self.segments, self.seed, self.ids, FOLDS)

    @cached_property
    def counts(self) -> Tensor:
        """How many samples of each class each client has in each fold, (clients, folds, classes)."""
        classes, cells = self.data.classes, len(self.segments) * FOLDS
        cell = self.segments.index * FOLDS + self.fold
        return torch.bincount(cell * classes + self.data.labels, minlength=cells * classes).view(-1, FOLDS, classes)

    def scores(self, log_probs: Tensor) -> Tensor:
        """Score candidates (samples, candidates, classes) by the true labels, (samples, candidates)."""
        return torch.stack([held_out_score(each, self.labels) for each in log_probs.unbind(1)], dim=1).cpu()


class Family(Protocol):
    """Candidates of one kind, which differ in strength."""

    def held_out(self, clients: Clients) -> Tensor:
        """Log p(·|x) of every training sample by what the other folds give, (samples, candidates, classes)."""
        ...

    def parts(self, clients: Clients, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Make the parts of some clients, by their position, from all their training data: which candidate each has."""
        ...


@dataclass(frozen=True)
class Prior:
    """The client's class frequencies in place of its group's, as a whole or by half."""

    def held_out(self, clients: Clients) -> Tensor:
        """Correct each fold by the frequencies of the others."""
        others = clients.counts.sum(dim=1, keepdim=True) - clients.counts
        offsets = prior.correction(others, clients.class_shares.unsqueeze(1))
        each = offsets[clients.segments.index, clients.fold].to(clients.group.log_probs)
        strengths = torch.tensor(prior.STRENGTHS).to(each).view(1, -1, 1)
        return prior.corrected(clients.group.log_probs.unsqueeze(1), strengths * each.unsqueeze(1))

    def parts(self, clients: Clients, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Return the offsets of the classes."""
        offsets = prior.correction(clients.counts.sum(dim=1), clients.class_shares)
        return {
            row: PersonalPart("prior", bias=prior.STRENGTHS[number] * offsets[row]) for row, number in chosen.items()
        }

    def best(self, clients: Clients) -> tuple[Tensor, Tensor]:
        """Return log p(·|x) as the inner split corrects it, (samples, classes), and each client's strength."""
        candidates = torch.cat([clients.group.log_probs.unsqueeze(1), self.held_out(clients)], dim=1)
        column = best_candidate(clients.scores(candidates), clients.segments)
        own = clients.segments.each(column).to(candidates.device)
        return candidates[torch.arange(len(own), device=own.device), own], torch.tensor([0.0, *prior.STRENGTHS])[column]


@dataclass(frozen=True)
class Head:
    """An own head: a residual to what the prior corrected, held near it by a penalty."""

    def held_out(self, clients: Clients) -> Tensor:
        """Fit a head for each penalty and fold."""
        offsets, _ = Prior().best(clients)
        return heads.held_out_log_probs(
            clients.group.features, offsets, clients.labels, clients.segments, clients.fold, FOLDS
        )

    def parts(self, clients: Clients, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Fit all heads at once; those that were not chosen are dropped."""
        if not chosen:
            return {}
        _, strength = Prior().best(clients)
        corrections = prior.correction(clients.counts.sum(dim=1), clients.class_shares)
        bias = (strength.unsqueeze(1) * corrections).to(clients.group.log_probs)
        offsets = prior.corrected(clients.group.log_probs, clients.segments.each(bias))
        penalties = torch.tensor([heads.PENALTIES[chosen.get(row, 0)] for row in range(len(clients.segments))])
        weight, more = heads.fitted(clients.group.features, offsets, clients.labels, clients.segments, penalties)
        return {row: PersonalPart("head", bias=bias[row] + more[row], weight=weight[row].clone()) for row in chosen}


@dataclass(frozen=True)
class FineTune:
    """The whole model, trained on; one candidate for each number of epochs."""

    tuning: Tuning
    proximal: float = 0.0
    """λ of λ/2‖θ − θ_group‖², which holds the own model near the group's (Ditto)."""

    def held_out(self, clients: Clients) -> Tensor:
        """Train once for each fold."""
        data, rows = clients.data, clients.segments.split(torch.arange(len(clients.data)))
        found = clients.group.log_probs.new_zeros(len(data), len(EPOCHS), data.classes)
        for part in range(FOLDS):
            held = [mine[clients.fold[mine] == part] for mine in rows]
            others = [mine[clients.fold[mine] != part] for mine in rows]
            purposes = [("personal training", client, part) for client in clients.ids]
            course = Course(clients.models, others, clients.seed, purposes)
            for stage, models in enumerate(self.tuning.stages(data, course, self.proximal)):
                for client, mine in enumerate(held):
                    if len(mine):
                        inputs = some(data.inputs, mine.to(data.inputs.device))
                        found[mine, stage] = class_log_probs(self.tuning.network, models.of(client), inputs)[:, 0]
        return found

    def parts(self, clients: Clients, chosen: Mapping[int, int]) -> dict[int, PersonalPart]:
        """Train on all samples, up to the chosen number of epochs."""
        if not chosen:
            return {}
        ids, rows = [clients.ids[row] for row in chosen], clients.segments.split(torch.arange(len(clients.data)))
        start = clients.models.map(lambda tensor: tensor[list(chosen)])
        purposes = [("personal training", client) for client in ids]
        course = Course(start, [rows[row] for row in chosen], clients.seed, purposes)
        found: dict[int, PersonalPart] = {}
        for stage, models in enumerate(self.tuning.stages(clients.data, course, self.proximal)):
            for place, (row, last) in enumerate(chosen.items()):
                if last == stage:
                    found[row] = PersonalPart(
                        "proximal" if self.proximal else "fine-tune", own=models.of(place).map(torch.clone)
                    )
            if stage == max(chosen.values()):
                break
        return found
