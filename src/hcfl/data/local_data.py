"""The training data of a group of clients, as local training reads it."""

from dataclasses import dataclass

from torch import Tensor

from hcfl.models.inputs import Inputs
from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class LocalData:
    """The training data of some clients, one after another."""

    inputs: Inputs
    labels: Tensor
    classes: int
    segments: Segments
    """Which client each sample belongs to."""

    @classmethod
    def alone(cls, inputs: Inputs, labels: Tensor, classes: int) -> "LocalData":
        """Return the data of one client."""
        return cls(inputs, labels, classes, Segments((len(labels),)))

    def __len__(self) -> int:
        return len(self.labels)
