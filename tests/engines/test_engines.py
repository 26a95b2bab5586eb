"""Engines agree with the sequential reference, whatever the sizes of clients, the network, or the chunks."""

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hcfl import Federation
from hcfl.config import Config, from_flat
from hcfl.core import rounds
from hcfl.core.cluster_log import Change
from hcfl.core.local_plan import Job, at_rest, train
from hcfl.core.sgd import Batches, shuffle
from hcfl.data.local_data import LocalData
from hcfl.engines import Batched, Sequential, batched_training
from hcfl.engines.batched_steps import schedule
from hcfl.engines.batched_training import Rows, chunk_size, train_together
from hcfl.engines.drawing import drawing_layers
from hcfl.engines.stacked import Program, Stacked
from hcfl.engines.workers import Workers
from hcfl.errors import InputError
from hcfl.methods import METHODS, build
from hcfl.methods.local_models import Plan
from hcfl.models import MODELS, Network
from hcfl.models.ensemble import Copies, copies, embed, initialise
from hcfl.models.inputs import Scaled
from hcfl.models.layers import Style
from hcfl.models.precision import threads
from hcfl.models.recorded import Recorder
from hcfl.rng import torch_generator
from hcfl.runs.engine_choice import chosen_engine
from hcfl.runs.prepare import prepare
from hcfl.tiers.client_segments import Segments
from helpers import blobs, local_sgd, play, setting_of, start


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


def same_events(one, two):
    """The same changes of the same clusters and clients; distances agree like everything that is computed."""
    assert [type(change) for change in one] == [type(change) for change in two]
    for mine, theirs in zip(one, two, strict=True):
        for (name, value), other in zip(asdict(mine).items(), asdict(theirs).values(), strict=True):
            expected = pytest.approx(other, rel=1e-4, abs=1e-5) if isinstance(other, float) else other
            assert value == expected, name


@pytest.mark.parametrize("name", METHODS)
def test_all_clients_at_once_is_one_after_another(uneven, name):
    assert len({len(rows) for rows in uneven.train}) > 5, "the test must see clients of different sizes"
    agree_in_every_round(uneven, build(name))


EVENTFUL = {
    "cfl": {"tol1": 10.0, "tol2": 0.01},
    "hcfl-prime(fedem)": {"tol1": 10.0, "tol2": 0.01},
    "hcfl-prime(fedrc)": {"tol1": 10.0, "tol2": 0.01},
    "fl+hc": {"threshold": 1.2, "after": 2},
    "pacfl": {"threshold": 5.0},
}
"""Settings that let methods change clusters within five rounds, which those of their papers do not here."""


@pytest.mark.parametrize("name", EVENTFUL)
def test_all_clients_at_once_change_the_same_clusters(uneven, name):
    assert agree_in_every_round(uneven, build(name, **EVENTFUL[name]))


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "hcfl+(fesem)", "hcfl+(fedsoft)", "hcfl++"])
def test_heads_and_extractors_that_train_together_agree_too(uneven, name):
    agree_in_every_round(uneven, build(name), sgd=local_sgd(lr=0.1, batch=16, epochs=2, order="together"))


@pytest.mark.parametrize("order", ["heads-first", "together"])
@pytest.mark.parametrize("name", ["fedavg", "fedem", "fedgroup", "fedsoft", "hcfl+(fedrc)", "hcfl+(fesem)"])
def test_dropout_before_the_heads_agrees_too(uneven, name, order):
    network, _ = start(uneven, build(name))
    network.extractor.feature_dropout = 0.3
    sgd = local_sgd(lr=0.05, batch=16, epochs=2, order=order, drop_last=order == "together")
    agree_in_every_round(uneven, build(name), network=network, sgd=sgd)


