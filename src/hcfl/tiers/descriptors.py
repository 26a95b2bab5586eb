"""Descriptors of clients' data, for FLUX: moments of their features, of all samples and of each class.

They describe P(x) and, by what the same class looks like, P(y|x). The distance between two descriptors is the
2-Wasserstein distance between Gaussians with these means and, on each axis, these standard deviations.
"""

import torch
from torch import Tensor

from hcfl.tiers.client_segments import Segments


def descriptors(features: Tensor, labels: Tensor, classes: int, segments: Segments) -> Tensor:
    """Return (clients, 1 + classes, 1 + 2·features): the number of samples, their mean and their standard deviation.

    The first row is of all samples, the others are of one class each; classes without samples are zero.
    """
    sums, counts = segments.sums_by_class(features.double(), labels, classes)
    squares, _ = segments.sums_by_class(features.double().square(), labels, classes)
    number, first, second = (
        torch.cat([part.sum(dim=1, keepdim=True), part], dim=1) for part in (counts.unsqueeze(2), sums, squares)
    )
    mean, mean_square = first / number.clamp_min(1), second / number.clamp_min(1)
    deviation = (mean_square - mean.square()).clamp_min(0).sqrt()
    return torch.cat([number.to(mean), mean, deviation], dim=2).float().cpu()


def described_distance(descriptors: Tensor) -> Tensor:
    """√(W²(x) + mean over shared classes of W²(x given y)) between all pairs of clients, (clients, clients).

    A class counts by how much two clients know of it together, n_i·n_j/(n_i + n_j); where two clients share none, W(x)
    decides alone.
    """
    counts, moments = descriptors[:, :, 0].double(), descriptors[:, :, 1:].double()
    squares = torch.stack([torch.cdist(part, part).square() for part in moments.unbind(dim=1)])
    one, other = counts[:, 1:].T.unsqueeze(2), counts[:, 1:].T.unsqueeze(1)
    known = one * other / (one + other).clamp_min(1)
    of_classes = (squares[1:] * known).sum(dim=0) / known.sum(dim=0).clamp_min(torch.finfo(known.dtype).tiny)
    return (squares[0] + of_classes).sqrt().fill_diagonal_(0)


def unlabelled(descriptors: Tensor) -> Tensor:
    """Return the part that needs no labels, mean and standard deviation of all samples, (clients, 2·features)."""
    return descriptors[:, 0, 1:]
