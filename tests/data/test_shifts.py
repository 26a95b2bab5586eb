"""Concepts are bijections; noise has the rate that was asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hcfl.data.shifts import concept_maps, deal, distinct, flip


def test_beta_02_of_ten_classes_rotates_three_labels():
    maps = concept_maps(10, 0.2, 3, "plus-one")
    assert maps[:, :4].tolist() == [[0, 1, 2, 3], [1, 2, 0, 3], [2, 0, 1, 3]]
    assert distinct(maps).tolist() == [0, 1, 2]


def test_beta_01_swaps_two_labels_and_two_concepts_coincide():
    maps = concept_maps(10, 0.1, 3, "plus-one")
    assert maps[:, :3].tolist() == [[0, 1, 2], [1, 0, 2], [0, 1, 2]]
    assert distinct(maps).tolist() == [0, 1, 0]


def test_the_literal_reading_rotates_one_label_less():
    assert concept_maps(10, 0.2, 3, "literal")[:, :3].tolist() == [[0, 1, 2], [1, 0, 2], [0, 1, 2]]
    # 10·0.7 is 7.000000000000001 or 6.999…: the floor is of the rounded product
    assert (concept_maps(10, 0.7, 2, "literal")[1] != np.arange(10)).sum() == 7


@given(st.integers(2, 60), st.floats(0, 1), st.integers(1, 7), st.sampled_from(["plus-one", "literal"]))
def test_every_concept_is_a_bijection_and_the_first_is_the_identity(classes, beta, concepts, reading):
    maps = concept_maps(classes, beta, concepts, reading)
    assert maps.shape == (concepts, classes)
    assert all(sorted(row) == list(range(classes)) for row in maps.tolist())
    assert maps[0].tolist() == list(range(classes))


def test_concepts_are_dealt_evenly_at_random():
    dealt = deal(31, 3, np.random.default_rng(0))
    assert sorted(np.bincount(dealt).tolist()) == [10, 10, 11]
    assert dealt.tolist() != sorted(dealt.tolist())


@pytest.mark.parametrize("noise", ["pair", "symmetric"])
def test_noise_has_its_rate_and_its_direction(noise):
    labels = np.repeat(np.arange(5), 4000)
    noisy = flip(labels, 5, noise, 0.3, np.random.default_rng(0))
    flipped = noisy != labels
    assert flipped.mean() == pytest.approx(0.3, abs=0.01)
    shift = (noisy - labels)[flipped] % 5
    expected = [0, 1, 0, 0, 0] if noise == "pair" else [0, 0.25, 0.25, 0.25, 0.25]
    assert np.bincount(shift, minlength=5) / len(shift) == pytest.approx(np.array(expected), abs=0.02)


def test_no_noise_changes_nothing():
    labels = np.arange(5)
    assert flip(labels, 5, "symmetric", 0.0, np.random.default_rng(0)).tolist() == labels.tolist()


def test_the_floor_is_of_the_rounded_product():
    # 100·0.29 is 28.999999999999996
    assert (concept_maps(100, 0.29, 2, "literal")[1] != np.arange(100)).sum() == 29
