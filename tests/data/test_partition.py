"""Who holds what: every sample once, class mixes as the readings say."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hcfl.data.partition import classes_per_client, holdout, iid, lda
from hcfl.errors import InputError


def generator(seed=0):
    return np.random.default_rng(seed)


def labels(classes=10, per_class=100):
    return np.repeat(np.arange(classes), per_class)


def mixes(parts, y):
    counts = np.stack([np.bincount(y[part], minlength=y.max() + 1) for part in parts])
    return counts / counts.sum(axis=1, keepdims=True)


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.floats(0.01, 100),
    st.sampled_from(["total", "per-class"]),
    st.integers(0, 10**6),
)
def test_lda_uses_every_sample_once_and_makes_equal_clients(clients, alpha, reading, seed):
    y = labels(5, 17)
    parts = lda(y, clients, alpha, reading, generator(seed))
    assert len(parts) == clients
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_iid_uses_every_sample_once():
    parts = iid(labels(3, 10), 7, generator())
    assert sorted(np.concatenate(parts).tolist()) == list(range(30))


@pytest.mark.parametrize(("reading", "concentration"), [("per-class", 10.0), ("total", 1.0)])
def test_the_two_readings_of_alpha_have_the_dirichlet_s_variance(reading, concentration):
    # The first client of many draws: Var of a share = p(1−p)/(A+1), plus the multinomial's own p(1−p)/n part.
    y = labels(10, 2000)
    shares = np.concatenate([mixes(lda(y, 20, 1.0, reading, generator(seed))[:1], y) for seed in range(400)])
    size, p = 1000, 0.1
    dirichlet = p * (1 - p) / (concentration + 1)
    expected = dirichlet + (p * (1 - p) - dirichlet) / size
    assert shares.mean() == pytest.approx(p)
    assert shares.var() == pytest.approx(expected, rel=0.1)


def test_grouped_classes_are_disjoint_groups_dealt_evenly():
    y = labels(10, 30)
    parts = classes_per_client(y, 10, 2, "grouped", generator())
    held = [frozenset(np.unique(y[part]).tolist()) for part in parts]
    assert all(len(group) == 2 for group in held)
    assert len(set(held)) == 5
    assert sorted(c for group in set(held) for c in group) == list(range(10))
    assert all(held.count(group) == 2 for group in held)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(y)))


def test_random_classes_are_drawn_by_each_client():
    y = labels(10, 50)
    parts = classes_per_client(y, 20, 4, "random", generator())
    held = {frozenset(np.unique(y[part]).tolist()) for part in parts}
    assert all(len(group) == 4 for group in held)
    assert len(held) > 5
    rows = np.concatenate(parts)
    assert len(rows) == len(set(rows.tolist()))


def test_the_same_seed_gives_the_same_partition():
    y = labels()
    one, two, other = (lda(y, 20, 0.5, "total", generator(seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_impossible_partitions_are_refused():
    with pytest.raises(InputError, match=r"data.clients = 31: only 30 training samples"):
        lda(labels(3, 10), 31, 1.0, "total", generator())
    with pytest.raises(InputError, match=r"data.classes_per_client = 4: the data have only 3 classes"):
        classes_per_client(labels(3, 10), 2, 4, "grouped", generator())
    with pytest.raises(InputError, match=r"would be left without samples"):
        classes_per_client(labels(2, 3), 20, 1, "grouped", generator())


def test_holdout_is_stratified():
    y = np.array([0] * 50 + [1] * 20)
    stay, aside = holdout(y, 0.2, generator())
    assert np.bincount(y[aside]).tolist() == [10, 4]
    assert sorted([*stay, *aside]) == list(range(70))


@pytest.mark.parametrize("reading", ["total", "per-class"])
def test_lda_draws_classes_by_how_many_samples_are_left(reading):
    y = np.repeat([0, 1], [900, 100])
    shares = mixes(lda(y, 10, 1e6, reading, generator()), y)[:, 0]
    assert shares == pytest.approx(np.full(10, 0.9), abs=0.12)


@pytest.mark.parametrize(
    "deal",
    [
        lambda y, draw: iid(y, 4, draw),
        lambda y, draw: lda(y, 4, 1.0, "total", draw),
        lambda y, draw: classes_per_client(y, 4, 1, "grouped", draw),
        lambda y, draw: holdout(y, 0.25, draw)[::-1],
    ],
    ids=["iid", "lda", "classes", "holdout"],
)
def test_which_samples_of_a_class_a_client_gets_is_random(deal):
    first = np.sort(deal(labels(1, 100), generator())[0])
    assert len(first) == 25
    assert first[-1] - first[0] > 40, "not a run of neighbours"


def test_groups_are_drawn_at_random_and_dealt_to_clients_at_random():
    y = labels(10, 30)
    groups, neighbours = set(), set()
    for seed in range(8):
        held = [frozenset(y[part].tolist()) for part in classes_per_client(y, 10, 2, "grouped", generator(seed))]
        groups |= set(held)
        neighbours.add(held[0] == held[5])
    assert len(groups) > 5
    assert False in neighbours
