"""AUROC and average precision, which are computed for each of thousands of clients, equal scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

from hcfl.core.scores import _ranked, auroc, average_precision


@pytest.mark.parametrize("seed", range(20))
def test_ranks_precision_and_f1_are_those_of_scikit_learn_also_with_ties(seed):
    draw = np.random.default_rng(seed)
    samples = int(draw.integers(2, 30))
    scored = draw.integers(0, 6, samples) / 6 if seed % 2 else draw.random(samples).astype(np.float32)
    true, chosen = draw.random(samples) < 0.4, scored > 0.5
    true[:2] = True, False  # both kinds
    assert auroc(scored, true) == pytest.approx(roc_auc_score(true, scored))
    assert average_precision(scored, true) == pytest.approx(average_precision_score(true, scored))
    found = _ranked([(chosen, scored, true)])
    assert found["f1"] == pytest.approx(f1_score(true, chosen, zero_division=0))
    assert _ranked([(chosen, scored, np.ones_like(true))]) == dict.fromkeys(("f1", "auroc", "average_precision"))
