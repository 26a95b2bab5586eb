"""The inner split: each client's training samples in folds, and the choice by what is held out in turn.

Val is never used: every training sample is held out once and predicted by what the other folds give.
"""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from hcfl import rng
from hcfl.tiers.client_segments import Segments

FLOOR = 1e-3
"""The smallest probability that counts: one wrong and certain prediction must not outweigh a hundred right ones."""


def fold_of_each(segments: Segments, seed: int, clients: Sequence[int], folds: int) -> Tensor:
    """Deal each client's samples into folds of equal size at random, (samples,)."""
    parts = [
        torch.randperm(samples, generator=rng.torch_generator(seed, "personal folds", client)) % folds
        for client, samples in zip(clients, segments.sizes, strict=True)
    ]
    return torch.cat(parts)


def held_out_score(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Log max(p(y|x), floor) of the true labels, (samples,), from log p(·|x), (samples, classes)."""
    return log_probs.gather(1, labels.to(log_probs.device).unsqueeze(1))[:, 0].clamp_min(log(FLOOR))


def best_candidate(scores: Tensor, segments: Segments) -> Tensor:
    """Return each client's candidate by its held-out samples, (clients,); column 0 is the group.

    `scores` are (samples, candidates). A candidate must beat the group by more than one standard error of the
    difference, over the client's own samples; of those that do, the one with the largest mean is taken. A client with
    few samples therefore stays with its group, unless the difference is large.

    >>> best_candidate(torch.tensor([[-1.0, -0.5], [-1.0, -0.4], [-1.0, -0.3]]), Segments((3,)))
    tensor([1])
    """
    gain = scores - scores[:, :1]
    mean = segments.mean(gain)
    samples = segments.lengths.to(mean).unsqueeze(1)
    squares = segments.sum((gain - segments.each(mean)) ** 2)
    error = (squares / (samples * (samples - 1).clamp_min(1))).sqrt()
    worth = (mean > error) & (samples > 1)
    return mean.masked_fill(~worth, 0.0).argmax(dim=1)
