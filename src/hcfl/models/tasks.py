"""Tasks: what a network's outputs say about an answer. The likelihood of a sample is one function of each.

Every tier goes by log p_k(y|x), the log-likelihood of an answer, and by *bins*: whole numbers that stand for answers
where samples are counted or averaged by answer (class shares, prototypes). A class is its own bin; a number belongs to
a quantile bin, several labels to their label set.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log, pi
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, logsigmoid, softplus

TaskName = Literal["classification", "regression", "multi-label"]

VARIANCE_FLOOR = 1e-4
"""The smallest variance of a cluster, in units of the variance of all answers."""


Part = tuple[Tensor, Tensor]
"""Rows of some samples, and one model's distribution of each."""


class Task(Protocol):
    """What a network predicts. Outputs and distributions have the axes (samples, clusters, values)."""

    @property
    def name(self) -> TaskName:
        """What users call it."""
        ...

    @property
    def lowest(self) -> float:
        """The lowest score that a sample can have."""
        ...

    @property
    def constant(self) -> bool:
        """Whether cosines of prototypes are those of (features, 1), which is what a head with a bias sees."""
        ...

    def outputs(self, classes: int) -> int:
        """Return how many values a network gives for each sample, before `head` adds to them."""
        ...

    def head(self, head: nn.Module) -> nn.Module:
        """Return a head with whatever else a cluster's distribution needs."""
        ...

    def log_likelihood(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return log p_k(y|x), (samples, clusters), from outputs or distributions."""
        ...

    def loss(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return what training minimises, (samples, clusters)."""
        ...

    def distribution(self, outputs: Tensor) -> Tensor:
        """Return outputs as distributions that can be mixed."""
        ...

    def mix(self, distribution: Tensor, weights: Tensor) -> Tensor:
        """Return Σ_k ω_k·p_k(·|x), (samples, values), from distributions and weights (samples, clusters)."""
        ...

    def mix_parts(self, parts: Sequence["Part"], weights: Tensor) -> Tensor:
        """Return `mix` where each model was only asked for the samples on which it has weight."""
        ...

    def shown(self, mixed: Tensor) -> Tensor:
        """Return a mixture as users read it: probabilities, or a mean with its deviation."""
        ...

    def score(self, mixed: Tensor, answers: Tensor) -> Tensor:
        """Return how good each prediction is, (samples,); 1 is perfect. Val and Test are its mean."""
        ...

    def bin_log_probs(self, distribution: Tensor) -> Tensor:
        """Return log p_k(bin|x), (samples, clusters, bins)."""
        ...


def cross_entropy_per_cluster(logits: Tensor, labels: Tensor) -> Tensor:
    """CE_k of each sample, (samples, clusters), from logits (samples, clusters, classes)."""
    samples, clusters, classes = logits.shape
    each = (
        labels.unsqueeze(1).expand(samples, clusters).reshape(-1)
    )  # torch is slow where classes are not the last axis
    return cross_entropy(logits.reshape(-1, classes), each, reduction="none").view(samples, clusters)


@dataclass(frozen=True)
class Classification:
    """One of several classes: log p_k(y|x) is the log-softmax of the logits."""

    weights: tuple[float, ...] = ()
    """How much a sample of each class counts in training; none: equally much. The likelihood has no weights."""

    @property
    def name(self) -> TaskName:
        """`classification`."""
        return "classification"

    @property
    def lowest(self) -> float:
        """A wrong answer."""
        return 0.0

    @property
    def constant(self) -> bool:
        """Prototypes are compared as the paper does."""
        return False

    def outputs(self, classes: int) -> int:
        """Return one for each class: logits."""
        return classes

    def head(self, head: nn.Module) -> nn.Module:
        """Nothing else is needed."""
        return head

    def log_likelihood(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return the negative cross-entropy."""
        return -cross_entropy_per_cluster(outputs, answers)

    def loss(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return the cross-entropy, times the weight of the class."""
        losses = cross_entropy_per_cluster(outputs, answers)
        return losses * losses.new_tensor(self.weights)[answers].unsqueeze(1) if self.weights else losses

    def distribution(self, outputs: Tensor) -> Tensor:
        """Return log p_k(·|x)."""
        return torch.log_softmax(outputs, dim=-1)

    def mix(self, distribution: Tensor, weights: Tensor) -> Tensor:
        """Return log Σ_k ω_k·p_k(·|x), (samples, classes)."""
        return torch.logsumexp(weights.log().unsqueeze(2) + distribution, dim=1)

    def mix_parts(self, parts: Sequence[Part], weights: Tensor) -> Tensor:
        """Add one model after another: classes can be many, so there is no table of all models."""
        mixed = parts[0][1].new_full((len(weights), parts[0][1].shape[1]), -inf)
        for place, (rows, log_probs) in enumerate(parts):
            weighted = log_probs + weights[rows, place].log().unsqueeze(1)
            mixed[rows] = torch.logaddexp(mixed[rows], weighted)
        return mixed

    def shown(self, mixed: Tensor) -> Tensor:
        """Return class probabilities."""
        return mixed.exp()

    def score(self, mixed: Tensor, answers: Tensor) -> Tensor:
        """1 where the most probable class is right."""
        return (mixed.argmax(dim=1) == answers.to(mixed.device)).double()

    def bin_log_probs(self, distribution: Tensor) -> Tensor:
        """Return the distribution: classes are bins."""
        return distribution


CLASSES = Classification()
"""The usual task."""


class GaussianHead(nn.Module):
    """A head and the variance of its cluster: (features) → (mean, variance), the variance the same for all samples."""

    def __init__(self, mean: nn.Module) -> None:
        super().__init__()
        self.mean = mean
        self.spread = nn.Parameter(torch.empty(1))
        nn.init.constant_(self.spread, log(torch.e - 1))  # softplus of it is 1

    def reset_parameters(self) -> None:
        """Start with the variance of all answers; the layers of the mean reset themselves."""
        nn.init.constant_(self.spread, log(torch.e - 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return (samples, 2)."""
        mean: Tensor = self.mean(features)
        variance = softplus(self.spread) + VARIANCE_FLOOR
        return torch.cat([mean, variance.expand(mean.shape)], dim=1)


@dataclass(frozen=True)
class Regression:
    """A number: p_k(y|x) is a Gaussian around the network's output, with a variance of its own for each cluster.

    Answers are standardised. Training minimises the likelihood with every sample's part multiplied by the (fixed)
    variance, so that the mean follows the squared error however small the variance gets (the β-NLL of Seitzer et al.,
    2022, with β = 1), and the variance still goes to the mean squared error.
    """

    mean: float
    """Of the answers of all clients, in the user's unit."""
    std: float
    edges: tuple[float, ...]
    """Between the bins, in the user's unit: quantiles of the answers of all clients."""

    @property
    def name(self) -> TaskName:
        """`regression`."""
        return "regression"

    @property
    def lowest(self) -> float:
        """An answer can be arbitrarily far away."""
        return -inf

    @property
    def constant(self) -> bool:
        """Bins between extreme answers can have a mean near zero, and the direction of nearly nothing is noise."""
        return True

    def outputs(self, classes: int) -> int:
        """Return one, the mean; the head adds the variance."""
        return 1

    def head(self, head: nn.Module) -> nn.Module:
        """Add the cluster's variance."""
        return GaussianHead(head)

    def standardised(self, values: Tensor) -> Tensor:
        """Return answers as networks predict them."""
        return ((values.double() - self.mean) / self.std).float()

    def bins(self, values: Tensor) -> Tensor:
        """Return the bin of each answer in the user's unit."""
        return torch.bucketize(values.double(), torch.tensor(self.edges, dtype=torch.float64), right=True)

    def log_likelihood(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Log N(y; μ_k(x), σ_k²), of the standardised answer."""
        mean, variance = _moments(outputs)
        return -0.5 * ((answers.unsqueeze(1) - mean) ** 2 / variance + variance.log() + log(2 * pi))

    def loss(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return σ_k² (held fixed) times the negative log-likelihood, without its constant."""
        mean, variance = _moments(outputs)
        fixed = variance.detach()
        return 0.5 * fixed * ((answers.unsqueeze(1) - mean) ** 2 / variance + variance.log())

    def distribution(self, outputs: Tensor) -> Tensor:
        """Return mean and variance."""
        return torch.stack(_moments(outputs), dim=-1)

    def mix(self, distribution: Tensor, weights: Tensor) -> Tensor:
        """Return mean and variance of the mixture, (samples, 2)."""
        means, variances = distribution.unbind(dim=2)
        mean = (weights * means).sum(dim=1)
        spread = (weights * (variances + means**2)).sum(dim=1) - mean**2
        return torch.stack([mean, spread.clamp_min(0)], dim=1)

    def mix_parts(self, parts: Sequence[Part], weights: Tensor) -> Tensor:
        """Line the models up; what has no weight does not matter."""
        return self.mix(_lined_up(parts, weights), weights)

    def shown(self, mixed: Tensor) -> Tensor:
        """Return mean and standard deviation in the user's unit."""
        mean, variance = mixed.unbind(dim=1)
        return torch.stack([mean * self.std + self.mean, variance.sqrt() * self.std], dim=1)

    def score(self, mixed: Tensor, answers: Tensor) -> Tensor:
        """1 − (y − ŷ)² in units of the variance of all answers: its mean is R² against the federation's mean."""
        return 1 - (mixed[:, 0] - answers.to(mixed.device)).double() ** 2

    def bin_log_probs(self, distribution: Tensor) -> Tensor:
        """Return the logs of the Gaussian's mass between the edges."""
        mean, variance = distribution.unbind(dim=-1)
        edges = (mean.new_tensor(self.edges) - self.mean) / self.std
        below = torch.special.ndtr((edges - mean.unsqueeze(-1)) / variance.sqrt().unsqueeze(-1))
        ends = torch.cat([torch.zeros_like(below[..., :1]), below, torch.ones_like(below[..., :1])], dim=-1)
        return ends.diff(dim=-1).clamp_min(1e-12).log()


def _moments(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance; a head of the user's own likelihood may give the mean only."""
    mean = outputs[..., 0]
    return mean, outputs[..., 1] if outputs.shape[-1] == 2 else torch.ones_like(mean)


def _lined_up(parts: Sequence[Part], weights: Tensor) -> Tensor:
    """Return the distributions of all models as one tensor, (samples, models, values), 0 where one was not asked."""
    lined = parts[0][1].new_zeros(*weights.shape, parts[0][1].shape[1])
    for place, (rows, distribution) in enumerate(parts):
        lined[rows, place] = distribution
    return lined


@dataclass(frozen=True)
class MultiLabel:
    """Several labels, each yes or no: p_k(y|x) is a product of Bernoulli distributions."""

    labels: tuple[str, ...]
    sets: tuple[str, ...]
    """The label sets that are bins, each as one digit for each label; all other sets share one further bin."""
    others: bool = False
    """Whether there are other sets."""

    @property
    def name(self) -> TaskName:
        """`multi-label`."""
        return "multi-label"

    @property
    def lowest(self) -> float:
        """A wrong answer."""
        return 0.0

    @property
    def constant(self) -> bool:
        """Prototypes are compared as the paper does."""
        return False

    def outputs(self, classes: int) -> int:
        """Return one for each label: logits."""
        return len(self.labels)

    def head(self, head: nn.Module) -> nn.Module:
        """Nothing else is needed."""
        return head

    def bins(self, answers: Tensor) -> Tensor:
        """Return the number of each sample's label set."""
        known = torch.tensor([[int(digit) for digit in one] for one in self.sets])
        same = (answers.long().unsqueeze(1) == known).all(dim=2)
        return torch.where(same.any(dim=1), same.long().argmax(dim=1), len(self.sets))

    def log_likelihood(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Σ_l log p_k(y_l|x)."""
        each = answers.unsqueeze(1).expand(outputs.shape)
        return -binary_cross_entropy_with_logits(outputs, each, reduction="none").sum(dim=2)

    def loss(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return the negative log-likelihood."""
        return -self.log_likelihood(outputs, answers)

    def distribution(self, outputs: Tensor) -> Tensor:
        """Return the logits."""
        return outputs

    def mix(self, distribution: Tensor, weights: Tensor) -> Tensor:
        """Return Σ_k ω_k·p_k(y_l = 1|x), (samples, labels)."""
        return (weights.unsqueeze(2) * distribution.sigmoid()).sum(dim=1)

    def mix_parts(self, parts: Sequence[Part], weights: Tensor) -> Tensor:
        """Line the models up; what has no weight does not matter."""
        return self.mix(_lined_up(parts, weights), weights)

    def shown(self, mixed: Tensor) -> Tensor:
        """Return the probability of each label."""
        return mixed

    def score(self, mixed: Tensor, answers: Tensor) -> Tensor:
        """Return the share of the labels that are right."""
        return ((mixed > 0.5) == (answers.to(mixed.device) > 0.5)).double().mean(dim=1)

    def bin_log_probs(self, distribution: Tensor) -> Tensor:
        """Return the logs of the probabilities of the label sets."""
        known = distribution.new_tensor([[float(digit) for digit in one] for one in self.sets])
        yes, no = logsigmoid(distribution), logsigmoid(-distribution)
        found = yes @ known.T + no @ (1 - known).T
        if not self.others:
            return torch.log_softmax(found, dim=-1)
        rest = (1 - found.exp().sum(dim=-1, keepdim=True)).clamp_min(1e-12).log()
        return torch.cat([found, rest], dim=-1)


AnyTask = Classification | Regression | MultiLabel
"""The tasks that can be saved and sent."""

Likelihood = Callable[[Tensor, Tensor], Tensor]
"""A user's own: outputs (n, values) and answers (n, …) → log p(y|x), (n,)."""


@dataclass(frozen=True)
class OwnLikelihood:
    """A task with the user's own likelihood; everything else is the task's."""

    base: AnyTask
    function: Likelihood

    @property
    def name(self) -> TaskName:
        """The name of the task."""
        return self.base.name

    @property
    def lowest(self) -> float:
        """As the task does."""
        return self.base.lowest

    @property
    def constant(self) -> bool:
        """As the task does."""
        return self.base.constant

    def outputs(self, classes: int) -> int:
        """Return what the function says in its attribute `outputs`, or what the task says."""
        return int(getattr(self.function, "outputs", self.base.outputs(classes)))

    def head(self, head: nn.Module) -> nn.Module:
        """Nothing is added: the function says what outputs mean."""
        return head

    def log_likelihood(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Call the function on all samples and clusters at once."""
        samples, clusters, values = outputs.shape
        each = answers.unsqueeze(1).expand(samples, clusters, *answers.shape[1:]).flatten(0, 1)
        return self.function(outputs.reshape(-1, values), each).view(samples, clusters)

    def loss(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return the negative log-likelihood."""
        return -self.log_likelihood(outputs, answers)

    def distribution(self, outputs: Tensor) -> Tensor:
        """As the task does: of a number, the first output is the mean."""
        return self.base.distribution(outputs[..., :1] if isinstance(self.base, Regression) else outputs)

    def mix(self, distribution: Tensor, weights: Tensor) -> Tensor:
        """As the task does."""
        return self.base.mix(distribution, weights)

    def mix_parts(self, parts: Sequence[Part], weights: Tensor) -> Tensor:
        """As the task does."""
        return self.base.mix_parts(parts, weights)

    def shown(self, mixed: Tensor) -> Tensor:
        """As the task does."""
        return self.base.shown(mixed)

    def score(self, mixed: Tensor, answers: Tensor) -> Tensor:
        """As the task does."""
        return self.base.score(mixed, answers)

    def bin_log_probs(self, distribution: Tensor) -> Tensor:
        """As the task does."""
        return self.base.bin_log_probs(distribution)
