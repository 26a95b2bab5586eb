"""FedGWC's Wasserstein-adjusted scores, by hand and beside scikit-learn's scores of the ranked frequencies."""

import numpy as np
import pytest
from sklearn.metrics import davies_bouldin_score, silhouette_score

from hcfl.runs.class_scores import class_scores, davies_bouldin, ranked, silhouette

# Two clients with one class each, two with both alike: which class it is does not matter.
COUNTS = np.array([[8, 0], [0, 4], [5, 5], [3, 3]])


def test_by_hand():
    # Ranked: (1, 0), (1, 0), (.5, .5), (.5, .5), so clients of a kind are 0 apart, and the others √(1/2 · 1/2) = 1/2.
    points = ranked(COUNTS)
    assert np.linalg.norm(points[0] - points[2]) == pytest.approx(0.5)
    right, wrong = class_scores(COUNTS, np.array([0, 0, 3, 3])), class_scores(COUNTS, np.array([0, 3, 0, 3]))
    assert right == {"wasserstein_silhouette": 1.0, "wasserstein_davies_bouldin": 0.0}
    # Each client is 1/2 from its own cluster's other one, 1/4 in the mean from the other cluster's: (1/4 − 1/2)/(1/2).
    assert wrong["wasserstein_silhouette"] == pytest.approx(-0.5)


def test_clients_without_cluster_or_samples_do_not_count_and_one_cluster_has_no_score():
    counts = np.vstack([COUNTS, [[0, 0], [9, 1]]])
    assert class_scores(counts, np.array([0, 0, 1, 1, 1, -1])) == class_scores(COUNTS, np.array([0, 0, 1, 1]))
    assert set(class_scores(COUNTS, np.zeros(4, dtype=int)).values()) == {None}


def test_they_are_the_scores_of_ranked_frequencies():
    generator = np.random.default_rng(0)
    points = ranked(generator.integers(0, 30, size=(40, 6)) + 1)
    labels = generator.integers(0, 4, size=40)
    labels[0] = 4  # a client alone
    assert silhouette(points, labels) == pytest.approx(silhouette_score(points, labels))
    assert davies_bouldin(points, labels) == pytest.approx(davies_bouldin_score(points, labels))
