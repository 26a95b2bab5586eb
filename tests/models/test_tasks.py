"""Tasks: likelihoods, mixtures and bins on numbers that one can compute by hand."""

from math import log, pi

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hcfl.core.scores import calibration_error, scores
from hcfl.data.answers import bin_names, fit_multi_label, fit_regression, of_labels, of_numbers
from hcfl.errors import InputError
from hcfl.models.tasks import CLASSES, Classification, GaussianHead, MultiLabel, OwnLikelihood, Regression

NUMBER = Regression(mean=10.0, std=2.0, edges=(8.0, 10.0, 12.0))
LABELS = MultiLabel(("a", "b"), ("00", "10", "11"))


def test_a_number_has_a_gaussian_with_the_variance_of_its_cluster():
    outputs = torch.tensor([[[0.0, 1.0], [1.0, 4.0]]])  # one sample, two clusters: mean and variance
    found = NUMBER.log_likelihood(outputs, torch.tensor([1.0]))
    expected = [-0.5 * (1 + log(2 * pi)), -0.5 * (log(4) + log(2 * pi))]
    assert_close(found, torch.tensor([expected]))


def test_the_mean_is_trained_by_the_squared_error_and_the_variance_goes_to_it():
    outputs = torch.tensor([[[0.0, 0.25]]], requires_grad=True)
    NUMBER.loss(outputs, torch.tensor([2.0])).sum().backward()
    assert outputs.grad[0, 0, 0] == -2.0  # of (2 − mean)² / 2, whatever the variance
    assert outputs.grad[0, 0, 1] == pytest.approx(0.5 * (1 - 4 / 0.25))
    at_optimum = torch.tensor([[[0.0, 4.0]]], requires_grad=True)
    NUMBER.loss(at_optimum, torch.tensor([2.0])).sum().backward()
    assert at_optimum.grad[0, 0, 1] == 0


def test_a_head_starts_with_the_variance_of_all_answers():
    head = GaussianHead(nn.Linear(3, 1))
    found = head(torch.zeros(2, 3))
    assert_close(found[:, 1], torch.full((2,), 1.0), atol=2e-4, rtol=0)
    head.spread.data.fill_(-50)
    head.reset_parameters()
    assert_close(head(torch.zeros(2, 3))[:, 1], found[:, 1])


def test_a_mixture_of_gaussians_has_the_mean_and_the_variance_of_both():
    both = torch.tensor([[[0.0, 1.0], [2.0, 1.0]]])
    mixed = NUMBER.mix(both, torch.tensor([[0.5, 0.5]]))
    assert_close(mixed, torch.tensor([[1.0, 2.0]]))  # 1 within, 1 between
    assert_close(NUMBER.shown(mixed), torch.tensor([[12.0, 2 * 2**0.5]]))
    assert_close(NUMBER.score(mixed, torch.tensor([0.5])), torch.tensor([0.75]).double())


def test_bins_of_numbers_and_their_probabilities():
    values = torch.tensor([7.0, 8.0, 9.9, 10.0, 13.0])
    assert NUMBER.bins(values).tolist() == [0, 1, 1, 2, 3]
    probabilities = NUMBER.bin_log_probs(torch.tensor([[[0.0, 1.0]]])).exp()
    assert_close(probabilities[0, 0], torch.tensor([0.1587, 0.3413, 0.3413, 0.1587]), atol=1e-4, rtol=0)
    assert bin_names(NUMBER) == ("< 8", "8 … 10", "10 … 12", "≥ 12")


def test_a_regression_is_fitted_to_what_is_known():
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10, np.nan])
    task = fit_regression("y", values)
    answers = of_numbers(task, values)
    assert (task.mean, task.std) == (5.5, pytest.approx(np.arange(1, 11).std()))
    assert answers.bins.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, -1]
    assert answers.targets[:-1].mean() == pytest.approx(0, abs=1e-6)
    with pytest.raises(InputError, match="y: has a single value"):
        fit_regression("y", np.ones(5))


