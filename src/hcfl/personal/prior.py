"""The prior of classes: a client's own class frequencies in place of its group's, at prediction."""

from torch import Tensor

STRENGTHS = (0.5, 1.0)
"""How far the correction goes: half of it where the group's own frequencies are uncertain."""


def smoothed_frequencies(counts: Tensor, group: Tensor) -> Tensor:
    """π_i(y) from counts (…, classes): one sample a class is added, dealt as the group's classes are.

    >>> smoothed_frequencies(torch.tensor([6.0, 0.0]), torch.tensor([0.5, 0.5]))
    tensor([0.8750, 0.1250])
    """
    added = counts.shape[-1]
    return (counts + added * group) / (counts.sum(dim=-1, keepdim=True) + added)


def correction(counts: Tensor, group: Tensor) -> Tensor:
    """Log π_i(y) − log π_group(y): by Bayes' rule what p(y|x) changes by where only class frequencies differ."""
    return smoothed_frequencies(counts, group).log() - group.log()
