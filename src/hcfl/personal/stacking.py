"""Stacking: with which weights a client mixes its group's model and all candidates for its personal part.

A client predicts Σ_m w_m·p_m(y|x), where m = 0 is its group's model. The weights make most likely what was set aside
(Wolpert, 1992; Yao et al., 2018), by EM, as the weights of clusters do. The samples of one client are few, so weights
are found twice: those of all clients together, and each client's own, for which the common ones count as `COMMON` more
samples. A mixture needs no test of which candidate is the best one: its parts make different mistakes, and a part that
does not help has a small weight.
"""

import torch
from torch import Tensor

from hcfl.personal.inner_split import Gains
from hcfl.tiers.client_segments import Segments

COMMON = 20.0
"""For how many samples of a client the weights of all clients count."""

EQUAL = 2.0
"""For how many samples equal weights count, in the weights of all clients."""

SMALLEST = 0.02
"""A part with a smaller weight is left out."""

STEPS = 100
"""Steps of EM."""


def common_weights(gains: Gains) -> Tensor:
    """Return the weights of all clients together, (1 + candidates,); the group's alone where nothing was set aside."""
    relative = _relative(gains)
    models = relative.shape[1]
    if not len(relative):
        return torch.eye(models, dtype=torch.float64)[0]
    everyone = Segments((len(relative),))
    return em(relative, everyone, torch.full((1, models), 1 / models, dtype=torch.float64), EQUAL)[0]


def own_weights(gains: Gains, common: Tensor) -> Tensor:
    """Return each client's weights, (clients, 1 + candidates), near those of all clients; the smallest are left out."""
    segments = gains.segments
    weights = em(_relative(gains), segments, common.double().expand(len(segments), -1), COMMON)
    kept = torch.where(weights < SMALLEST, 0.0, weights)
    return kept / kept.sum(dim=1, keepdim=True)


def em(likelihoods: Tensor, segments: Segments, prior: Tensor, strength: float) -> Tensor:
    """Return the weights of mixtures, (mixtures, models), that make samples (samples, models) most likely.

    The weights `prior` (mixtures, models) count for `strength` samples of each mixture.

    >>> em(torch.tensor([[3.0, 1.0]]), Segments((1,)), torch.tensor([[0.5, 0.5]]), 1.0)
    tensor([[0.6830, 0.3170]])
    """
    weights, number = prior, segments.lengths.to(prior).unsqueeze(1)
    for _ in range(STEPS):
        joint = likelihoods * segments.each(weights)
        shares = segments.sum(joint / joint.sum(dim=1, keepdim=True))
        weights = (shares + strength * prior) / (number + strength)
    return weights


def _relative(gains: Gains) -> Tensor:
    """Return p_m(y|x) / p_group(y|x) of what was set aside, (samples, 1 + candidates)."""
    each = gains.each.double()
    return torch.cat([each.new_zeros(len(each), 1), each], dim=1).exp()
