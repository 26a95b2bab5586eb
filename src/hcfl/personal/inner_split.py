"""The inner split: training samples that the federation does not train on choose the personal part.

Val is never used. A client sets samples aside before the first round, since a model that has seen a sample says little
about others like it: after some rounds a group's model knows its clients' training samples by heart. A few samples of
one client are a noisy judge, so clients pool what they found: see `Pool`.
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

ERRORS = 1.5
"""Standard errors that are subtracted from what all clients found: the best of many candidates is partly luck."""


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


@dataclass(frozen=True)
class Gains:
    """By how much candidates beat the group's model on what each client set aside; sums that a client can send."""

    samples: Tensor
    """(clients,)."""
    total: Tensor
    """(clients, candidates): Σ of the gains."""
    squares: Tensor
    """(clients, candidates): Σ of their squares."""
    variances: Tensor | None = None
    """(clients, candidates): of numbers, the variance around each candidate's prediction. It stays with the client."""

    @classmethod
    def of(cls, scores: Tensor, segments: Segments) -> "Gains":
        """Sum scores (samples, 1 + candidates), of which column 0 is the group's."""
        gains = (scores[:, 1:] - scores[:, :1]).double()
        return cls(segments.lengths.double(), segments.sum(gains), segments.sum(gains.square()))

    @property
    def sent(self) -> "Gains":
        """What a client tells."""
        return replace(self, variances=None)

    @classmethod
    def join(cls, each: Sequence["Gains"]) -> "Gains":
        """Put what several clients found together."""
        return cls(
            *(torch.cat(parts) for parts in zip(*((one.samples, one.total, one.squares) for one in each), strict=True))
        )

    def possible(self, candidates: int, largest: float) -> bool:
        """Whether one client can have found this, and told no more, where no gain of a sample is above `largest`."""
        shapes = [(tensor.dtype, tuple(tensor.shape)) for tensor in (self.samples, self.total, self.squares)]
        if shapes != [(torch.float64, (1,)), *[(torch.float64, (1, candidates))] * 2] or self.variances is not None:
            return False
        number = self.samples[:, None]
        room = 1 + 1e-6
        fine = (number >= 0) & (number <= MOST) & (number == number.round())
        fine = fine & (self.total.abs() <= number * largest * room) & (self.squares <= number * largest**2 * room)
        return bool((fine & (self.total.square() <= number * self.squares * room)).all())

    @property
    def mean(self) -> Tensor:
        """(clients, candidates); 0 of a client without samples."""
        return self.total / self.samples.clamp_min(1).unsqueeze(1)


@dataclass(frozen=True)
class Pool:
    """What all clients found of each candidate, (candidates,): mean gain and variances, as a random-effects model."""

    mean: Tensor
    error: Tensor
    """The squared standard error of `mean`."""
    within: Tensor
    """The variance of the gains of one client's samples."""
    between: Tensor
    """The variance of the clients' true means, by DerSimonian and Laird's estimate."""

    @classmethod
    def of(cls, gains: Gains) -> "Pool":
        """Estimate from all clients' sums."""
        each = gains.samples.unsqueeze(1)
        number, clients = each.sum().clamp_min(1), (each > 0).sum()
        mean = gains.total.sum(dim=0) / number
        spread = (each * (gains.mean - mean).square()).sum(dim=0)
        within = (gains.squares.sum(dim=0) - (each * gains.mean.square()).sum(dim=0)).clamp_min(0)
        within = within / (number - clients).clamp_min(1)
        uneven = each.square().sum() / number
        between = ((spread - (clients - 1) * within) / (number - uneven).clamp_min(1)).clamp_min(0)
        return cls(mean, within / number + between * uneven / number, within, between)

    def best(self, gains: Gains) -> Tensor:
        """Return each client's candidate, (clients,); 0 is the group.

        A client's mean gain is drawn towards that of all clients, the more the fewer samples it has and the more alike
        clients are. What is drawn in counts less 1.5 standard errors of the mean of all clients, so that a few samples
        in all are not enough to leave the group. The candidate with the largest gain is taken, if it is positive.
        """
        noise = self.within / gains.samples.clamp_min(1).unsqueeze(1)
        own = self.between / (self.between + noise).clamp_min(1e-12)
        own = own.masked_fill(gains.samples.unsqueeze(1) == 0, 0.0)
        expected = own * gains.mean + (1 - own) * (self.mean - ERRORS * self.error.sqrt())
        return torch.cat([torch.zeros(len(expected), 1), expected], dim=1).argmax(dim=1)
