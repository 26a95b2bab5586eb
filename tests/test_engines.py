"""Engines agree with the sequential reference, whatever the sizes of clients, the network, or the chunks."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hcfl import Federation, rounds
from hcfl.config import from_flat
from hcfl.engines import Batched, Sequential, batched
from hcfl.engines.batched import chunk_size, draws, train_all
from hcfl.engines.together import schedule
from hcfl.ensemble import Ensemble, embed, initialise
from hcfl.experiment import chosen_engine, prepare
from hcfl.local import Job, Plan, train
from hcfl.methods import METHODS, build
from hcfl.models import MODELS, Network
from hcfl.training import LocalData, LocalSGD, batch_indices
from helpers import blobs, play


@pytest.fixture
def uneven() -> Federation:
    """Nine clients of very different sizes in three concepts."""
    x, y = blobs(per_class=80)
    generator = np.random.default_rng(0)
    client = generator.choice(9, len(y), p=np.arange(1, 10) / 45)
    return Federation.from_arrays(
        x, (y + client % 3) % 4, client=client, concept=client % 3, test=generator.random(len(y)) < 0.1
    )


def agree(one, two):
    assert one.server.clusters == two.server.clusters
    assert one.server.members.tolist() == two.server.members.tolist()
    assert_close(one.server.weights, two.server.weights, atol=1e-4, rtol=1e-4)
    for mine, theirs in (
        (one.server.ensemble.heads, two.server.ensemble.heads),
        (one.server.ensemble.extractors, two.server.ensemble.extractors),
    ):
        for name in mine:
            assert_close(mine[name], theirs[name], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", METHODS)
def test_all_clients_at_once_is_one_after_another(uneven, name):
    assert len({len(rows) for rows in uneven.train}) > 5, "the test must see clients of different sizes"
    one, records_one = play(uneven, build(name), 4, participation=0.7)
    two, records_two = play(uneven, build(name), 4, participation=0.7, engine=Batched())
    agree(one, two)
    for a, b in zip(records_one, records_two, strict=True):
        assert (a.clusters, a.up, a.down, len(a.changes)) == (b.clusters, b.up, b.down, len(b.changes))
        assert a.objective == pytest.approx(b.objective, rel=1e-4, abs=1e-4)


def with_statistics(shape, classes):
    return nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU()), nn.Linear(6, classes)


def with_images(shape, classes):
    extractor = nn.Sequential(nn.Unflatten(1, (1, 2, 4)), nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten())
    return extractor, nn.Sequential(nn.Linear(9, 5), nn.Tanh(), nn.Linear(5, classes))


def without_parameters(shape, classes):
    return nn.Flatten(), nn.Linear(shape[0], classes)


def played(federation, name, model, engine):
    method = build(name)
    network, ensemble = initialise(model, federation.shape, federation.classes, method.topology, method.clusters, 0)
    setting = rounds.Setting(federation, method, network, engine, LocalSGD(lr=0.05, batch=16, epochs=2))
    return list(rounds.play(setting, rounds.begin(setting, ensemble), 3))[-1][0]


@pytest.mark.parametrize("name", ["fedavg", "fedem", "hcfl+(fedrc)", "fedsoft"])
@pytest.mark.parametrize("model", [with_statistics, with_images, without_parameters])
def test_batch_normalisation_convolutions_and_deep_heads_agree_too(uneven, name, model):
    one, two = (played(uneven, name, model, engine) for engine in (Sequential(), Batched()))
    agree(one, two)


@pytest.mark.parametrize("name", ["mobilenet-v2", "resnet-18"])
def test_the_image_networks_agree_as_they_are_written_out(name):
    """In double precision: batch normalisation of few samples magnifies rounding a million times in a few steps."""
    network, single = initialise(MODELS[name], (28, 28, 1), 3, "split", 1, 0)
    network.extractor.double()
    ensemble = Ensemble(
        *({n: t.double() for n, t in part.items()} for part in (single.extractors, single.heads)), "split"
    )
    generator, sgd, jobs = torch.Generator().manual_seed(0), LocalSGD(lr=1e-4, batch=8), []
    for client, samples in enumerate((12, 11)):
        data = LocalData(
            torch.randn(samples, 28, 28, 1, generator=generator).double(), torch.arange(samples) % 3, classes=3
        )
        plan = Plan(ensemble, torch.eye(1), torch.ones(samples, 1).double(), ensemble)
        batches = batch_indices(samples, sgd, generator)
        jobs.append(Job(plan, embed(network, ensemble.extractor(0), data.inputs), data, batches, sgd, (0, client)))
    for one, two in zip([train(network, job) for job in jobs], train_all(network, jobs), strict=True):
        for part in one.extractors:
            assert_close(one.extractors[part], two.extractors[part], atol=1e-7, rtol=1e-6)


def test_running_statistics_of_short_batches_are_those_of_their_own_samples(uneven):
    one, two = (played(uneven, "fedavg", with_statistics, engine) for engine in (Sequential(), Batched()))
    mean = "1.running_mean"
    assert_close(one.server.ensemble.extractors[mean], two.server.ensemble.extractors[mean])
    assert one.server.ensemble.extractors[mean].abs().max() > 0.01


def test_chunks_do_not_change_the_result(uneven, monkeypatch):
    whole, _ = play(uneven, build("hcfl+(fedrc)"), 3, engine=Batched())
    monkeypatch.setattr(batched, "CPU_ELEMENTS", 300)
    parts, _ = play(uneven, build("hcfl+(fedrc)"), 3, engine=Batched())
    agree(whole, parts)


def job(samples: int, batches: list[list[int]], models: int = 1, topology: str = "full") -> Job:
    data = LocalData(torch.zeros(samples, 5), torch.zeros(samples, dtype=torch.long), 2)
    ensemble = Ensemble({"w": torch.zeros(models, 1)}, {"h": torch.zeros(models, 1)}, topology)
    plan = Plan(ensemble, torch.eye(models), torch.ones(samples, models), ensemble)
    return Job(plan, None, data, [torch.tensor(batch) for batch in batches], LocalSGD(batch=4), (0, "test"))


def test_batches_are_lined_up_and_short_ones_count_only_what_they_hold():
    first, second = schedule(
        [job(4, [[2, 0, 1], [3, 1, 2]]), job(2, [[1, 0]])], alike=False, device=torch.device("cpu")
    )
    assert first.rows is None
    assert first.index[0].tolist() == [2, 0, 1]
    assert first.index[1, :2].tolist() == [5, 4], "after the four samples of the first client"
    assert_close(first.share, torch.tensor([[1 / 3] * 3, [1 / 2, 1 / 2, 0]]))
    assert second.rows.tolist() == [0]
    assert second.index.tolist() == [[3, 1, 2]]


def test_layers_that_look_at_a_batch_as_a_whole_see_no_filling():
    steps = schedule(
        [job(3, [[0, 1, 2]]), job(2, [[0, 1]]), job(3, [[2, 1, 0]])], alike=True, device=torch.device("cpu")
    )
    assert [step.rows.tolist() for step in steps] == [[1], [0, 2]]
    assert all((step.share > 0).all() for step in steps)


def test_a_chunk_is_what_fits_memory(monkeypatch):
    monkeypatch.setattr(batched, "CPU_ELEMENTS", 100)
    assert chunk_size(job(9, [[0]])) == 5, "four samples of five values each"
    assert chunk_size(job(9, [[0]], models=2)) == 2
    assert chunk_size(job(9, [[0]], models=2, topology="split")) == 5
    assert chunk_size(job(2, [[0]])) == 10
    assert chunk_size(job(9, [[0]], models=99)) == 1


def test_dropout_draws_each_client_s_own_numbers(uneven):
    def with_dropout(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 6), nn.Dropout(0.5)), nn.Linear(6, classes)

    assert draws(Network(*with_dropout((3,), 2)))
    assert not draws(Network(*with_images((8,), 2)))
    one, two = (played(uneven, "fedavg", with_dropout, engine) for engine in (Sequential(), Batched()))
    agree(one, two)


def test_auto_is_batched_except_on_a_cpu_with_a_large_or_convolving_network():
    dense, images, large = (
        Network(*MODELS[name](shape, 4)) for name, shape in (("mlp", (64,)), ("cnn", (32, 32, 3)), ("mlp", (32, 32, 3)))
    )
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert chosen_engine("auto", dense, cpu) == "batched"
    assert chosen_engine("auto", large, cpu) == "sequential"
    assert chosen_engine("auto", images, cpu) == "sequential"
    assert chosen_engine("auto", images, gpu) == "batched"
    assert chosen_engine("sequential", dense, gpu) == "sequential"


@pytest.mark.parametrize(("engine", "kind"), [("auto", Batched), ("sequential", Sequential), ("batched", Batched)])
def test_the_engine_is_a_setting_and_a_run_records_what_it_was(engine, kind):
    prepared = prepare(from_flat(method="fedavg", clients=3, engine=engine))
    assert isinstance(prepared.setting.engine, kind)
    assert prepared.config.engine == ("sequential" if kind is Sequential else "batched")
    assert replace(prepared.setting, engine=Sequential()).federation.clients == 3
