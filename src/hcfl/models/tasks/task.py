"""What a task answers: the Protocol of all tasks, and how the distributions of several models are lined up."""

from collections.abc import Sequence
from typing import Literal, Protocol

from torch import Tensor, nn

TaskName = Literal["classification", "regression", "multi-label"]


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


def lined_up(parts: Sequence[Part], weights: Tensor) -> Tensor:
    """Return the distributions of all models as one tensor, (samples, models, values), 0 where one was not asked."""
    lined = parts[0][1].new_zeros(*weights.shape, parts[0][1].shape[1])
    for place, (rows, distribution) in enumerate(parts):
        lined[rows, place] = distribution
    return lined