def agree_in_every_round(federation, method, **changes) -> list[Change]:
    """Five rounds by both engines; return what changed."""
    one, records_one = play(federation, method, 5, participation=0.7, **changes)
    two, records_two = play(federation, method, 5, participation=0.7, engine=Batched(), **changes)
    agree(one, two)
    for a, b in zip(records_one, records_two, strict=True):
        assert (a.clusters, a.cluster_sizes, a.up, a.down) == (b.clusters, b.cluster_sizes, b.up, b.down)
        same_events(a.changes, b.changes)
        assert (a.objective is None) == (b.objective is None)
        if a.objective is not None:
            assert a.objective == pytest.approx(b.objective, rel=1e-4, abs=1e-4)
    return [change for record in records_one for change in record.changes]


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
    setting = setting_of(federation, method, network, engine, local_sgd(lr=0.05, batch=16, epochs=2))
    return list(rounds.play(setting, rounds.begin(setting, ensemble), 3))[-1][0]


@pytest.mark.parametrize("name", ["fedavg", "fedem", "hcfl+(fedrc)", "fedsoft"])
@pytest.mark.parametrize("model", [with_statistics, with_images, without_parameters])
def test_batch_normalisation_convolutions_and_deep_heads_agree_too(uneven, name, model):
    one, two = (played(uneven, name, model, engine) for engine in (Sequential(), Batched()))
    agree(one, two)


