"""The linear problem: what is drawn, and from which seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from hcfl.errors import InputError
from hcfl.theory.alternating import distance
from hcfl.theory.problem import cluster_clients, clusters_of, draw, even_heads, random_heads, start_at
from hcfl.theory.settings import StudySettings

SMALL = StudySettings(dimension=7, latent=2, clusters=3, clients=12, samples=4, sigma=0)


@given(st.integers(1, 9), st.integers(0, 50), st.floats(0.01, 1))
def test_every_client_has_a_cluster_and_clusters_shrink(clusters, more, imbalance):
    sizes = cluster_clients(clusters + more, clusters, imbalance)
    assert len(sizes) == clusters
    assert sum(sizes) == clusters + more
    assert list(sizes) == sorted(sizes, reverse=True)


def test_sizes_fall_geometrically():
    # 1, 1/2, 1/4 of the largest; 1, √0.1, 0.1 would be 70.5, 22.3, 7.05 of 100.
    assert cluster_clients(70, 3, 0.25) == (40, 20, 10)
    assert cluster_clients(100, 3, 0.1) == (71, 22, 7)
    assert cluster_clients(10, 4, 1) == (3, 3, 2, 2)


def test_the_problem_is_what_it_says():
    problem = draw(SMALL, (6, 4, 2), seed=3)
    assert problem.sizes == (24, 16, 8)
    assert problem.imbalance == pytest.approx(1 / 3)
    assert_allclose(problem.basis.T @ problem.basis, np.eye(2), atol=1e-14)
    for x, y, head in zip(problem.x, problem.y, problem.heads.T, strict=True):
        assert_allclose(y, x @ problem.basis @ head, atol=1e-13)


def test_noise_has_its_deviation():
    quiet, loud = (draw(SMALL.model_copy(update={"sigma": s, "samples": 500}), (6, 4, 2), 3) for s in (0, 0.3))
    noise = np.concatenate(loud.y) - np.concatenate(quiet.y)
    assert noise.std() == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize(
    ("latent", "clusters"), [(1, 1), (1, 4), (2, 2), (2, 5), (3, 3), (3, 4), (4, 4), (5, 9), (6, 7)]
)
def test_even_heads_show_every_direction_equally(latent, clusters):
    heads = even_heads(latent, clusters, np.random.default_rng(0))
    assert_allclose(heads @ heads.T, clusters * np.eye(latent), atol=1e-12)
    assert_allclose(np.linalg.norm(heads, axis=0), np.sqrt(latent))


def test_random_heads_have_the_length_of_the_theorem_and_are_not_even():
    heads = random_heads(3, 6, np.random.default_rng(0))
    assert_allclose(np.linalg.norm(heads, axis=0), np.sqrt(3))
    assert np.linalg.cond(heads) > 1.2
    assert_array_equal(draw(SMALL.model_copy(update={"heads": "random"}), (6, 4, 2), 3).heads.shape, (2, 3))


def test_a_client_s_samples_belong_to_it_whatever_its_cluster():
    balanced, other = draw(SMALL, (4, 4, 4), 5), draw(SMALL, (6, 4, 2), 5)
    assert_array_equal(np.concatenate(balanced.x), np.concatenate(other.x))
    assert_array_equal(balanced.heads, other.heads)
    assert not np.array_equal(balanced.x[0], draw(SMALL, (4, 4, 4), 6).x[0])


@pytest.mark.parametrize(("d", "c"), [(9, 3), (4, 3), (2, 1)])
@pytest.mark.parametrize("wanted", [0.01, 0.5, 0.99])
def test_the_start_is_orthonormal_and_as_far_as_asked(d, c, wanted):
    basis = np.linalg.qr(np.random.default_rng(1).normal(size=(d, c)))[0]
    start = start_at(basis, wanted, seed=2)
    assert_allclose(start.T @ start, np.eye(c), atol=1e-14)
    assert distance(start, basis) == pytest.approx(wanted, abs=1e-14)
    assert d == 2 or not np.array_equal(start, start_at(basis, wanted, seed=3))  # a plane has one way out of a line


def test_too_few_clients_are_refused():
    def refused(words, **changes):
        with pytest.raises(InputError, match=words):
            clusters_of(SMALL.model_copy(update=changes))

    refused(r"imbalances = 0.01: leaves a cluster with 0 clients", imbalances=(0.01,))
    refused(r"1 clients of 1 samples, but a head needs latent = 2", imbalances=(0.1,), samples=1)
    refused(r"imbalances = 0.99: gives 12 clients the same clusters as 1;", imbalances=(1, 0.99))
    refused(r"imbalances = 0.5: a single cluster cannot", imbalances=(0.5,), clusters=1, latent=1)
    assert clusters_of(SMALL.model_copy(update={"imbalances": (0.1,), "samples": 2})) == [(8, 3, 1)]
