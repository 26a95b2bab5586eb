"""FedGWC's Wasserstein-adjusted scores: how alike the class frequencies of a cluster's clients are.

A client is the list of its class frequencies, from the most frequent class to the least. The distance between two
clients is the Wasserstein distance between their frequencies, √(1/C Σ_c (p_c − q_c)²) of the sorted lists: clients are
alike where both have few classes, or both have many, whichever these are (Licciardi et al., 2025).
"""

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

MOST_CLIENTS = 5000
"""The silhouette needs the distances between all pairs of clients: of more clients, it is not computed."""


def class_scores(counts: NDArray[np.int64], members: NDArray[np.int64]) -> dict[str, float | None]:
    """Return the silhouette and the Davies-Bouldin index, from class counts (clients, classes) and clusters (clients,).

    Clients without samples, or without a cluster (−1), do not count. None where there are not two clusters.
    """
    known = (counts.sum(axis=1) > 0) & (members >= 0)
    points, labels = ranked(counts[known]), np.unique(members[known], return_inverse=True)[1]
    several = len(np.unique(labels)) > 1
    return {
        "wasserstein_silhouette": silhouette(points, labels) if several and len(points) <= MOST_CLIENTS else None,
        "wasserstein_davies_bouldin": davies_bouldin(points, labels) if several else None,
    }


def ranked(counts: NDArray[np.int64]) -> Numbers:
    """Return class frequencies from the largest to the smallest, scaled by 1/√C, so that distances are Wasserstein's.

    >>> ranked(np.array([[1, 3, 0, 0]])).tolist()
    [[0.375, 0.125, 0.0, 0.0]]
    """
    shares = -np.sort(-counts, axis=1) / counts.sum(axis=1, keepdims=True)
    scaled: Numbers = shares / np.sqrt(counts.shape[1])
    return scaled


def silhouette(points: Numbers, labels: NDArray[np.int64]) -> float:
    """Return the mean over clients of (b − a) / max(a, b); 1 is best, −1 worst; a client that is alone counts 0.

    `a` is a client's mean distance to its cluster's other clients, `b` to the clients of the nearest other cluster.
    """
    squares = (points**2).sum(axis=1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * points @ points.T, 0))
    np.fill_diagonal(apart, 0)
    inside = np.eye(labels.max() + 1)[labels]
    sizes = inside.sum(axis=0)
    to_clusters, own = apart @ inside, np.arange(len(labels))
    within = to_clusters[own, labels] / np.maximum(sizes[labels] - 1, 1)
    means = to_clusters / sizes
    means[own, labels] = np.inf
    nearest = means.min(axis=1)
    widths = (nearest - within) / np.maximum(np.maximum(within, nearest), np.finfo(float).tiny)
    return float(np.where(sizes[labels] > 1, widths, 0).mean())


def davies_bouldin(points: Numbers, labels: NDArray[np.int64]) -> float:
    """Return the mean over clusters of the largest (s_i + s_j) / d_ij; 0 is best.

    `s` is the mean distance of a cluster's clients to their centre, `d` the distance between two centres. As in
    scikit-learn, two clusters with the same centre count 0.
    """
    inside = np.eye(labels.max() + 1)[labels]
    sizes = inside.sum(axis=0)
    centres = inside.T @ points / sizes[:, None]
    spread = np.bincount(labels, np.linalg.norm(points - centres[labels], axis=1)) / sizes
    apart = np.linalg.norm(centres[:, None] - centres, axis=2)
    both = spread[:, None] + spread
    ratios = np.divide(both, apart, out=np.zeros_like(both), where=apart > 0)
    np.fill_diagonal(ratios, 0)
    return float(ratios.max(axis=1).mean())
