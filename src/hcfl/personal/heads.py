r"""Own heads: residuals to the group's prediction, by penalised maximum likelihood for all clients at once.

A client's prediction is g(x) + z·Δ on the scale of its task, with g the group's (log p_group(·|x) of classes), z the
client's features, centred and scaled so that E‖z‖² = 1, and a constant. Δ minimises the task's loss + λ/2‖Δ‖²: the
residual has a prior variance of about 1/λ, of numbers in units of the variance around the group's mean; so λ means the
same for every network, and a client with more samples needs less of it.

Each λ is a problem of its own, and all problems of all clients take the same number of steps. A step divides the
gradient by an upper bound of the curvature (of classes Böhning's, ½Σzzᵀ + λ), which is diagonal in the principal axes
of the client's features; so there is no step size, and Nesterov's momentum makes few steps enough. The squared error of
numbers is as curved as its bound: one step is the solution.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from hcfl.tiers.client_segments import Segments

PENALTIES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""The λ that are tried, the strongest first."""

STEPS = 50
"""Steps of each fit; with the smallest λ, later ones change no prediction that matters (tested)."""

AXES = 128
"""The largest number of principal axes of a client's features that a residual uses."""

SPARE, ITERATIONS = 16, 4
"""How many axes more than wanted span the space that is searched for them, and steps of the search."""

ELEMENTS = 1 << 23
"""Logits that all problems of a chunk of clients may have."""


class Loss(Protocol):
    """What residuals minimise: its slope is what is expected less what the answers are."""

    @property
    def steps(self) -> int:
        """How many steps are enough."""
        ...

    def targets(self, answers: Tensor, values: int) -> Tensor:
        """Return answers as what is expected is compared with them, (clients, samples, values)."""
        ...

    def expected(self, values: Tensor) -> Tensor:
        """Return what is expected, from values (clients, samples, problems, values) on the scale of the task."""
        ...

    def curvature(self, z: Tensor, counted: Tensor) -> Tensor:
        """Bound the curvature along each axis, (clients, axes, problems, 1); from `fit`'s z and counted samples."""
        ...


