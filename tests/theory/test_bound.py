"""The theorem's bound: its numbers by hand, where it says nothing, and that runs keep it where its conditions hold."""

from math import log

import numpy as np
import pytest

from hcfl.theory.bound import Bound, bound_of, sample_condition, smallest_singular_value
from hcfl.theory.problem import even_heads
from hcfl.theory.study import study

EVEN = even_heads(2, 4, np.random.default_rng(0))


def test_the_constants_by_hand():
    # η K N̂/N σ̄² E_0 = 0.4 · 4 · (100 | 300)/800 · 1 · (1 − 0.25)
    bound = bound_of(EVEN, (300, 200, 200, 100), eta=0.4, start=0.5)
    assert bound.c_min == pytest.approx(0.15)
    assert bound.c_max == pytest.approx(0.45)
    stretch = (1 - 0.225) ** -0.5
    assert bound.rate == pytest.approx((1 - 0.15 + 0.285 * 0.45) * stretch)
    assert bound.offset == pytest.approx(0.07 * 0.45 * stretch)
    assert bound.after(0.3) == pytest.approx(bound.rate * 0.3 + bound.offset)
    assert bound.curve(0.3, 2) == pytest.approx([0.3, bound.after(0.3), bound.after(bound.after(0.3))])


def test_the_smallest_singular_value_is_that_of_heads_over_the_root_of_k():
    heads = np.array([[3.0, 0, 0, 0], [0, 1.0, 0, 0]])
    assert smallest_singular_value(heads) == pytest.approx(1 / 2)
    assert bound_of(heads, (5, 5, 5, 5), eta=0.2, start=0.6).c_min == pytest.approx(0.2 * 0.25 * 0.64)
    # λ_max: the first head's share of the samples, times 3².
    assert bound_of(heads, (10, 5, 3, 2), eta=0.2, start=0.6).overshoot == pytest.approx(0.2 * 9 / 2)


def test_the_balanced_floor_and_where_it_stops_contracting():
    # For short steps the rate is 1 − c_min + 0.535 c_max: a floor of 0.07/0.465, and none below min/max = 0.535.
    short = 1e-4
    assert Bound(short, short, 0.1).floor == pytest.approx(0.07 / 0.465, rel=1e-3)
    assert Bound(0.54 * short, short, 0.1).silence != "it does not contract: its rate is 1.000"
    assert Bound(0.53 * short, short, 0.1).silence == "it does not contract: its rate is 1.000"
    assert Bound(0.53 * short, short, 0.1).floor == float("inf")


@pytest.mark.parametrize(
    ("bound", "words"),
    [
        (Bound(0.1, 2.0, 0.5), "c_max = 2.00 is not below 2"),
        (Bound(0.2, 0.2, 1.01), "η λ_max = 1.01 is above 1"),
        (Bound(0.01, 0.2, 0.5), "does not contract: its rate is 1.1"),
        (Bound(0.11, 0.19, 0.5), "its own floor is 1.86, and no distance is above 1"),
    ],
)
def test_where_it_says_nothing_it_says_why(bound, words):
    assert words in bound.silence


def test_it_speaks_where_nothing_speaks_against_it():
    assert Bound(0.2, 0.2, 1.0).silence is None


def test_the_sample_condition_by_hand():
    heads = np.array([[2.0, 0, 0, 0], [0, 1.0, 0, 0]])  # κ = 2, σ̄ = 1/2: both to the fourth are 16
    found = sample_condition(heads, (30, 20, 30, 20), dimension=10, clients=7, sigma=0.5, start=0.6)
    assert found.smallest_cluster == pytest.approx(20 / (8 * 1.25**4 * log(7) / 0.64**2 * 16))
    assert found.total == pytest.approx(100 * 12 / 16)
    assert found.unknowns == pytest.approx(100 / 20)
    # The smaller of the two counts: here κ⁴ = 1, though σ̄⁻⁴ = 16.
    flat = sample_condition(np.eye(2, 4), (30, 20, 30, 20), dimension=10, clients=7, sigma=0.5, start=0.6)
    assert flat.smallest_cluster == pytest.approx(16 * found.smallest_cluster)


NOISELESS = {"sigma": 0, "imbalances": (1,), "seeds": 60, "dimension": 8, "clients": 12, "heads": "random", "steps": 12}


@pytest.mark.parametrize("shape", [{"latent": 2, "clusters": 6}, {"latent": 2, "clusters": 4, "heads": "even"}])
def test_sixty_noiseless_balanced_runs_keep_the_bound(shape):
    found = study(**{**NOISELESS, "samples": 60, "eta": 0.4, **shape})
    speaking = [curve for curve in found.curves if curve.bound.silence is None]
    assert len(speaking) == 60
    assert sum(curve.steps_above for curve in speaking) == 0


def _broken(curves, bounds):
    pairs = zip(curves, bounds, strict=True)
    return sum(bool((c.distances[1:] > b.rate * c.distances[:-1] + b.offset).any()) for c, b in pairs)


def test_without_the_normalisation_runs_break_it():
    found = study(**{**NOISELESS, "samples": 60, "eta": 0.1, "latent": 2, "clusters": 6})
    wrong = [Bound(6 * curve.bound.c_min, 6 * curve.bound.c_max, 0) for curve in found.curves]  # σ̄² without 1/K
    assert _broken(found.curves, wrong) > 10
    assert _broken(found.curves, [curve.bound for curve in found.curves]) == 0


def test_steps_that_overshoot_break_it_although_c_max_is_below_2():
    found = study(**{**NOISELESS, "samples": 60, "eta": 2, "latent": 2, "clusters": 6})
    assert all(curve.bound.c_max < 2 for curve in found.curves)
    assert all("overshoots" in curve.bound.silence for curve in found.curves)
    assert _broken(found.curves, [curve.bound for curve in found.curves]) > 30


def test_the_condition_as_it_stands_does_not_ask_for_enough_samples_in_many_dimensions():
    # Why the number of unknowns is shown, too: 100 samples in 100 dimensions, 18 times what is asked for with 𝒞 = 1.
    found = study(sigma=0, imbalances=(1,), seeds=5, dimension=100, latent=1, clusters=1, clients=20, samples=5)
    assert all(curve.condition.smallest_cluster > 18 for curve in found.curves)
    assert all(curve.condition.total > 1000 for curve in found.curves)
    assert found.summaries[0].unknowns == pytest.approx(1)
    assert sum(curve.steps_above > 0 for curve in found.curves) >= 3
