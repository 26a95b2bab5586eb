"""The task whose answer is one of several classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hcfl.models.tasks.task import Part, TaskName


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