@pytest.fixture
def in_double_precision():
    """Batch normalisation of few samples magnifies rounding a million times in a few steps."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def job_of(
    model, shape: tuple[int, ...], sizes: Sequence[int], topology="split", models=1, **steps
) -> tuple[Network, Job]:
    """The training of clients with so many samples each, drawn at random."""
    generator, segments, sgd = torch.Generator().manual_seed(0), Segments(tuple(sizes)), local_sgd(**steps)
    network, ensemble = initialise(model, shape, 3, topology, models, 0)
    inputs = torch.randn(segments.samples, *shape, generator=generator)
    labels = torch.cat([torch.arange(size) % 3 for size in sizes])
    start = copies(ensemble, torch.arange(models).expand(len(sizes), -1))
    gamma = torch.rand(segments.samples, models, generator=generator)
    batches = shuffle(segments, sgd, [torch_generator(client) for client in range(len(sizes))], not network.buffers)
    data, plan = (
        LocalData(inputs, labels, 3, segments),
        Plan(start, torch.ones(len(sizes), models, models), gamma, start),
    )
    features = embed(network, ensemble.extractor(0), inputs) if topology == "split" else None
    return network, Job(plan, features, data, batches, sgd, [(0, client) for client in range(len(sizes))])


def agree_closely(one: Copies, two: Copies, atol: float, rtol: float):
    for mine, theirs in ((one.extractors, two.extractors), (one.heads, two.heads)):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert_close(mine[name], theirs[name], atol=atol, rtol=rtol)


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("name", ["mobilenet-v2", "resnet-18"])
def test_the_image_networks_agree_as_they_are_written_out(name):
    network, job = job_of(MODELS[name], (28, 28, 1), (12, 11), lr=1e-4, batch=8)
    agree_closely(train(network, job).models, Batched().train(network, job).models, atol=1e-7, rtol=1e-6)


class OverPixels(nn.Module):
    """The mean of every channel."""

    def forward(self, x):
        return x.mean(dim=(1, 2))


def with_our_layers(shape, classes):
    units = Style().unit(shape[-1], 4, kernel=3), Style().unit(4, 6, kernel=3, stride=2)
    return nn.Sequential(*units, OverPixels()), nn.Linear(6, classes)


def as_if_compiled(network: Network) -> tuple[Stacked, list[torch.Size]]:
    """A program that wants steps of one shape, but needs no compiler; and the shapes that it was called with."""
    stacked, shapes = Stacked(network, compiled=True), []

    def compiled(parameters, statistics, inputs, share, moment):
        shapes.append(inputs.shape)
        return stacked.program.embed(parameters, statistics, inputs, share, moment)

    stacked.program.compiled = compiled
    return stacked, shapes


UNEVEN = (13, 2, 7, 1, 5)
"""Batches of 4: the first client takes three steps an epoch, the fourth (a single sample) none, the last one."""


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("rows", [3, 99], ids=["padded rows", "all at once"])
@pytest.mark.parametrize(("topology", "models"), [("split", 2), ("full", 1), ("full", 2)])
@pytest.mark.parametrize("fixed", [True, False])
def test_batch_normalisation_leaves_out_what_only_fills_up_a_batch(topology, models, rows, fixed, monkeypatch):
    """Idle clients, short batches and rows beyond the last one change nobody's parameters or running statistics."""
    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", rows * 4 * 8 * 8 * 3)
    network, job = job_of(with_our_layers, (8, 8, 3), UNEVEN, topology, models, lr=0.05, batch=4, epochs=2)
    stacked, shapes = as_if_compiled(network) if fixed else (Stacked(network), [])
    assert not stacked.alike
    assert stacked.fixed == fixed
    found, expected = train_together(stacked, job).models, train(network, job).models
    agree_closely(found, expected, atol=1e-10, rtol=1e-8)
    statistics = expected.extractors["0.norm.running_mean"]
    assert (statistics[3] == 0).all(), "a client of one sample takes no step"
    assert (statistics[[0, 1, 2, 4]] != 0).all()
    assert set(shapes) == ({(min(rows, len(UNEVEN)), 4, 8, 8, 3)} if fixed else set())


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("rows", [2, 99], ids=["padded rows", "all at once"])
@pytest.mark.parametrize(
    ("topology", "models", "order"),
    [("split", 2, "heads-first"), ("split", 2, "together"), ("full", 1, "together"), ("full", 2, "together")],
)
@pytest.mark.parametrize("program", ["fixed", "free", "alike", "steps to record"])
def test_masks_of_dropout_are_each_client_s_own_whatever_it_is_trained_with(
    topology, models, order, program, rows, monkeypatch
):
    def dropping(shape, classes):
        extractor, head = with_our_layers(shape, classes)
        if program == "alike":
            extractor = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 3, 6), nn.BatchNorm1d(6))
        extractor.feature_dropout = 0.4
        return extractor, head

    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", rows * 4 * 8 * 8 * 3)
    network, job = job_of(dropping, (8, 8, 3), UNEVEN, topology, models, lr=0.05, batch=4, epochs=2, order=order)
    stacked = as_if_compiled(network)[0] if program == "fixed" else Stacked(network)
    assert (stacked.fixed, stacked.alike) == (program == "fixed", program == "alike")
    expected = train(network, job).models
    recorder = Recorder(works=False) if program == "steps to record" else None
    agree_closely(train_together(stacked, job, recorder).models, expected, atol=1e-10, rtol=1e-8)
    network.extractor.feature_dropout = 0.0
    without = train(network, job).models
    for name, tensor in expected.heads.items():
        moved = (tensor - without.heads[name]).flatten(1).abs().max(dim=1).values
        assert ((moved > 1e-6) == torch.tensor([True, True, True, False, True])).all(), "the fourth takes no step"


def test_a_client_s_steps_are_counted_by_its_own_batches():
    batches = lined_up([[0, 1], [2], [0, 2]], [[4, 3], [], [3, 4]])
    for fixed in (True, False):
        numbers = [step.number.tolist() for step in schedule(batches, False, CPU, 2 if fixed else None)]
        assert numbers == [[0, 0], [1, 0] if fixed else [1], [2, 1]], "who waits has none to count"


