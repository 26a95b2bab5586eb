"""The links of classes, numbers and labels, and how numbers with the user's own likelihood are scored.

A score is a log-likelihood, bounded from below, so that one wild prediction does not outweigh a hundred right ones:
an answer counts with at least a fiftieth of the highest likelihood that it could have.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hcfl.core.predictions import Predictions
from hcfl.models.tasks import VARIANCE_FLOOR, OwnLikelihood, Regression
from hcfl.personal import heads, prior
from hcfl.personal.clients import Clients
from hcfl.tiers.client_segments import Segments

FLOOR = 0.02
"""The smallest likelihood of an answer that counts, relative to the highest that it could have."""

NEARLY = 1e-6
"""The smallest probability of a label, and of its opposite, of which a logit is taken."""


@dataclass(frozen=True)
class Classes:
    """Predictions are log p(·|x), which is their scale, too."""

    largest = -log(FLOOR)
    steps = heads.STEPS

    def of_group(self, seen: Predictions) -> Tensor:
        """Return log p(·|x)."""
        return seen.mixed

    def of_model(self, outputs: Tensor, answers: Tensor | None = None) -> Tensor:
        """Return the log-softmax of the logits."""
        return torch.log_softmax(outputs, dim=2)[:, 0]

    def mixed(self, each: Tensor, weights: Tensor) -> Tensor:
        """Mix from logarithms."""
        return torch.logsumexp(each + weights.to(each).log().unsqueeze(1), dim=1)

    def scale(self, predicted: Tensor) -> Tensor:
        """Return what they are."""
        return predicted

    def predicted(self, values: Tensor, group: Tensor) -> Tensor:
        """Normalise."""
        return torch.log_softmax(values, dim=-1)

    def intercepts(self, clients: Clients, counted: Tensor) -> Tensor:
        """Return log π_i(y) − log π_group(y)."""
        return prior.correction(clients.counts(counted), clients.class_shares)

    def scores(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> Tensor:
        """Log max(p(y|x), floor)."""
        at = answers.unsqueeze(1)
        return torch.stack([one.gather(1, at)[:, 0].clamp_min(log(FLOOR)) for one in columns], dim=1)

    def errors(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> None:
        """Classes have none."""

    def targets(self, answers: Tensor, values: int) -> Tensor:
        """1 for the class that it is."""
        return one_hot(answers, values)

    def expected(self, values: Tensor) -> Tensor:
        """Return p(·|x)."""
        return torch.softmax(values, dim=3)

    def curvature(self, z: Tensor, counted: Tensor) -> Tensor:
        """½Σzz⊤ bounds that of the softmax (Böhning)."""
        return 0.5 * z.square().sum(dim=1)[:, :, None, None]


@dataclass(frozen=True)
class Numbers:
    """Predictions are mean and variance; the scale is the mean."""

    task: Regression

    largest = -log(FLOOR)
    steps = 1

    def of_group(self, seen: Predictions) -> Tensor:
        """Return mean and variance."""
        return seen.mixed

    def of_model(self, outputs: Tensor, answers: Tensor | None = None) -> Tensor:
        """Return mean and variance."""
        return self.task.distribution(outputs)[:, 0]

    def mixed(self, each: Tensor, weights: Tensor) -> Tensor:
        """Return mean and variance of the mixture."""
        return self.task.mix(each, weights.to(each).expand(each.shape[0], -1))

    def scale(self, predicted: Tensor) -> Tensor:
        """Return the mean."""
        return predicted[..., :1]

    def predicted(self, values: Tensor, group: Tensor) -> Tensor:
        """Return the mean with the group's variance."""
        return torch.cat([values, group[..., 1:].expand(*values.shape[:-1], -1)], dim=-1)

    def intercepts(self, clients: Clients, counted: Tensor) -> Tensor:
        """Return Σ(y − ŷ) / (n + 1)."""
        return heads.intercepts(self, self.scale(clients.group.mixed), clients.answers, clients.segments, counted)

    def scores(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> Tensor:
        """Log max(N(y; ŷ, v) / N(ŷ; ŷ, v), floor), with v the group's error on what the client has set aside.

        All candidates of a client have the same v, so that they are compared by their means. The variance that a model
        has learnt says how near it comes to what it was trained on: of a model of one client's own, far too near.
        """
        errors, learnt = self.errors(columns, answers, segments)
        squares, number = errors.square(), segments.lengths.double()
        v = segments.each((segments.sum(squares[:, 0]) + learnt) / (number + 1))
        return (-squares / (2 * v.unsqueeze(1))).clamp_min(log(FLOOR))

    def errors(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
        """Return y − ŷ, and the mean variance that each client's group has learnt."""
        off = torch.stack([(answers - one[:, 0]).double().cpu() for one in columns], dim=1)
        learnt = segments.sum(columns[0][:, 1].double().cpu()) / segments.lengths.double().clamp_min(1)
        return off, learnt.clamp_min(VARIANCE_FLOOR)

    def targets(self, answers: Tensor, values: int) -> Tensor:
        """Return the answer itself."""
        return answers.unsqueeze(2)

    def expected(self, values: Tensor) -> Tensor:
        """Return the mean itself."""
        return values

    def curvature(self, z: Tensor, counted: Tensor) -> Tensor:
        """Σzz⊤ is that of half the squared error, so that one step is enough."""
        return torch.einsum("csa,csp->cap", z.square(), counted[:, :, :, 0]).unsqueeze(3)


@dataclass(frozen=True)
class Labels:
    """Predictions are the probability of each label; the scale is its logit."""

    labels: int

    steps = heads.STEPS

    @property
    def largest(self) -> float:
        """Each label counts as a class does."""
        return -self.labels * log(FLOOR)

    def of_group(self, seen: Predictions) -> Tensor:
        """Return the probability of each label."""
        return seen.mixed

    def of_model(self, outputs: Tensor, answers: Tensor | None = None) -> Tensor:
        """Return the probability of each label."""
        return outputs[:, 0].sigmoid()

    def mixed(self, each: Tensor, weights: Tensor) -> Tensor:
        """Mix the probabilities."""
        return (each * weights.to(each).unsqueeze(1)).sum(dim=1)

    def scale(self, predicted: Tensor) -> Tensor:
        """Return the logits."""
        return torch.logit(predicted, NEARLY)

    def predicted(self, values: Tensor, group: Tensor) -> Tensor:
        """Return the probabilities."""
        return values.sigmoid()

    def intercepts(self, clients: Clients, counted: Tensor) -> Tensor:
        """Return what brings the frequency of each label that the group expects to the client's own."""
        return heads.intercepts(self, self.scale(clients.group.mixed), clients.answers, clients.segments, counted)

    def scores(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> Tensor:
        """Σ_l log max(p(y_l|x), floor)."""
        right = [torch.where(answers > 0.5, one, 1 - one) for one in columns]
        return torch.stack([one.clamp_min(FLOOR).log().sum(dim=1) for one in right], dim=1)

    def errors(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> None:
        """Labels have none."""

    def targets(self, answers: Tensor, values: int) -> Tensor:
        """1 for the labels that a sample has."""
        return answers

    def expected(self, values: Tensor) -> Tensor:
        """Return p(y_l = 1|x)."""
        return values.sigmoid()

    def curvature(self, z: Tensor, counted: Tensor) -> Tensor:
        """¼Σzz⊤ bounds that of the logistic function."""
        return 0.25 * z.square().sum(dim=1)[:, :, None, None]


@dataclass(frozen=True)
class OwnNumbers:
    """Numbers with the user's likelihood: mean, variance and, where the answer is known, log p(y|x).

    The likelihood says how good a model is; it does not say what one could add to a model's outputs.
    """

    task: OwnLikelihood
    numbers: Numbers

    largest = -log(FLOOR)

    def of_group(self, seen: Predictions) -> Tensor:
        """Return mean, variance and log-likelihood."""
        assert seen.log_likelihood is not None
        return torch.cat([seen.mixed, seen.log_likelihood.unsqueeze(1)], dim=1)

    def of_model(self, outputs: Tensor, answers: Tensor | None = None) -> Tensor:
        """Return mean, variance and, with answers, log-likelihood."""
        moments = self.task.distribution(outputs)[:, 0]
        return moments if answers is None else torch.cat([moments, self.task.log_likelihood(outputs, answers)], dim=1)

    def mixed(self, each: Tensor, weights: Tensor) -> Tensor:
        """Mix moments and likelihoods."""
        likelihood = torch.logsumexp(each[:, :, 2:] + weights.to(each).log().view(1, -1, 1), dim=1)
        return torch.cat([self.numbers.mixed(each[:, :, :2], weights), likelihood], dim=1)

    def scores(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> Tensor:
        """Return by how much log p(y|x) is larger than the group's, at most by −log of the floor either way."""
        gains = torch.stack([one[:, 2] - columns[0][:, 2] for one in columns], dim=1)
        return gains.clamp(log(FLOOR), -log(FLOOR))

    def errors(self, columns: Sequence[Tensor], answers: Tensor, segments: Segments) -> None:
        """Say nothing: the likelihood is the user's."""
