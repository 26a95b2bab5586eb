"""The task whose answer is a number, and the head that has the variance of its cluster."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, pi

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from hcfl.models.tasks.task import Part, TaskName, lined_up

VARIANCE_FLOOR = 1e-4
"""The smallest variance of a cluster, in units of the variance of all answers."""


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
        return self.mix(lined_up(parts, weights), weights)

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
