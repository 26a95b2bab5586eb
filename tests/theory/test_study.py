"""The study: balance makes it faster, the same seed gives the same numbers, and how curves are measured."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hcfl.errors import InputError
from hcfl.theory import measuring
from hcfl.theory.bound import Bound
from hcfl.theory.settings import StudySettings
from hcfl.theory.study import study

FAST = {"dimension": 8, "latent": 3, "clusters": 3, "clients": 30, "samples": 30, "steps": 40}


@pytest.fixture(scope="module")
def found():
    return study(**FAST, imbalances=(1, 0.5, 0.1), seeds=5)


@pytest.mark.parametrize("heads", ["even", "random"])
def test_the_further_out_of_balance_the_slower(heads):
    more = {"clusters": 6, "seeds": 8} if heads == "random" else {"seeds": 5}
    rows = study(**{**FAST, **more}, sigma=0, heads=heads, imbalances=(1, 0.1)).groups
    slower = [measuring.rate(b.distances) > measuring.rate(a.distances) for a, b in zip(*rows, strict=True)]
    assert sum(slower) >= len(slower) - (heads == "random")  # uneven heads may, rarely, even out


def test_the_table_shows_it_and_the_bound_falls_silent(found):
    balanced, half, tenth = found.summaries
    assert balanced.rate + 0.03 < half.rate < tenth.rate - 0.03
    assert (balanced.imbalance, half.imbalance, tenth.imbalance) == pytest.approx((1, 7 / 13, 2 / 21), abs=0.05)
    assert balanced.bounded == 5
    assert balanced.rate < balanced.bound_rate < 1
    assert balanced.steps_above == 0
    assert balanced.silence is None
    assert tenth.bounded == 0
    assert (tenth.bound_rate, tenth.bound_floor, tenth.steps_above) == (None, None, None)
    assert "does not contract" in tenth.silence


def test_the_curves_know_what_they_are(found):
    assert [curve.seed for curve in found.groups[1]] == [0, 1, 2, 3, 4]
    for curve in found.curves:
        assert curve.distances[0] == pytest.approx(0.5)
        assert len(curve.distances) == len(curve.bounded) == 41
        assert sum(curve.sizes) == 900
    speaking, silent = found.curves[0], found.curves[-1]
    assert speaking.bounded[:2] == [speaking.distances[0], speaking.bound.after(speaking.distances[0])]
    assert silent.bounded[1] is None


def test_the_same_seed_gives_the_same_numbers(found):
    again = study(**FAST, imbalances=(0.1,), seeds=1, seed=3)
    assert_array_equal(again.curves[0].distances, found.groups[2][3].distances)
    assert not np.array_equal(found.groups[2][3].distances, found.groups[2][2].distances)


def test_steps_above_the_bound_are_counted(found):
    curve = found.curves[0]
    high = curve.distances.copy()
    high[[3, 7]] = 0.9  # two jumps up; what follows them is a step down, and allowed
    assert replace(curve, distances=high).steps_above == 2
    silent = Bound(curve.bound.c_min, curve.bound.c_max, overshoot=1.5)
    assert replace(curve, distances=high, bound=silent).steps_above == 0  # nothing was said


def test_rate_floor_and_falling_of_curves_made_by_hand():
    falling = 0.5 * 0.8 ** np.arange(41.0)
    assert measuring.rate(falling) == pytest.approx(0.8)
    assert measuring.still_falling(falling)
    staying = np.maximum(falling, 0.01)
    assert measuring.floor(staying) == pytest.approx(0.01)
    assert measuring.rate(staying) == pytest.approx(0.8)
    assert not measuring.still_falling(staying)
    assert measuring.rate(np.full(20, 0.5)) is None
    assert measuring.rate(np.linspace(0.2, 0.9, 20)) is None
    assert not measuring.still_falling(1e-16 * falling)  # rounding errors
    assert measuring.rate(np.array([0.4, 0.1])) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"latent": 20}, r"latent = 20: must be below dimension = 20"),
        ({"clusters": 3}, r"clusters = 3: must be at least latent = 4"),
        ({"clients": 3}, r"clients = 3: must be at least clusters = 4"),
        ({"samples": 1_000_000}, r"samples = 1000000: clients × samples × dimension must be at most 100,000,000"),
        ({"imbalances": (1, 1.5)}, r"imbalances = 1.5: must be above 0 and at most 1"),
        ({"imbalances": (0.0,)}, r"imbalances = 0: must be above 0"),
        ({"imbalances": ()}, r"imbalances = \(\): "),
        ({"steps": 0}, r"steps = 0: should be greater than or equal to 1"),
        ({"start": 1}, r"start = 1: should be less than 1"),
        ({"heads": "odd"}, r"heads = 'odd': should be 'even' or 'random'"),
        ({"etta": 1}, r"etta = 1: there is no such setting; did you mean eta\?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(settings, words):
    with pytest.raises(InputError, match=words):
        StudySettings.parse(settings)