def test_what_fills_up_does_not_grow_from_layer_to_layer():
    """A client that is idle has no variance to be normalised by: unchecked, forty layers would make it infinite."""

    def deep(shape, classes):
        units = (Style().unit(channels, 4) for channels in (3, *[4] * 39))
        return nn.Sequential(*units, OverPixels()), nn.Linear(4, classes)

    network, job = job_of(deep, (2, 2, 3), (12, 4), lr=1e-3, batch=4)
    found = train_together(as_if_compiled(network)[0], job).models
    assert all(tensor.isfinite().all() for tensor in found.extractors.values())


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("rows", [3, 99], ids=["padded rows", "all at once"])
@pytest.mark.parametrize("order", ["heads-first", "together"])
@pytest.mark.parametrize(("topology", "models"), [("split", 2), ("full", 1), ("full", 2)])
@pytest.mark.parametrize("fixed", [True, False])
def test_momentum_goes_on_alike_in_both_engines(topology, models, order, rows, fixed, monkeypatch):
    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", rows * 4 * 8 * 8 * 3)
    steps = {"lr": 0.05, "batch": 4, "epochs": 2, "order": order}
    network, job = job_of(with_our_layers, (8, 8, 3), UNEVEN, topology, models, **steps)
    generator = torch.Generator().manual_seed(1)
    at_first = at_rest(network, job.plan.start).map(lambda zero: torch.rand(zero.shape, generator=generator) / 100)
    given = at_first.map(torch.clone)
    job = replace(job, velocity=given)
    stacked = as_if_compiled(network)[0] if fixed else Stacked(network)
    found, expected = train_together(stacked, job), train(network, job)
    agree_closely(given, at_first, atol=0, rtol=0)
    agree_closely(found.models, expected.models, atol=1e-10, rtol=1e-8)
    agree_closely(found.velocity, expected.velocity, atol=1e-10, rtol=1e-8)
    assert not torch.equal(expected.velocity.heads["weight"][0], at_first.heads["weight"][0])


@pytest.mark.parametrize("name", ["fedavg", "fedem", "ifca", "fedsoft", "hcfl+(fedrc)", "hcfl++"])
def test_a_run_that_keeps_momentum_agrees(uneven, name):
    settings = {"keep_momentum": True, "rounds": 4, "batch": 16, "epochs": 1, "lr": 0.02}
    runs = [prepare(from_flat(method=name, engine=engine, **settings), uneven) for engine in ("sequential", "batched")]
    states = []
    for run in runs:
        state = run.state
        for _ in range(4):
            state, _ = rounds.play_round(run.setting, state)
        states.append(state)
    agree(*states)
    for one, two in zip(states[0].clients.values(), states[1].clients.values(), strict=True):
        for part in ("extractors", "heads"):
            assert_close(getattr(one.velocity, part), getattr(two.velocity, part), atol=1e-4, rtol=1e-3)
    reset = prepare(from_flat(method=name, **{**settings, "keep_momentum": False}), uneven)
    after, _ = rounds.play_round(reset.setting, rounds.play_round(reset.setting, reset.state)[0])
    assert all(client.velocity is None for client in after.clients.values())


