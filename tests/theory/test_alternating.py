"""The alternating steps: by hand, beside autograd and scipy, and what they find."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.linalg import subspace_angles

from hcfl.theory.alternating import descent, distance, gradient, least_squares, step
from hcfl.theory.problem import Problem, draw, start_at
from hcfl.theory.settings import StudySettings

SMALL = StudySettings(dimension=6, latent=2, clusters=3, clients=6, samples=20, sigma=0, heads="random")


def test_a_step_by_hand():
    # B̂ = (1, 0), and y = 2·(second coordinate + first): θ = ⟨x₁, y⟩/⟨x₁, x₁⟩ = (1·2 + 1·4)/2 = 3.
    x, y = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([2.0, 4.0])
    problem = Problem(np.array([[1.0], [1.0]]) / np.sqrt(2), np.array([[2 * np.sqrt(2)]]), (x,), (y,))
    basis = np.array([[1.0], [0.0]])
    head = least_squares(x, y, basis)
    assert_allclose(head, [3.0])
    # Residuals 3 − 2 = 1 and 3 − 4 = −1; Xᵀr = (0, −1); times θ over N = 2: (0, −1.5).
    assert_allclose(gradient(problem, basis, head[:, None]), [[0.0], [-1.5]], atol=1e-14)
    # (1, 0) − 0.5·(0, −1.5) = (1, 0.75), which is (4, 3)/5 once it is normalised.
    assert_allclose(np.abs(step(problem, basis, 0.5)), [[0.8], [0.6]])
    # The angle's sine between (4, 3)/5 and (1, 1)/√2 is 1/(5√2).
    assert list(descent(problem, basis, 0.5, 1)) == pytest.approx([np.sqrt(0.5), 1 / np.sqrt(50)])


def test_the_gradient_is_autograd_s():
    problem = draw(SMALL.model_copy(update={"sigma": 0.3}), (3, 2, 1), seed=1)
    basis = start_at(problem.basis, 0.7, seed=1)
    heads = np.random.default_rng(0).normal(size=(2, 3))
    leaf = torch.tensor(basis, requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for x, y, head in zip(problem.x, problem.y, heads.T, strict=True):
        total = total + ((torch.tensor(x) @ leaf @ torch.tensor(head) - torch.tensor(y)) ** 2).sum()
    (total / (2 * sum(problem.sizes))).backward()
    assert_allclose(gradient(problem, basis, heads), leaf.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_least_squares_leaves_no_slope():
    problem = draw(SMALL, (3, 2, 1), seed=2)
    basis = start_at(problem.basis, 0.6, seed=2)
    features = problem.x[0] @ basis
    head = least_squares(problem.x[0], problem.y[0], basis)
    assert_allclose(features.T @ (features @ head - problem.y[0]), 0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_the_distance_is_the_sine_of_scipy_s_largest_angle(seed):
    generator = np.random.default_rng(seed)
    one, two = (np.linalg.qr(generator.normal(size=(8, 3)))[0] for _ in range(2))
    assert distance(one, two) == pytest.approx(np.sin(subspace_angles(one, two)[0]), abs=1e-14)
    # As the specification has it, with the complement; and whatever basis the span is written in.
    complement = np.linalg.qr(np.hstack([one, np.eye(8)]))[0][:, 3:]
    assert distance(one, two) == pytest.approx(np.linalg.norm(complement.T @ two, 2), abs=1e-14)
    turn = np.linalg.qr(generator.normal(size=(3, 3)))[0]
    assert distance(one @ turn, two) == pytest.approx(distance(one, two), abs=1e-14)
    near = np.linalg.qr(one + 1e-11 * two)[0]
    assert distance(near, one) == pytest.approx(np.sin(subspace_angles(near, one)[0]), rel=1e-3)
    assert 0 < distance(near, one) < 1e-10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("clients", [(2, 2, 2), (3, 2, 1)])
def test_without_noise_the_subspace_is_found_exactly(seed, clients):
    problem = draw(SMALL.model_copy(update={"heads": "even"}), clients, seed)
    *_, last = descent(problem, start_at(problem.basis, 0.9, seed), 0.5, 400)
    assert last < 1e-13


def test_with_noise_something_stays_and_more_samples_leave_less():
    left = []
    for samples in (20, 2000):
        problem = draw(SMALL.model_copy(update={"heads": "even", "sigma": 0.3, "samples": samples}), (2, 2, 2), 0)
        *_, last = descent(problem, start_at(problem.basis, 0.5, 0), 0.5, 150)
        left.append(last)
    assert left[0] > 0.02
    assert left[0] / left[1] == pytest.approx(10, rel=0.6)  # the floor falls with √N
