"""Clipping and noise by hand: the bound holds for whatever is sent, and noise is what it says."""

from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.testing import assert_close

from hcfl import rng
from hcfl.privacy.uploads import nearest_weights
from hcfl.privacy.vectors import clipped, length, noised

numbers = st.floats(-1e6, 1e6, width=32)


@given(
    arrays("float32", st.integers(1, 6), elements=numbers),
    arrays("float32", (2, 3), elements=numbers),
    st.floats(1e-3, 1e3),
)
def test_nothing_is_longer_than_allowed_and_directions_stay(one, two, longest):
    parts = {"one": torch.from_numpy(one), "two": torch.from_numpy(two)}
    cut = clipped(parts, longest)
    assert length(cut) <= longest * (1 + 1e-12)
    if length(parts) <= longest:
        assert all(cut[name].equal(parts[name].double()) for name in parts)
    else:
        assert length(cut) == pytest.approx(longest, rel=1e-9)
        factor = longest / length(parts)
        assert_close(cut["one"], parts["one"].double() * factor)


def test_by_hand():
    cut = clipped({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}, 1.0)
    assert_close(cut, {"a": torch.tensor([0.6]).double(), "b": torch.tensor([[0.8]]).double()})
    assert length({"a": torch.tensor([3.0]), "b": torch.tensor([[4.0]])}) == 5


def test_noise_has_the_deviation_that_it_should_and_no_mean():
    number, deviation = 200_000, 2.5
    drawn = noised({"a": torch.zeros(number)}, deviation, rng.torch_generator(0, "privacy", 1, 2))["a"]
    assert float(drawn.std()) == pytest.approx(deviation, abs=5 * deviation / sqrt(2 * number))
    assert abs(float(drawn.mean())) < 5 * deviation / sqrt(number)
    assert float((drawn.abs() < deviation).double().mean()) == pytest.approx(0.6827, abs=0.006)
    again = noised({"a": torch.zeros(number)}, deviation, rng.torch_generator(0, "privacy", 1, 2))["a"]
    other = noised({"a": torch.zeros(number)}, deviation, rng.torch_generator(0, "privacy", 1, 3))["a"]
    assert drawn.equal(again)
    assert abs(float((drawn * other).mean())) < 5 * deviation**2 / sqrt(number)


def test_nearest_weights_by_hand():
    rows = torch.tensor([[0.2, 0.3, 0.5], [2.0, 0.0, 0.0], [0.6, 0.6, -1.0], [0.0, 0.0, 0.0]]).double()
    expected = torch.tensor([[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]).double()
    assert_close(nearest_weights(rows), expected)


@given(arrays("float64", st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.floats(-50, 50)))
def test_nearest_weights_are_weights(rows):
    weights = nearest_weights(torch.from_numpy(rows))
    assert (weights >= 0).all()
    assert_close(weights.sum(dim=1), torch.ones(len(rows)).double())
