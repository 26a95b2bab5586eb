"""Whole models that a client trains by itself, stage by stage, so that what was set aside can say how long."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from hcfl import rng
from hcfl.core.local_plan import Job, Trainer
from hcfl.core.sgd import Batches, LocalSGD, shuffle
from hcfl.data.local_data import LocalData
from hcfl.methods.local_models import Plan
from hcfl.models import Network
from hcfl.models.ensemble import Copies, Ensemble, copies
from hcfl.tiers.client_segments import Segments

EPOCHS = (4, 16, 64)
"""After so many epochs in all, a client that trains its group's model on keeps a candidate."""

ALONE = (64,)
"""The same for a client that trains from the model that the federation began with."""

PROXIMAL = (1.0, 0.1)
"""The λ that own models with a proximal term try."""

BATCH = 32
"""Samples in a step, whatever batches the federation trains with."""


@dataclass(frozen=True)
class Course:
    """How some clients train on: from which models, on which of their samples, drawing which random numbers."""

    start: Copies
    """(clients, 1, …), whole models."""
    samples: Sequence[Tensor]
    """Rows of each client's samples."""
    seed: int
    purposes: Sequence[tuple[int | str, ...]]


def main_models(ensemble: Ensemble, weights: Tensor, own: Sequence[Ensemble | None]) -> Copies:
    """Return the model of each client's main cluster as a whole model, (clients, 1, …), or the one that it keeps."""
    chosen = copies(ensemble, weights.argmax(dim=1, keepdim=True))
    each = [chosen.of(row) if mine is None else mine for row, mine in enumerate(own)]
    return Copies.stack([Ensemble(one.extractors, one.heads, "full") for one in each])


@dataclass(frozen=True)
class Tuning:
    """How whole models train on."""

    network: Network
    trainer: Trainer
    sgd: LocalSGD
    start: Ensemble
    """The model that the federation began with."""

    def stages(self, data: LocalData, course: Course, epochs: Sequence[int], proximal: float = 0.0) -> Iterator[Copies]:
        """Train on, held near the start by the proximal term, and give the models after each number of epochs."""
        segments = Segments(tuple(len(rows) for rows in course.samples))
        samples = torch.cat(list(course.samples))
        models, gamma = course.start, torch.ones(len(data), 1)
        for before, after in pairwise((0, *epochs)):
            settings = replace(self.sgd, batch=BATCH, epochs=after - before, drop_last=False, proximal=proximal)
            orders = [rng.torch_generator(course.seed, *purpose, "batches", after) for purpose in course.purposes]
            batches = shuffle(segments, settings, orders, singles=not self.network.buffers)
            job = Job(
                plan=Plan(models, torch.zeros(len(segments), 1, 1), gamma, course.start, received=False),
                features=None,
                data=data,
                batches=Batches(samples[batches.index], batches.sizes),
                sgd=settings,
                purposes=[(course.seed, *purpose, after) for purpose in course.purposes],
            )
            models = self.trainer(self.network, job).models
            yield models