@pytest.mark.parametrize("name", ["fedem", "hcfl+(fedrc)", "fedsoft"])
def test_a_run_with_a_compiled_program_agrees_too(bytes_of_images, name, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    one, two = (played(bytes_of_images, name, with_our_layers, engine) for engine in (Sequential(), Batched(True)))
    agree(one, two)


def test_what_cannot_be_compiled_runs_as_it_is_and_says_so_once():
    calls = []

    def fails(*_):
        calls.append(1)
        raise RuntimeError("no compiler\nand much more")

    program = Program(lambda parameters, statistics, inputs, share, moment: inputs + share, fails)
    one = torch.ones(2)
    inputs = {}, {}, one, one, (one, one)
    with pytest.warns(UserWarning, match=r"could not be compiled \(RuntimeError: no compiler\); going on without"):
        assert program(*inputs).tolist() == [2, 2]
    assert program(*inputs).tolist() == [2, 2], "without another warning, which would fail the test"
    assert len(calls) == 1


@pytest.fixture
def bytes_of_images() -> Federation:
    """Six clients of different sizes, of images that are stored as bytes."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 150)
    x = generator.integers(0, 120, (150, 8, 8, 3)) + 60 * generator.integers(0, 3, (3, 8, 8, 3))[y]
    client = generator.choice(6, len(y), p=np.arange(1, 7) / 21)
    return Federation.from_arrays(x.astype(np.uint8), (y + client % 2) % 3, client=client)


@pytest.mark.parametrize("name", ["fedem", "hcfl+(fedrc)", "pacfl", "stocfl"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_images_stay_bytes_until_they_are_looked_at(bytes_of_images, name, device, monkeypatch):
    seen = []
    assert not bytes_of_images.as_stored

    class Watched(Batched):
        def train(self, network, job):
            seen.append(job.data.inputs)
            return super().train(network, job)

    one, _ = play(bytes_of_images, build(name), 3)
    monkeypatch.setattr(Federation, "as_stored", device == "cuda")
    two, _ = play(replace(bytes_of_images), build(name), 3, engine=Watched())
    agree(one, two)
    kept = {inputs.stored.dtype if isinstance(inputs, Scaled) else inputs.dtype for inputs in seen}
    assert kept == {torch.uint8 if device == "cuda" else torch.float32}
    assert len(seen[-1]) == sum(len(rows) for rows in bytes_of_images.train)


def test_running_statistics_of_short_batches_are_those_of_their_own_samples(uneven):
    one, two = (played(uneven, "fedavg", with_statistics, engine) for engine in (Sequential(), Batched()))
    mean = "1.running_mean"
    assert_close(one.server.ensemble.extractors[mean], two.server.ensemble.extractors[mean])
    assert one.server.ensemble.extractors[mean].abs().max() > 0.01


def test_chunks_do_not_change_the_result(uneven, monkeypatch):
    whole, _ = play(uneven, build("hcfl+(fedrc)"), 3, engine=Batched())
    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", 300)
    parts, _ = play(uneven, build("hcfl+(fedrc)"), 3, engine=Batched())
    agree(whole, parts)


def lined_up(*clients: list[list[int]]) -> Batches:
    """Batches of several clients; where one is shorter than others, or missing, anything fills it up."""
    steps, width = max(map(len, clients)), max(len(batch) for batches in clients for batch in batches)
    sizes = [[len(batch) for batch in batches] + [0] * (steps - len(batches)) for batches in clients]
    index = [[(batch + [0] * width)[:width] for batch in [*batches, *[[]] * steps][:steps]] for batches in clients]
    return Batches(torch.tensor(index), torch.tensor(sizes))


CPU = torch.device("cpu")


def test_batches_are_lined_up_and_short_ones_count_only_what_they_hold():
    batches = lined_up([[2, 0, 1], [3, 1, 2]], [[5, 4]])
    first, second = schedule(batches, alike=False, device=CPU)
    assert first.rows is None
    assert first.index[0].tolist() == [2, 0, 1]
    assert first.index[1, :2].tolist() == [5, 4]
    assert_close(first.share, torch.tensor([[1 / 3] * 3, [1 / 2, 1 / 2, 0]]))
    assert second.rows.tolist() == [0]
    assert second.index.tolist() == [[3, 1, 2]]


def test_a_client_s_samples_lie_after_those_of_the_clients_before_it():
    batches = shuffle(Segments((4, 2)), local_sgd(batch=3), [torch_generator(client) for client in range(2)])
    first, second = (torch.cat(batches.of(client)).tolist() for client in range(2))
    assert set(first) < {0, 1, 2, 3}, "three of the four: a last batch of one sample is left out"
    assert sorted(second) == [4, 5], "after the four samples of the first client"


def test_layers_that_look_at_a_batch_as_a_whole_see_no_filling():
    steps = list(schedule(lined_up([[0, 1, 2]], [[3, 4]], [[7, 6, 5]]), alike=True, device=CPU))
    assert [step.rows.tolist() for step in steps] == [[1], [0, 2]]
    assert [step.index.tolist() for step in steps] == [[[3, 4]], [[0, 1, 2], [7, 6, 5]]]
    assert all((step.share > 0).all() for step in steps)


def test_for_a_compiled_program_every_step_has_one_shape_and_says_who_is_idle():
    batches = lined_up([[0, 1, 2], [3, 1]], [[5, 4]])
    first, second = schedule(batches, alike=False, device=CPU, multiple=3)
    assert first.rows is second.rows is None
    assert first.index.shape == second.index.shape == (2, 3)
    assert first.idle is None
    assert second.idle.tolist() == [False, True]
    assert_close(second.share, torch.tensor([[1 / 2, 1 / 2, 0], [0, 0, 0]]))


def test_a_recorded_step_has_few_widths_and_little_filling():
    batches = lined_up([[*range(7)], [*range(3)], [0]], [[*range(6)], [1, 2], []])
    widths = [step.index.shape[1] for step in schedule(batches, False, CPU, multiple=2)]
    assert widths == [7, 4, 2], "the widest is the batch itself, others are multiples"
    short = list(schedule(batches, False, CPU, multiple=2))[1]
    assert_close(short.share, torch.tensor([[1 / 3] * 3 + [0], [1 / 2, 1 / 2, 0, 0]]))


def test_a_step_that_nobody_takes_is_left_out():
    batches = lined_up([[0, 1], []], [[2, 3], []])
    for fixed in (True, False):
        assert len(list(schedule(batches, False, CPU, 2 if fixed else None))) == 1


def test_a_chunk_is_what_fits_memory(monkeypatch):
    def job(samples, models=1, topology="full"):
        return job_of(without_parameters, (5,), (samples, 2), topology, models, batch=4)[1]

    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", 100)
    assert chunk_size(job(9)) == 5, "four samples of five values each"
    assert chunk_size(job(2)) == 10
    assert [len(Rows.of(job(9, models))) for models in (1, 2)] == [2, 4], "each model of each client is a row"
    assert len(Rows.of(job(9, 2, "split"))) == 2, "heads are trained with their only extractor"
    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", 1)
    assert chunk_size(job(9)) == 1


def test_rows_beyond_the_last_have_nothing_to_do():
    rows = Rows.of(job_of(with_images, (8,), (9, 4), "full", 2, batch=4)[1])
    part = rows.part(3, 2)
    assert len(part) == 2
    assert part.columns.tolist() == [[1], [1]]
    assert part.batches.sizes.tolist() == [[4, 0, 0], [0, 0, 0]]
    for name, tensor in rows.start.heads.items():
        assert torch.equal(part.start.heads[name], tensor[[3, 3]])


class DroppingTwice(nn.Module):
    """Channels dropped by the sample, values dropped by a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.channels, self.values = nn.Conv2d(3, 4, 3, padding=1), nn.Dropout2d(0.3), nn.Dropout(0.4)
        self.dense = nn.Linear(4 * 16, 6)

    def forward(self, x):
        x = self.channels(self.conv(x.movedim(-1, 1)).relu())
        x = self.values(nn.functional.max_pool2d(x, 2)).flatten(1)
        return self.values(self.dense(x).relu())


def with_dropout_inside(shape, classes):
    return DroppingTwice(), nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.2), nn.ReLU(), nn.Linear(5, classes))


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("chunk", [2, 99], ids=["padded rows", "all at once"])
@pytest.mark.parametrize(
    ("topology", "models", "order"),
    [("split", 2, "heads-first"), ("split", 2, "together"), ("full", 1, "together"), ("full", 2, "together")],
)
@pytest.mark.parametrize("recorded", [False, True], ids=["free", "steps to record"])
def test_dropout_layers_drop_the_same_in_both_engines(topology, models, order, chunk, recorded, monkeypatch):
    monkeypatch.setattr(batched_training, "CPU_ELEMENTS", chunk * 4 * 8 * 8 * 3)
    settings = {"lr": 0.05, "batch": 4, "epochs": 2, "order": order}
    network, job = job_of(with_dropout_inside, (8, 8, 3), UNEVEN, topology, models, **settings)
    before = torch.get_rng_state()
    expected = train(network, job).models
    found = train_together(Stacked(network), job, Recorder(works=False) if recorded else None).models
    agree_closely(found, expected, atol=1e-10, rtol=1e-8)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(1)
    agree_closely(train(network, job).models, expected, atol=0, rtol=0)
    other = train(network, replace(job, purposes=[(1, client) for client in range(len(UNEVEN))])).models
    assert (other.extractors["conv.weight"] - expected.extractors["conv.weight"]).abs().max() > 1e-4


