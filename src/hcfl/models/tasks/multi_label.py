"""The task whose answer is several labels, each yes or no."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, logsigmoid

from hcfl.models.tasks.task import Part, TaskName, lined_up


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
        return self.mix(lined_up(parts, weights), weights)

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
