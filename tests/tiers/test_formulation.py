"""Tier 1 on hand-computed numbers."""

import math

import pytest
import torch
from torch.testing import assert_close

from hcfl.tiers.client_segments import Segments
from hcfl.tiers.formulation import Conditional, Correlation, class_counts, class_shares, objective

LOG_PROB = torch.tensor([[0.5, 0.25], [0.1, 0.8]]).log()
LABELS = torch.tensor([0, 1])
SHARES = torch.tensor([[0.25, 0.75], [0.5, 0.5]])


def test_conditional_is_the_log_probability_itself():
    assert_close(Conditional().log_likelihood(LOG_PROB, LABELS, SHARES), LOG_PROB)


def test_correlation_divides_by_the_cluster_s_class_share():
    # sample 0 has label 0: 0.5/0.25, 0.25/0.5; sample 1 has label 1: 0.1/0.75, 0.8/0.5
    expected = torch.tensor([[2.0, 0.5], [0.1 / 0.75, 1.6]]).log()
    assert_close(Correlation().log_likelihood(LOG_PROB, LABELS, SHARES), expected)


def test_class_counts_sum_responsibilities_by_label():
    gamma = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5]])
    counts = class_counts(gamma, torch.tensor([0, 2, 0]), classes=3, segments=Segments((3,)))
    assert_close(counts, torch.tensor([[[1.4, 0.0, 0.3], [0.6, 0.0, 0.7]]]))


def test_class_counts_are_each_client_s_own():
    gamma = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [0.2, 0.8]])
    counts = class_counts(gamma, torch.tensor([1, 0, 1, 0]), classes=2, segments=Segments((3, 0, 1)))
    expected = [[[0.3, 1.4], [0.7, 0.6]], [[0.0, 0.0], [0.0, 0.0]], [[0.2, 0.0], [0.8, 0.0]]]
    assert_close(counts, torch.tensor(expected))


def test_class_shares_normalise_and_floor():
    shares = class_shares(torch.tensor([[3.0, 1.0], [0.0, 2.0]]))
    assert_close(shares, torch.tensor([[0.75, 0.25], [0.5e-8, 1.0]]))
    assert class_shares(torch.tensor([[0.0, 2.0]]), floor=1.0)[0, 0].item() == pytest.approx(1 / 3)


def test_before_any_report_the_share_is_uniform_and_cancels():
    shares = class_shares(torch.zeros(2, 5))
    assert_close(shares, torch.full((2, 5), 0.2))
    by_correlation = Correlation().log_likelihood(LOG_PROB, LABELS, shares)
    assert_close(torch.softmax(by_correlation, dim=1), torch.softmax(LOG_PROB, dim=1))


def test_objective_is_the_log_of_the_mixture():
    # log(0.25·0.5 + 0.75·0.25) + log(0.25·0.1 + 0.75·0.8)
    expected = math.log(0.3125) + math.log(0.625)
    assert objective(LOG_PROB, torch.tensor([[0.25, 0.75]]), Segments((2,))).item() == pytest.approx(expected, rel=1e-6)


def test_objective_of_one_hot_weights_is_finite():
    found = objective(LOG_PROB, torch.tensor([[0.0, 1.0]]), Segments((2,)))
    assert found.item() == pytest.approx(math.log(0.25 * 0.8), rel=1e-6)


def test_objective_is_each_client_s_own_whatever_the_clusters_it_does_not_look_at():
    log_l = torch.cat([LOG_PROB, torch.tensor([[-torch.inf, math.log(0.5)]])])
    found = objective(log_l, torch.tensor([[0.25, 0.75], [0.0, 1.0]]), Segments((2, 1)))
    assert_close(found, torch.tensor([math.log(0.3125) + math.log(0.625), math.log(0.5)]))
