"""The alternating steps: heads by least squares, then one gradient step on B, then QR."""

from collections.abc import Iterator

import numpy as np

from hcfl.theory.problem import Array, Problem


def least_squares(x: Array, y: Array, basis: Array) -> Array:
    """Return θ_k, the head that fits a cluster's samples best on B̂ᵀx."""
    return np.linalg.lstsq(x @ basis, y, rcond=None)[0].astype(np.float64)


def gradient(problem: Problem, basis: Array, heads: Array) -> Array:
    """Return 1/N Σ_k X_kᵀ(X_k B̂ θ_k − Y_k) θ_kᵀ: the slope in B of half the mean squared error, heads held fixed."""
    total = np.zeros_like(basis)
    for x, y, head in zip(problem.x, problem.y, heads.T, strict=True):
        total += np.outer(x.T @ (x @ (basis @ head) - y), head)
    return total / sum(problem.sizes)


def step(problem: Problem, basis: Array, eta: float) -> Array:
    """Return B̂ after one alternating step: (d, c), orthonormal."""
    heads = np.stack([least_squares(x, y, basis) for x, y in zip(problem.x, problem.y, strict=True)], axis=1)
    return np.linalg.qr(basis - eta * gradient(problem, basis, heads))[0]


def distance(basis: Array, true: Array) -> float:
    """Return ‖B̂_⊥ᵀ B*‖₂, the sine of the largest angle between two spans.

    As ‖(I − B̂B̂ᵀ)B*‖₂ it is exact also near 0, where √(1 − cos²) would lose half the digits.
    """
    return float(np.linalg.norm(true - basis @ (basis.T @ true), 2))


def descent(problem: Problem, basis: Array, eta: float, steps: int) -> Iterator[float]:
    """Yield the distance from B* at the start and after every step."""
    yield distance(basis, problem.basis)
    for _ in range(steps):
        basis = step(problem, basis, eta)
        yield distance(basis, problem.basis)
