"""The inner split: training samples that the federation does not train on choose the personal part.

Val is never used. A client sets samples aside before the first round, since a model that has seen a sample says little
about others like it: after some rounds a group's model knows its clients' training samples by heart. `stacking` makes
weights from what clients find on them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.data.federation import Federation
from hcfl.tiers.client_segments import Segments

SHARE = 0.2
"""The share of a client's training samples that it sets aside."""

MOST = 50
"""The largest number of samples that a client sets aside."""


def number_aside(samples: int) -> int:
    """Return how many of a client's training samples it sets aside.

    >>> [number_aside(samples) for samples in (1, 3, 20, 1500)]
    [0, 1, 4, 50]
    """
    return min(round(SHARE * samples), MOST, samples - 1)


def set_aside(federation: Federation) -> Federation:
    """Let each client keep some training samples out of training: its last ones.

    Their order is random, or, where samples have a time, that of time.
    """
    numbers = [number_aside(len(rows)) for rows in federation.train]
    pairs = list(zip(federation.train, numbers, strict=True))
    return replace(federation, train=[rows[: len(rows) - number] for rows, number in pairs])


def held_of(segments: Segments) -> Tensor:
    """Return which of all training samples of some clients they set aside, (samples,)."""
    return torch.cat([torch.arange(size) >= size - number_aside(size) for size in segments.sizes])


OF_SAMPLES = ("each", "errors")
"""The tables of `Gains` that have a row for each sample; the others have one for each client."""


@dataclass(frozen=True)
class Gains:
    """By how much candidates beat the group's model on what clients set aside."""

    samples: Tensor
    """(clients,): how many each client set aside."""
    each: Tensor
    """(samples, candidates): the gain in log-likelihood of each sample, one client's after another's."""
    errors: Tensor | None = None
    """(samples, 1 + candidates): of numbers, the errors of the group and of each candidate; they stay with it."""
    learnt: Tensor | None = None
    """(clients,): of numbers, the variance that the group has learnt; it stays with the client, too."""

    @classmethod
    def of(cls, scores: Tensor, segments: Segments) -> "Gains":
        """Compare scores (samples, 1 + candidates), of which column 0 is the group's.

        What has diverged is as bad as the worst of the others; where everything has, nothing gains.
        """
        scores, fine = scores.double(), scores.isfinite()
        worst = scores.where(fine, torch.inf).amin(dim=1, keepdim=True)
        scores = scores.where(fine, worst.where(worst.isfinite(), 0.0))
        return cls(segments.lengths.double(), (scores[:, 1:] - scores[:, :1]).float())

    @property
    def sent(self) -> "Gains":
        """What a client tells."""
        return Gains(self.samples, self.each)

    @property
    def segments(self) -> Segments:
        """Which client each sample belongs to."""
        return Segments(tuple(int(number) for number in self.samples.tolist()))

    @classmethod
    def join(cls, each: Sequence["Gains"]) -> "Gains":
        """Put what several clients found together."""
        return cls(torch.cat([one.samples for one in each]), torch.cat([one.each for one in each]))

    def possible(self, candidates: int, largest: float) -> bool:
        """Whether one client can have found this, and told no more, where no gain of a sample is above `largest`."""
        if self.errors is not None or self.learnt is not None:
            return False
        if (self.samples.dtype, tuple(self.samples.shape)) != (torch.float64, (1,)):
            return False
        number = float(self.samples)
        if not (0 <= number <= MOST and number == int(number)):
            return False
        if (self.each.dtype, tuple(self.each.shape)) != (torch.float32, (int(number), candidates)):
            return False
        return bool((self.each.abs() <= largest * (1 + 1e-6)).all())