def test_labels_are_independent_given_the_inputs():
    outputs = torch.tensor([[[0.0, 0.0]], [[2.0, -1.0]]])
    found = LABELS.log_likelihood(outputs, torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    expected = torch.sigmoid(torch.tensor(2.0)) * torch.sigmoid(torch.tensor(1.0))
    assert_close(found.exp(), torch.tensor([[0.25], [float(expected)]]))
    mixed = LABELS.mix(torch.tensor([[[0.0, 100.0], [0.0, -100.0]]]), torch.tensor([[0.75, 0.25]]))
    assert_close(mixed, torch.tensor([[0.5, 0.75]]))
    assert LABELS.score(mixed, torch.tensor([[0.0, 1.0]])).item() == 1.0


def test_label_sets_are_bins():
    matrix = np.array([[0, 0], [1, 1], [1, 0], [1, 1], [0, 0]], dtype=float)
    task = fit_multi_label(("a", "b"), matrix)
    assert task.sets == ("00", "10", "11")
    assert of_labels(task, matrix).bins.tolist() == [0, 2, 1, 2, 0]
    assert bin_names(task) == ("none", "a", "a+b")
    few = MultiLabel(("a", "b"), ("00", "11"), others=True)
    assert few.bins(torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist() == [2, 1]
    assert_close(few.bin_log_probs(torch.zeros(1, 1, 2)).exp()[0, 0], torch.tensor([0.25, 0.25, 0.5]))


def test_class_weights_change_the_loss_and_not_the_likelihood():
    outputs, labels = torch.zeros(2, 1, 2), torch.tensor([0, 1])
    weighted = Classification(weights=(1.0, 3.0))
    assert_close(weighted.loss(outputs, labels), log(2) * torch.tensor([[1.0], [3.0]]))
    assert_close(weighted.log_likelihood(outputs, labels), CLASSES.log_likelihood(outputs, labels))


def test_a_likelihood_of_ones_own():
    def poisson(outputs, answers):
        return answers * outputs[:, 0] - outputs[:, 0].exp()

    task = OwnLikelihood(NUMBER, poisson)
    found = task.log_likelihood(torch.tensor([[[0.0], [1.0]]]), torch.tensor([2.0]))
    assert_close(found, torch.tensor([[-1.0, 2 - np.e]], dtype=torch.float32))
    assert_close(task.loss(torch.zeros(1, 1, 1), torch.tensor([2.0])), torch.tensor([[1.0]]))


def test_metrics_of_numbers_in_the_users_unit():
    found = scores(NUMBER, torch.tensor([[12.0, 1.0], [8.0, 1.0]]), torch.tensor([0.0, 0.0]))
    assert found == {"rmse": 2.0, "mae": 2.0, "r2": None}
    found = scores(NUMBER, torch.tensor([[12.0, 1.0], [8.0, 1.0]]), torch.tensor([1.0, 0.0]))  # answers 12 and 10
    assert found["r2"] == pytest.approx(1 - 2 / 1)


def test_metrics_of_classes_and_labels():
    probabilities = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    found = scores(CLASSES, probabilities, torch.tensor([0, 0, 1, 1]))
    assert found["accuracy"] == 0.75
    assert found["balanced_accuracy"] == 0.75
    assert found["auroc"] == 0.75  # 3 of 4 pairs are in order
    assert found["f1"] == pytest.approx(2 / 3)
    assert scores(CLASSES, probabilities, torch.zeros(4).long())["auroc"] is None
    both = scores(LABELS, torch.tensor([[0.9, 0.2], [0.1, 0.3]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert (both["accuracy"], both["auroc"]) == (1.0, 1.0)  # of the second label, one kind only
    assert calibration_error(np.array([0.95, 0.95]), np.array([True, False])) == pytest.approx(0.45)
