"""Measurement: Val, Test, clustering quality against the truth, and the cost ledger (spec §8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from hcfl.clusters import follow
from hcfl.data import Federation, Newcomer, Truth
from hcfl.ensemble import class_log_probs
from hcfl.methods import Method
from hcfl.models import Network, Params
from hcfl.server import shares
from hcfl.state import Broadcast, ClientState, ServerState, Update
from hcfl.tiers.weighting import uniform

FRESH_STEPS = 20
"""E-steps from uniform weights that a fresh newcomer takes."""


def mixture(log_probs: Tensor, weights: Tensor) -> Tensor:
    """Return log Σ_k ω̃_k·p_k(·|x), (samples, classes), from (samples, clusters, classes) and weights per sample."""
    return torch.logsumexp(weights.log().unsqueeze(2) + log_probs, dim=1)


def val_accuracy(federation: Federation, network: Network, state: ServerState) -> float | None:
    """Sample-weighted accuracy over all clients' held-out data, each predicted with its own ω̃."""
    rows = federation.val_rows
    if not len(rows):
        return None
    log_probs = class_log_probs(
        network, state.ensemble, lambda part: federation.scaling(federation.x[rows[part]]), len(rows)
    )
    weights = state.weights.to(log_probs.device)[federation.val_owners]
    return _accuracy(mixture(log_probs, weights), federation.y[rows])


@dataclass(frozen=True)
class TestResult:
    """Accuracy of each virtual newcomer, and the weights that they go on with."""

    per_concept: tuple[float, ...]
    weights: Tensor

    @property
    def mean(self) -> float | None:
        """Return the average over concepts, if there is a test set."""
        return sum(self.per_concept) / len(self.per_concept) if self.per_concept else None


def meet_newcomers(federation: Federation, clusters: int) -> Tensor:
    """Return the uniform weights that the virtual newcomers start with, (concepts, clusters)."""
    return uniform(clusters).repeat(len(federation.newcomers), 1)


def test_accuracy(
    federation: Federation,
    network: Network,
    method: Method,
    before: ServerState,
    after: ServerState,
    weights: Tensor,
    form: Literal["persistent", "fresh"],
) -> TestResult:
    """Let each virtual newcomer find its weights on labelled test samples and measure it on the others.

    Persistent newcomers follow the clusters that were added and removed since `before` and take one E-step; fresh ones
    start uniform. The test images are embedded once, not once per concept.
    """
    if federation.test_x is None or not federation.newcomers:
        return TestResult((), weights)
    test_x = federation.test_x
    log_probs = class_log_probs(network, after.ensemble, lambda part: federation.scaling(test_x[part]), len(test_x))
    class_shares = shares(method, after, federation.classes).to(log_probs.device)
    if form == "fresh":
        weights, steps = meet_newcomers(federation, len(after.clusters)), FRESH_STEPS
    else:
        weights, _ = follow(weights, before.clusters, after.changes[len(before.changes) :], None)
        steps = 1
    accuracies, found = [], []
    for newcomer, mine in zip(federation.newcomers, weights.to(log_probs.device), strict=True):
        for _ in range(steps):
            mine = newcomer_step(method, newcomer, log_probs, class_shares, mine)
        scored = log_probs[newcomer.score_rows]
        accuracies.append(_accuracy(mixture(scored, mine.expand(len(scored), -1)), newcomer.score_labels))
        found.append(mine.cpu())
    return TestResult(tuple(accuracies), torch.stack(found))


def newcomer_step(
    method: Method, newcomer: Newcomer, log_probs: Tensor, class_shares: Tensor, weights: Tensor
) -> Tensor:
    """One E-step of a newcomer on its labelled samples; it never contributes to F."""
    labels = newcomer.fit_labels
    log_prob = log_probs[newcomer.fit_rows, :, labels]
    return method.weighting.newcomer(weights, method.formulation.log_likelihood(log_prob, labels, class_shares))


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=1) == labels).double().mean())


@dataclass(frozen=True)
class Quality:
    """Clusters found against the true concepts, over the clients that have taken part; None where nobody knows."""

    ari: float | None = None
    ari_affected: float | None = None
    nmi: float | None = None
    purity: float | None = None


def clustering_quality(truth: Truth | None, members: NDArray[np.int64]) -> Quality:
    """Compare each client's cluster with its concept; −1 marks clients who never took part."""
    seen = members >= 0
    if truth is None or not seen.any():
        return Quality()
    true, found = truth.concept[seen], members[seen]
    affected = None if truth.affected is None else truth.affected[seen]
    return Quality(
        ari=float(adjusted_rand_score(true, found)),
        ari_affected=float(adjusted_rand_score(true[affected], found[affected]))
        if affected is not None and affected.any()
        else None,
        nmi=float(normalized_mutual_info_score(true, found)),
        purity=purity(true, found),
    )


def purity(true: NDArray[np.int64], found: NDArray[np.int64]) -> float:
    """Return the share of clients whose concept is the most common one of their cluster."""
    matches = sum(np.bincount(true[found == cluster]).max() for cluster in np.unique(found))
    return float(matches / len(true))


CHANGE_BYTES = 16
"""A cluster change as a client receives it: rule, parent, child and its own part, as four 32-bit numbers."""


def bytes_down(broadcast: Broadcast, method: Method, states: Sequence[ClientState | None]) -> dict[str, int]:
    """Return what the server sends to all participants, by part.

    Clients get the changes since they last took part; those who never did, the weights that they start from.
    """
    news = [sum(change.round >= state.round for change in broadcast.changes) for state in states if state is not None]
    each = len(states)
    return {
        "extractor": each * _size(broadcast.ensemble.extractors),
        "heads": each * _size(broadcast.ensemble.heads),
        "class_shares": each * _bytes(broadcast.class_shares) if method.formulation.uses_class_shares else 0,
        "changes": CHANGE_BYTES * sum(news),
        "weights": _bytes(broadcast.weights[0]) * (each - len(news)),
    }


def bytes_up(updates: Sequence[Update]) -> dict[str, int]:
    """Return what all participants send, by part."""
    protos = [update.prototypes for update in updates if update.prototypes is not None]
    return {
        "extractor": sum(_size(update.extractors) for update in updates),
        "heads": sum(_size(update.heads) for update in updates),
        "prototypes": sum(_bytes(p.class_means) + _bytes(p.class_counts) + _bytes(p.mean) for p in protos),
        "counts": sum(_bytes(update.counts) for update in updates if update.counts is not None),
        "weights": sum(_bytes(update.weights) for update in updates),
    }


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _size(params: Params) -> int:
    return sum(_bytes(tensor) for tensor in params.values())