@dataclass(frozen=True)
class Axes:
    """Each client's features in its principal axes, with a constant: z = (φ − mean) @ axes."""

    mean: Tensor
    """(clients, features)."""
    axes: Tensor
    """(clients, features, axes), scaled so that E‖z‖² = 1."""

    @classmethod
    def of(cls, features: Tensor, present: Tensor) -> "Axes":
        """Find the axes of padded features (clients, samples, features), of the samples that are `present`."""
        number = present.sum(dim=1).to(features).view(-1, 1, 1)
        mean = (features * present.unsqueeze(2)).sum(dim=1) / number[:, 0]
        centred = (features - mean.unsqueeze(1)) * present.unsqueeze(2)
        scale = (centred.square().sum(dim=(1, 2)) / number[:, 0, 0]).sqrt().clamp_min(1e-6)
        return cls(mean, principal_axes(centred)[:, :, :AXES] / scale.view(-1, 1, 1))

    def of_each(self, features: Tensor) -> Tensor:
        """Return z with the constant, (clients, samples, axes + 1)."""
        return pad((features - self.mean.unsqueeze(1)) @ self.axes, (0, 1), value=1.0)

    def folded(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return residuals (clients, axes + 1, problems, values) on φ itself.

        The weight is (clients, problems, features, values), and the bias (clients, problems, values).
        """
        weight = residuals(self.axes, residual[:, :-1]).transpose(1, 2)
        return weight, residual[:, -1] - (self.mean[:, None, None] @ weight)[:, :, 0]


def principal_axes(centred: Tensor) -> Tensor:
    """Return the first principal axes of each client's features, (clients, features, axes).

    From (clients, samples, features). Where there are many features, the space that the first axes span is found by
    iteration from a fixed start, since decomposing all of it takes a GPU longer than a round of training. The axes
    inside that space are exact, so the columns of z are orthogonal.
    """
    features, wanted = centred.shape[2], AXES + SPARE
    if features <= wanted:
        space = torch.eye(features).to(centred).expand(len(centred), -1, -1)
    else:
        start = torch.randn(features, wanted, generator=torch.Generator().manual_seed(0)).to(centred)
        space = start.expand(len(centred), -1, -1)
        for _ in range(ITERATIONS):
            space = torch.linalg.qr(centred.mT @ (centred @ space)).Q
    seen = (centred @ space).double()
    axes: Tensor = torch.linalg.eigh(seen.mT @ seen).eigenvectors
    return space @ axes.flip(2).to(centred)


def fit(loss: Loss, z: Tensor, offsets: Tensor, answers: Tensor, counted: Tensor, penalties: Tensor) -> Tensor:
    """Return Δ of every problem, (clients, axes, problems, values).

    Args:
        loss: what is minimised.
        z: (clients, samples, axes), orthogonal columns.
        offsets: to what Δ is a residual, (clients, samples, values).
        answers: (clients, samples, …).
        counted: which samples each problem is of, (clients, samples, problems).
        penalties: λ of each problem, (clients, problems).
    """
    values = offsets.shape[2]
    targets = loss.targets(answers, values).to(z).unsqueeze(2)
    counted = counted.unsqueeze(3).to(z)
    penalty = penalties[:, None, :, None].to(z)
    curvature = loss.curvature(z, counted) + penalty
    turned = z.transpose(1, 2).contiguous()

    def slope(at: Tensor) -> Tensor:
        error = (loss.expected(residuals(z, at) + offsets.unsqueeze(2)) - targets).mul_(counted)
        return residuals(turned, error) + penalty * at

    found = ahead = z.new_zeros(len(z), z.shape[2], penalties.shape[1], values)
    for step in range(loss.steps):
        before, found = found, ahead - slope(ahead) / curvature
        ahead = found + step / (step + 3) * (found - before)
    return found


def residuals(z: Tensor, residual: Tensor) -> Tensor:
    """Multiply (clients, samples, axes) by (clients, axes, problems, values): one product for each client."""
    clients, _, problems, values = residual.shape
    return (z @ residual.flatten(2)).view(clients, -1, problems, values)


@dataclass(frozen=True)
class Padded:
    """Some clients' samples, each client's in a row of its own."""

    clients: list[int]
    rows: Tensor
    """(clients, samples): rows of all clients' samples; 0 where there is none."""
    present: Tensor
    """(clients, samples): whether there is one."""


def padded(segments: Segments, size: int) -> Iterator[Padded]:
    """Put clients of similar size together, so that all problems of a chunk have at most so many samples.

    The order does not matter to any client's result.
    """
    parts = segments.split(torch.arange(segments.samples))
    order = sorted(range(len(segments)), key=lambda client: segments.sizes[client])
    chunk: list[int] = []
    for client in order:
        if chunk and (len(chunk) + 1) * segments.sizes[client] > size:
            yield _padded(chunk, parts)
            chunk = []
        chunk.append(client)
    if chunk:
        yield _padded(chunk, parts)


def _padded(clients: list[int], parts: Sequence[Tensor]) -> Padded:
    rows = pad_sequence([parts[client] for client in clients], batch_first=True)
    lengths = torch.tensor([len(parts[client]) for client in clients])
    return Padded(clients, rows, torch.arange(rows.shape[1]) < lengths.unsqueeze(1))


def held_out(
    loss: Loss, features: Tensor, offsets: Tensor, answers: Tensor, segments: Segments, held: Tensor
) -> Tensor:
    """Add to offsets what heads say that have not seen the samples `held` out: (samples, penalties, values)."""
    values, tried = offsets.shape[1], len(PENALTIES)
    found = offsets.new_empty(len(offsets), tried, values)
    penalties = torch.tensor(PENALTIES)
    for chunk in padded(segments, ELEMENTS // (tried * values)):
        rows = chunk.rows.to(offsets.device)
        present = chunk.present.to(offsets.device)
        counted = present & ~held[chunk.rows].to(offsets.device)
        z = Axes.of(features[rows], counted).of_each(features[rows]) * present.unsqueeze(2)
        problems = counted.unsqueeze(2).expand(-1, -1, tried)
        residual = fit(loss, z, offsets[rows], answers[rows], problems, penalties.expand(len(rows), -1))
        each = residuals(z, residual) + offsets[rows].unsqueeze(2)
        found[rows[present]] = each[present]
    return found


def fitted(
    loss: Loss, features: Tensor, offsets: Tensor, answers: Tensor, segments: Segments
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Fit each client's heads on all its samples, for every penalty.

    A client's position comes with the weight (penalties, features, values) and the bias (penalties, values) of each.
    """
    penalties = torch.tensor(PENALTIES)
    for chunk in padded(segments, ELEMENTS // (len(PENALTIES) * offsets.shape[1])):
        rows, present = chunk.rows.to(offsets.device), chunk.present.to(offsets.device).unsqueeze(2)
        axes = Axes.of(features[rows], present[:, :, 0])
        z, problems = axes.of_each(features[rows]) * present, present.expand(-1, -1, len(PENALTIES))
        residual = fit(loss, z, offsets[rows], answers[rows], problems, penalties.expand(len(rows), -1))
        yield from zip(chunk.clients, *axes.folded(residual), strict=True)


def intercepts(loss: Loss, offsets: Tensor, answers: Tensor, segments: Segments, counted: Tensor) -> Tensor:
    """Fit a constant for each client on the samples that are `counted`, with λ = 1: (clients, values)."""
    found = offsets.new_zeros(len(segments), offsets.shape[1])
    for chunk in padded(segments, ELEMENTS // offsets.shape[1]):
        rows = chunk.rows.to(offsets.device)
        ones = (chunk.present & counted[chunk.rows]).to(offsets).unsqueeze(2)
        penalty = offsets.new_ones(len(rows), 1)
        found[chunk.clients] = fit(loss, ones, offsets[rows], answers[rows], ones.bool(), penalty)[:, 0, 0]
    return found
