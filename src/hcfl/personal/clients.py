"""Some clients, as their personal parts are made."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hcfl.core.predictions import Predictions
from hcfl.data.local_data import LocalData
from hcfl.models.ensemble import Copies
from hcfl.tiers.client_segments import Segments


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
    def answers(self) -> Tensor:
        """(samples,) or (samples, labels), where predictions are."""
        return self.data.answers.to(self.group.mixed.device)

    @cached_property
    def rows(self) -> Sequence[Tensor]:
        """Rows of each client's samples."""
        return self.segments.split(torch.arange(len(self.data)))

    def counts(self, counted: Tensor) -> Tensor:
        """How many of the samples that are `counted` each client has of each class, (clients, classes)."""
        classes, cell = self.data.classes, self.segments.index * self.data.classes + self.data.labels
        return torch.bincount(cell[counted], minlength=len(self.segments) * classes).view(-1, classes)
