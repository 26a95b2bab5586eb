"""Averages that a minority cannot move far: hand-computed numbers, Flower's own, and what must always hold."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl.engines import Batched, Sequential
from hcfl.errors import InputError
from hcfl.methods import build
from hcfl.methods.robust_means import Clip, Mean, Median, MultiKrum, TrimmedMean
from helpers import play

NOTHING = frozenset()
EVERY = [Mean(), Median(), TrimmedMean(0.2), Clip(), MultiKrum(0.2)]
ROBUST = EVERY[1:]


def combined(average, values, sizes, received=0.0):
    """The average of one coordinate in one cluster."""
    reported = {"w": torch.tensor(values).view(-1, 1)}
    found = average.combine({"w": torch.tensor([[received]])}, reported, torch.tensor(sizes).view(-1, 1), NOTHING)
    return float(found["w"])


@pytest.mark.parametrize(
    ("average", "values", "sizes", "expected"),
    [
        (Mean(), [1.0, 2.0, 9.0], [2.0, 1.0, 1.0], 3.25),
        (Median(), [1.0, 2.0, 9.0], [1.0, 1.0, 1.0], 2.0),
        (Median(), [1.0, 2.0, 4.0, 9.0], [1.0, 1.0, 1.0, 1.0], 3.0),  # two share the middle
        (Median(), [9.0, 2.0, 1.0], [5.0, 2.0, 2.0], 9.0),  # more than half of the mass
        (Median(), [9.0, 2.0, 1.0], [4.0, 2.0, 2.0], 5.5),  # exactly half of it
        (Median(), [1.0, 5.0, 7.0], [1.0, 0.0, 1.0], 4.0),  # who does not count has no place in the order
        (TrimmedMean(0.25), [0.0, 2.0, 4.0, 100.0], [1.0, 1.0, 1.0, 1.0], 3.0),
        (TrimmedMean(0.125), [0.0, 2.0, 4.0, 100.0], [1.0, 1.0, 1.0, 1.0], (0 / 2 + 2 + 4 + 100 / 2) / 3),  # halves
        (TrimmedMean(0.25), [100.0, 2.0, 0.0], [1.0, 2.0, 1.0], 2.0),
        # Lengths 1, 1, 10: the median is 1, so the third moves by 1.
        (Clip(1.0), [1.0, -1.0, 10.0], [1.0, 2.0, 2.0], (1 - 2 * 1 + 2 * 1) / 5),
        (Clip(5.0), [1.0, -1.0, 10.0], [1.0, 1.0, 1.0], (1 - 1 + 5) / 3),
        # f = 1 of 5, so two nearest count: the scores are 5, 2, 2, 5 and 7 + …; the one far away is left out.
        (MultiKrum(0.2), [0.0, 1.0, 2.0, 3.0, 50.0], [1.0, 1.0, 1.0, 3.0, 9.0], (0 + 1 + 2 + 3 * 3) / 6),
        (MultiKrum(0.2), [0.0, 50.0], [1.0, 1.0], 25.0),  # a fifth of two is nobody
    ],
)
def test_hand_computed(average, values, sizes, expected):
    assert combined(average, values, sizes) == pytest.approx(expected)


def test_clipping_is_measured_from_the_cluster_s_own_model():
    assert combined(Clip(1.0), [11.0, 9.0, 20.0], [1.0, 2.0, 2.0], received=10.0) == pytest.approx(10.2)


def test_clipping_and_krum_look_at_whole_models_but_not_at_running_statistics():
    received = {"w": torch.zeros(1, 1), "v": torch.zeros(1, 1), "var": torch.zeros(1, 1)}
    mass = torch.ones(3, 1)
    reported = {
        "w": torch.tensor([[3.0], [3.0], [30.0]]),
        "v": torch.tensor([[4.0], [-4.0], [40.0]]),
        "var": torch.tensor([[1e6], [1.0], [1.0]]),
    }
    found = Clip(1.0).combine(received, reported, mass, frozenset({"var"}))
    assert_close(found["w"], torch.tensor([[3.0]]))  # all have length 5 now
    assert_close(found["v"], torch.tensor([[4 / 3]]))
    chosen = MultiKrum(0.4).combine(received, reported, mass, frozenset({"var"}))
    assert_close(chosen["w"], torch.tensor([[3.0]]))
    assert_close(chosen["var"], torch.tensor([[500000.5]]))


@pytest.mark.parametrize("average", EVERY, ids=lambda one: type(one).__name__)
def test_a_cluster_without_anybody_keeps_its_model_and_counters_stay_whole(average):
    received = {"w": torch.tensor([[1.0], [7.0]]), "n": torch.tensor([4, 9])}
    reported = {"w": torch.tensor([[2.0], [4.0], [4.0]]), "n": torch.tensor([3, 4, 4])}
    found = average.combine(received, reported, torch.tensor([[2.0, 0], [2.0, 0], [2.0, 0]]), NOTHING)
    assert found["w"][1].item() == 7
    assert found["n"].dtype == torch.int64
    assert found["n"].tolist() == [4, 9]
    assert received["w"].tolist() == [[1.0], [7.0]], "what was received is not touched"


sizes = st.lists(st.integers(1, 50), min_size=1, max_size=9)


def drawn(seed, models, clusters=1, shape=(2, 3)):
    generator = torch.Generator().manual_seed(seed)
    received = {
        "w": torch.randn(clusters, *shape, generator=generator),
        "b": torch.randn(clusters, 2, generator=generator),
    }
    reported = {
        "w": torch.randn(models, *shape, generator=generator),
        "b": torch.randn(models, 2, generator=generator),
    }
    return received, reported


@pytest.mark.parametrize("average", EVERY, ids=lambda one: type(one).__name__)
@settings(max_examples=25)
@given(sizes=sizes, seed=st.integers(0, 1000))
def test_of_equal_models_every_average_is_that_model(average, sizes, seed):
    received, reported = drawn(seed, 1)
    equal = {name: tensor.expand(len(sizes), *tensor.shape[1:]) for name, tensor in reported.items()}
    found = average.combine(received, equal, torch.tensor(sizes).float().unsqueeze(1), NOTHING)
    assert_close(found, reported)


@pytest.mark.parametrize("average", EVERY, ids=lambda one: type(one).__name__)
@settings(max_examples=25)
@given(sizes=sizes, seed=st.integers(0, 1000), data=st.data())
def test_the_order_of_clients_does_not_matter(average, sizes, seed, data):
    received, reported = drawn(seed, len(sizes), clusters=2)
    order = data.draw(st.permutations(range(len(sizes))))
    mass = torch.tensor([[size, size % 3] for size in sizes]).float()
    one = average.combine(received, reported, mass, NOTHING)
    two = average.combine(received, {name: t[order] for name, t in reported.items()}, mass[order], NOTHING)
    assert_close(one, two)


@pytest.mark.parametrize("average", [TrimmedMean(0.0), Clip(1e9), MultiKrum(0.0)], ids=lambda one: type(one).__name__)
@settings(max_examples=25)
@given(sizes=sizes, seed=st.integers(0, 1000))
def test_without_suspicion_they_are_the_mean(average, sizes, seed):
    received, reported = drawn(seed, len(sizes))
    mass = torch.tensor(sizes).float().unsqueeze(1)
    expected = Mean().combine(received, reported, mass, NOTHING)
    assert_close(average.combine(received, reported, mass, NOTHING), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("average", ROBUST, ids=lambda one: type(one).__name__)
@given(
    honest=st.lists(st.floats(-1, 1, width=32), min_size=5, max_size=12),
    lies=st.lists(st.sampled_from([1e6, -1e6, 1e12, -3e9]), min_size=0, max_size=2),
    data=st.data(),
)
def test_a_fifth_of_the_clients_cannot_move_them_away_from_what_honest_ones_sent(average, honest, lies, data):
    lies = lies[: len(honest) // 4]  # a fifth of all at most
    order = data.draw(st.permutations([*honest, *lies]))
    found = combined(average, [float(value) for value in order], [1.0] * len(order))
    # A clipped lie is at most 1 long, so at most 2 away from what honest clients sent, and a fifth of the mean.
    room = 1e-4 + 0.4 * isinstance(average, Clip)
    assert min(honest) - room <= found <= max(honest) + room


def test_one_client_can_move_the_mean_anywhere():
    assert combined(Mean(), [0.0, 0.0, 0.0, 0.0, 1e6], [1.0] * 5) == pytest.approx(2e5)


@pytest.mark.parametrize("models", [5, 8])
def test_with_equal_sizes_they_are_what_flower_computes(models):
    flower = pytest.importorskip("flwr.server.strategy.aggregate")
    received, reported = drawn(models, models)
    mass = torch.ones(models, 1)
    results = [([tensor[row].numpy() for tensor in reported.values()], 1) for row in range(models)]

    def same(average, expected, rtol=1e-5):
        found = average.combine(received, reported, mass, NOTHING)
        for mine, theirs in zip(found.values(), expected, strict=True):
            np.testing.assert_allclose(mine[0], theirs, rtol=rtol, atol=1e-6)

    same(Median(), flower.aggregate_median(results))
    same(TrimmedMean(1 / models), flower.aggregate_trimmed_avg(results, 1 / models))
    same(MultiKrum(1.01 / models), flower.aggregate_krum(results, 1, models - 1))


@pytest.mark.parametrize(
    ("name", "average"),
    [("hcfl+(fedrc)", Median()), ("hcfl+(fedrc)", MultiKrum()), ("stocfl", TrimmedMean()), ("stocfl", Clip())],
)
def test_they_take_the_place_of_the_mean_in_every_engine_and_wherever_there_is_one(planted, name, average):
    method = replace(build(name), aggregation=average)
    states = [play(planted, method, 2, engine=engine)[0].server for engine in (Batched(), Sequential())]
    assert_close(states[0].ensemble.heads, states[1].ensemble.heads, rtol=1e-3, atol=1e-4)
    mean = play(planted, build(name), 2, engine=Batched())[0].server
    assert any((mean.ensemble.heads[part] != tensor).any() for part, tensor in states[0].ensemble.heads.items())
    if name == "stocfl":
        assert any((mean.common.heads[part] != tensor).any() for part, tensor in states[0].common.heads.items())


@pytest.mark.parametrize("make", [lambda: TrimmedMean(0.5), lambda: MultiKrum(-0.1), lambda: Clip(0)])
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(InputError, match=r"^(share|bound) = .*: must be"):
        make()
