"""The training data of a group of clients, as local training reads it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.models.inputs import Inputs, some
from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class LocalData:
    """The training data of some clients, one after another."""

    inputs: Inputs
    labels: Tensor
    """Classes, or the bins of other answers."""
    classes: int
    segments: Segments
    """Which client each sample belongs to."""
    targets: Tensor | None = None
    """What is predicted, where that is no class: (samples,) or (samples, labels)."""
    before: "LocalData | None" = None
    """What the same clients held out in the step before; None in the first step."""
    is_new: Tensor | None = None
    """(samples,): whether each is of this step, and not of an earlier one in the window; None: all are."""

    @property
    def answers(self) -> Tensor:
        """What the likelihood is of."""
        return self.labels if self.targets is None else self.targets

    @classmethod
    def alone(cls, inputs: Inputs, labels: Tensor, classes: int) -> "LocalData":
        """Return the data of one client."""
        return cls(inputs, labels, classes, Segments((len(labels),)))

    def only(self, which: Tensor) -> "LocalData":
        """Return the data of some of the clients, (clients,); they have no steps of time."""
        if bool(which.all()):
            return self
        rows = torch.nonzero(self.segments.each(which.unsqueeze(1))[:, 0]).flatten()
        sizes = tuple(size for size, wanted in zip(self.segments.sizes, which.tolist(), strict=True) if wanted)
        targets = None if self.targets is None else self.targets[rows]
        inputs = some(self.inputs, rows.to(self.inputs.device))
        return LocalData(inputs, self.labels[rows], self.classes, Segments(sizes), targets)

    def __len__(self) -> int:
        return len(self.labels)