def test_clients_with_dropout_layers_train_side_by_side_and_together(uneven):
    """Without a warning, which would fail the test."""

    def model(shape, classes):
        extractor = nn.Sequential(
            nn.Linear(shape[0], 8), nn.ReLU(), nn.Dropout1d(0.3), nn.Linear(8, 6), nn.Dropout(0.5)
        )
        return extractor, nn.Linear(6, classes)

    assert drawing_layers(Network(*model((3,), 2)), (3,)) == ()
    with threads(1):
        one = played(uneven, "hcfl+(fedrc)", model, Sequential())
    two = played(uneven, "hcfl+(fedrc)", model, Sequential(Workers(2)))
    assert all(torch.equal(a, b) for a, b in zip(*(s.server.ensemble.heads.values() for s in (one, two)), strict=True))
    agree(one, played(uneven, "hcfl+(fedrc)", model, Batched()))


class LastOfGRU(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru = nn.GRU(2, width, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x):
        return self.gru(x)[0][:, -1]


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.rand_like(x) if self.training else x


def test_layers_that_draw_numbers_are_named(uneven):
    def noisy(shape, classes):
        return nn.Sequential(nn.Linear(shape[0], 6), Noise(), nn.Dropout(0.1)), nn.Linear(6, classes)

    recurrent = Network(nn.Sequential(LastOfGRU(4), Noise()), nn.Sequential(nn.AlphaDropout(0.1), nn.Linear(4, 2)))
    assert drawing_layers(recurrent, (5, 2)) == (
        "extractor.0.gru (GRU)",
        "extractor.1 (Noise)",
        "head.0 (AlphaDropout)",
    )
    before = torch.get_rng_state()
    one = played(uneven, "fedavg", noisy, Sequential())
    with pytest.warns(UserWarning, match=r"the layer extractor.1 \(Noise\) of the model draws random numbers") as said:
        two = played(uneven, "fedavg", noisy, Batched())
    agree(one, two)
    assert len(said) == 1, "three rounds"
    assert torch.equal(before, torch.get_rng_state())


def test_auto_is_batched_except_on_a_cpu_with_a_large_or_convolving_network():
    dense, images, large = (
        Network(*MODELS[name](shape, 4)) for name, shape in (("mlp", (64,)), ("cnn", (32, 32, 3)), ("mlp", (32, 32, 3)))
    )
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert chosen_engine(Config(), dense, cpu)[0] == "batched"
    assert chosen_engine(Config(), large, cpu)[0] == "sequential"
    assert chosen_engine(Config(), images, cpu)[0] == "sequential"
    assert chosen_engine(Config(), images, gpu)[0] == "batched"
    assert chosen_engine(Config(engine="sequential"), dense, gpu)[0] == "sequential"


def test_networks_with_dropout_layers_are_not_compiled():
    network, gpu = Network(*with_dropout_inside((8, 8, 3), 2)), torch.device("cuda")
    assert chosen_engine(from_flat(method="fedavg", rounds=20), network, gpu) == ("batched", False)
    with pytest.raises(InputError, match="compile = true: masks of dropout layers"):
        chosen_engine(from_flat(method="fedavg", compile=True), network, gpu)


def test_convolving_networks_are_compiled_on_a_gpu_where_a_run_is_long_enough():
    dense, images = (Network(*MODELS[name](shape, 4)) for name, shape in (("mlp", (64,)), ("cnn", (32, 32, 3))))
    gpu = torch.device("cuda")

    def compiled(network, rounds, device=gpu, **settings):
        return chosen_engine(from_flat(method="fedavg", rounds=rounds, **settings), network, device)[1]

    assert compiled(images, 20)
    assert not compiled(images, 19)
    assert not compiled(dense, 20)
    assert compiled(dense, 1, compile=True)
    assert not compiled(images, 20, compile=False)
    assert not compiled(images, 20, device=CPU)
    assert not compiled(images, 20, engine="sequential")
    with pytest.raises(InputError, match="compile = true: is for the batched engine on a GPU, not for batched on cpu"):
        compiled(images, 20, device=CPU, engine="batched", compile=True)


@pytest.mark.parametrize(("engine", "kind"), [("auto", Batched), ("sequential", Sequential), ("batched", Batched)])
def test_the_engine_is_a_setting_and_a_run_records_what_it_was(engine, kind):
    prepared = prepare(from_flat(method="fedavg", clients=3, engine=engine))
    assert isinstance(prepared.setting.engine, kind)
    assert prepared.config.engine == ("sequential" if kind is Sequential else "batched")
    assert replace(prepared.setting, engine=Sequential()).federation.clients == 3


def test_a_chunk_that_does_not_fit_memory_is_halved(uneven, monkeypatch):
    sizes, whole = [], batched_training._train_rows

    def small_memory(stacked, job, rows, recorder):
        sizes.append(len(rows))
        if len(rows) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(stacked, job, rows, recorder)

    one, _ = play(uneven, build("hcfl+(fedrc)"), 1, engine=Batched())
    monkeypatch.setattr(batched_training, "_train_rows", small_memory)
    two, _ = play(uneven, build("hcfl+(fedrc)"), 1, engine=Batched())
    agree(one, two)
    assert sizes[:3] == [9, 4, 2]
    monkeypatch.setattr(batched_training, "_train_rows", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(
        InputError, match=r"device = 'cpu': has too little memory to train a single client; take a smal"
    ):
        play(uneven, build("hcfl+(fedrc)"), 1, engine=Batched())


@pytest.mark.parametrize("sgd", [local_sgd(lr=0.1, momentum=0, batch=7), local_sgd(lr=0.1, weight_decay=0, batch=7)])
@pytest.mark.parametrize("name", ["fedavg", "fedsoft"])
def test_every_form_of_the_step_is_the_reference_s(uneven, sgd, name):
    method = build(name)
    network, ensemble = initialise(with_images, uneven.shape, uneven.classes, method.topology, method.clusters, 0)
    states = []
    for engine in (Sequential(), Batched()):
        setting = setting_of(uneven, method, network, engine, sgd)
        states.append(list(rounds.play(setting, rounds.begin(setting, ensemble), 2))[-1][0])
    agree(*states)


@pytest.mark.parametrize("faster", [True, None])
def test_clients_side_by_side_give_the_same_to_the_last_bit(uneven, faster):
    with threads(1):
        one = played(uneven, "hcfl+(fedrc)", with_statistics, Sequential())
    two = played(uneven, "hcfl+(fedrc)", with_statistics, Sequential(Workers(2, faster)))
    for part in ("extractors", "heads"):
        first, second = (getattr(state.server.ensemble, part) for state in (one, two))
        assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(one.server.weights, two.server.weights)


def test_clients_whose_layers_draw_numbers_train_one_after_another(uneven):
    class Draws(nn.Module):
        def forward(self, x):
            return nn.functional.dropout(x, 0.3, self.training)

    def model(shape, classes):
        extractor, head = MODELS["mlp"](shape, classes)
        return nn.Sequential(extractor, Draws()), head

    workers, before = Workers(2), torch.get_rng_state()
    with threads(1):
        one = played(uneven, "fedavg", model, Sequential())
    with pytest.warns(UserWarning, match=r"extractor.1 \(Draws\) of the model draws random numbers in training"):
        two = played(uneven, "fedavg", model, Sequential(workers))
    assert workers.faster is False
    assert torch.equal(before, torch.get_rng_state())
    first, second = (state.server.ensemble.heads for state in (one, two))
    assert all(torch.equal(first[name], second[name]) for name in first)
