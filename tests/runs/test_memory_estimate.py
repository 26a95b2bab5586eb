"""What a round takes by hand, what is refused, and what is never refused."""

import pytest
import torch

from hcfl.config import from_flat
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.runs import memory_estimate
from hcfl.runs.memory_estimate import Estimate, estimate
from hcfl.runs.prepare import prepare
from helpers import blobs

CPU = torch.device("cpu")
EXTRACTOR = 4 * (8 * 256 + 256 + 256 * 128 + 128)
HEAD = 4 * (128 * 4 + 4)
ACTIVATIONS = 4 * (8 + 2 * 256 + 2 * 128)
"""Of one sample: flattened inputs, two layers, two rectifiers."""


@pytest.fixture(scope="module")
def ten():
    x, y = blobs(per_class=100)
    return Federation.from_arrays(x, y, clients=10, partition="iid", seed=0)


def of(federation, method, **settings):
    prepared = prepare(from_flat(method=method, batch=16, **settings), federation)
    return estimate(prepared.setting.network, prepared.setting.method, federation, prepared.config, CPU)


def test_by_hand(ten):
    samples = min(len(rows) for rows in ten.train)
    found = of(ten, "fedavg", engine="sequential", participation=0.5)
    assert found == Estimate(
        kept=2 * (EXTRACTOR + HEAD),  # the last models, and the best so far
        inputs=samples * 8 * 4,
        training=3 * (EXTRACTOR + HEAD) + 16 * ACTIVATIONS,
        updates=5 * (EXTRACTOR + HEAD),
    )
    assert found.total == found.kept + found.inputs + 2 * found.updates

    found = of(ten, "hcfl+(fedrc)", engine="batched", clusters=2)
    assert found.kept == 2 * (EXTRACTOR + 2 * HEAD)
    assert found.inputs == sum(len(rows) for rows in ten.train) * 8 * 4
    assert found.training == 10 * (3 * (EXTRACTOR + 2 * HEAD) + 16 * ACTIVATIONS)
    assert found.updates == 10 * (EXTRACTOR + 2 * HEAD)

    found = of(ten, "fedem", engine="batched", clusters=3)
    assert found.training == 30 * (EXTRACTOR + HEAD) + 30 * (3 * (EXTRACTOR + HEAD) + 16 * ACTIVATIONS)
    assert found.updates == 30 * (EXTRACTOR + HEAD)
    assert of(ten, "ifca", engine="sequential").updates == 10 * (EXTRACTOR + HEAD)  # hard: everybody has one
    assert of(ten, "fedsoft", engine="sequential").kept == 2 * 13 * (EXTRACTOR + HEAD)
    assert of(ten, "stocfl", engine="sequential").kept == 30 * (EXTRACTOR + HEAD)
    assert of(ten, "stocfl", engine="sequential", serve="last").kept == 20 * (EXTRACTOR + HEAD)
    compared = of(ten, "cfl", engine="sequential")
    assert compared.compared == 3 * 10 * (EXTRACTOR + HEAD)
    assert compared.total == compared.kept + compared.inputs + 4 * compared.updates
    assert of(ten, "hcfl-prime(fedem)", engine="sequential").compared == 3 * 10 * (EXTRACTOR + HEAD)
    ablation = of(ten, "hcfl+(fedem)", distance="update-cosine", engine="sequential")  # heads only
    assert ablation.compared == 3 * 10 * HEAD


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"method": "fedavg", "engine": "sequential"},
            r"^training.participation = 1: a round needs at least 3.* MB of",
        ),
        ({"method": "fedavg", "engine": "batched"}, r"^engine = 'batched': .* take engine = sequential, a smaller"),
        ({"method": "fedem", "clusters": 10**9}, r"^(engine|method.clusters|training.participation) = .* TB of memory"),
        ({"method": "hcfl+(fedem)", "clusters": 10**12}, "of memory, but 1 MB are free on cpu; take "),
    ],
)
def test_what_cannot_fit_is_refused_before_it_starts(ten, monkeypatch, settings, sentence):
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 10**6)
    with pytest.raises(InputError, match=sentence):
        prepare(from_flat(**settings), ten)


def test_what_fits_or_lies_elsewhere_is_not(ten, monkeypatch):
    for free in (10**8, 10**12):
        monkeypatch.setattr(memory_estimate, "free_memory", lambda free=free: free)
        prepare(from_flat(method="fedavg"), ten)
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 1)
    prepare(from_flat(method="fedavg", engine="flower"), ten)


@pytest.mark.parametrize(
    ("needed", "field"),
    [
        (Estimate(9, 1, 1, 1), "method.clusters = 1"),
        (Estimate(1, 9, 1, 1), "data.samples = None"),
        (Estimate(1, 1, 9, 1), "training.batch = 7"),
        (Estimate(1, 1, 9, 5), "training.participation = 0.5"),
    ],
)
def test_the_largest_part_says_what_to_change(needed, field):
    from hcfl.methods import build

    config = from_flat(engine="sequential", batch=7, participation=0.5)
    assert memory_estimate._largest(needed, config, build("fedavg"))[0] == field
