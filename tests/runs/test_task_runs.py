"""Runs of regressions and of several labels: beside loops written by hand, on planted groups, with every method."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.errors import InputError
from hcfl.methods import METHODS
from hcfl.runs.prepare import prepare

SLOPES = np.array([[2, 0, 0, 0], [-1, 3**0.5, 0, 0], [-1, -(3**0.5), 0, 0]])


def planted(seed=0, clients=9, samples=40, groups=3):
    """Clients whose answers have one of three opposite slopes."""
    draw = np.random.default_rng(seed)
    x, client = draw.normal(size=(clients * samples, 4)), np.repeat(np.arange(clients), samples)
    concept = client % groups
    y = 5 + (x * SLOPES[concept]).sum(axis=1) + 0.1 * draw.normal(size=len(x))
    return hcfl.Federation.from_arrays(x, y, client=client, concept=concept, seed=seed)


def linear(shape, outputs):
    """Build a linear model: nothing to extract."""
    return nn.Flatten(), nn.Linear(shape[0], outputs)


def played(method, federation, model=linear, **settings):
    prepared = prepare(from_flat(method=method, **settings), federation, model)
    *_, (state, record) = rounds.play(prepared.setting, prepared.state, prepared.config.training.rounds)
    return prepared, state, record


def test_the_task_follows_the_answers():
    federation = planted()
    assert federation.task.name == federation.settings.task == "regression"
    assert federation.class_table().shape == (9, 5)  # quantile bins
    assert federation.targets.mean() == pytest.approx(0, abs=1e-6)
    assert "so the task is regression" in federation.notes[0]
    labels = hcfl.Federation.from_arrays(np.ones((6, 2)), [[0, 1], [1, 1], [0, 0]] * 2, clients=2)
    assert labels.task.name == "multi-label"


def by_hand(federation, start, lr, momentum, decay, epochs, orders):
    """Train by squared error and average: FedAvg in a few lines, on the standardised data."""
    sums, total = [torch.zeros_like(part) for part in start], 0
    for client, rows in enumerate(federation.train):
        weight, bias = (part.clone().requires_grad_() for part in start)
        optimiser = torch.optim.SGD([weight, bias], lr=lr, momentum=momentum, weight_decay=decay)
        x, y = federation.scaling(federation.x[rows]), federation.targets[rows]
        for batch in orders[client]:
            optimiser.zero_grad()
            ((x[batch] @ weight + bias - y[batch]) ** 2 / 2).mean().backward()
            optimiser.step()
        sums = [part + len(rows) * found.detach() for part, found in zip(sums, (weight, bias), strict=True)]
        total += len(rows)
    return [part / total for part in sums]


def orders_of(federation, prepared, round_):
    from hcfl import rng
    from hcfl.core.sgd import shuffle
    from hcfl.tiers.client_segments import Segments

    found = []
    for client, rows in enumerate(federation.train):
        generator = rng.torch_generator(prepared.config.seed, "batches", round_, client)
        found.append(shuffle(Segments((len(rows),)), prepared.setting.sgd, [generator]).of(0))
    return found


@pytest.mark.parametrize("engine", ["sequential", "batched"])
def test_fedavg_of_a_regression_is_a_loop_written_by_hand(engine):
    federation = planted()
    prepared, state, record = played("fedavg", federation, rounds=2, engine=engine)
    heads = prepared.state.server.ensemble.heads
    model = [heads["mean.weight"][0, 0], heads["mean.bias"][0]]
    for round_ in (1, 2):
        orders = orders_of(federation, prepared, round_)
        model = by_hand(federation, model, 0.06, 0.9, 5e-4, 5, orders)
    found = state.server.ensemble.heads
    assert_close(found["mean.weight"][0, 0], model[0], atol=1e-5, rtol=1e-4)
    assert_close(found["mean.bias"][0], model[1], atol=1e-5, rtol=1e-4)
    rows = torch.cat([*federation.val])
    predicted = federation.scaling(federation.x[rows]) @ model[0] + model[1]
    assert record.val == pytest.approx(float((1 - (predicted - federation.targets[rows]) ** 2).mean()), abs=1e-4)


def test_ifca_of_a_regression_is_a_loop_written_by_hand():
    federation = planted()
    prepared, state, _ = played("ifca", federation, rounds=1, clusters=2, engine="sequential")
    heads = prepared.state.server.ensemble.heads
    models = [[heads["mean.weight"][k, 0], heads["mean.bias"][k]] for k in range(2)]
    losses = torch.tensor(
        [
            [
                float(((federation.scaling(federation.x[rows]) @ w + b - federation.targets[rows]) ** 2).mean())
                for w, b in models
            ]
            for rows in federation.train
        ]
    )
    chosen = losses.argmin(dim=1)
    assert state.server.members.tolist() == chosen.tolist()
    orders = orders_of(federation, prepared, 1)
    for k in set(chosen.tolist()):
        members = [client for client in range(9) if chosen[client] == k]
        group = hcfl.data.Federation(**{**vars_of(federation), "train": tuple(federation.train[m] for m in members)})
        expected = by_hand(group, models[k], 0.06, 0.9, 5e-4, 5, [orders[m] for m in members])
        assert_close(state.server.ensemble.heads["mean.weight"][k, 0], expected[0], atol=1e-5, rtol=1e-4)


def vars_of(federation):
    from dataclasses import fields

    return {field.name: getattr(federation, field.name) for field in fields(federation)}


@pytest.mark.parametrize(("method", "samples"), [("ifca", 40), ("fedem", 40), ("hcfl++", 40), ("hcfl+(fedem)", 120)])
def test_planted_regressions_are_found(method, samples):
    _, state, record = played(method, planted(samples=samples), rounds=12)
    assert record.quality.ari == 1.0
    assert record.val > 0.9
    if method == "fedem":
        variances = nn.functional.softplus(state.server.ensemble.heads["spread"])
        assert variances.max() < 0.5  # below that of all answers, 1


def test_engines_agree_on_a_regression():
    settings = {"model": None, "rounds": 2, "epochs": 1}
    _, _, record = played("hcfl+(fedem)", planted(), engine="batched", **settings)
    _, _, other = played("hcfl+(fedem)", planted(), engine="sequential", **settings)
    assert record.objective == pytest.approx(other.objective, abs=1e-4)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(120, 3)), columns=["a", "b", "c"])
    table["site"] = np.array(["x", "y", "z"])[np.arange(120) % 3]
    table["price"] = (100 + 20 * table.a + draw.normal(size=120)).round(2)
    table["wet"], table["cold"] = (table.a > 0).astype(int), (table.b > 0).map({True: "yes", False: "no"})
    table.to_csv(folder / "t.csv", index=False)
    return folder, table


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("label", "drop"), [("price", "wet,cold"), ("wet,cold", "price")])
def test_every_method_runs_with_every_task(tables, method, label, drop):
    _, table = tables
    federation = hcfl.Federation.from_frame(table, label=label, client="site", drop=drop)
    _, _, record = played(method, federation, model=None, rounds=1, epochs=1, batch=40)
    assert record.val is not None
    assert np.isfinite(record.val)


def test_a_run_of_a_regression_from_the_command_line(tables, capsys):
    folder, table = tables
    out = folder / "run"
    command = f"run fedem --data {folder / 't.csv'} --label price --client site --drop wet,cold --rounds 6 --out {out}"
    assert main(command.split()) == 0
    assert "rmse" in capsys.readouterr().out
    scores = pd.read_csv(out / "scores.csv")
    assert list(scores.columns) == ["client", "samples", "rmse", "mae", "r2"]
    assert scores.samples.tolist() == [12, 4, 4, 4]
    run = hcfl.load(out)
    predicted = run.predict(table, client="x")
    assert np.corrcoef(predicted, table.price)[0, 1] > 0.9
    assert abs(predicted.mean() - 100) < 10
    found = run.assign(table)
    assert found.evidence == "labels"
    assert run.assign(table.drop(columns="price")).evidence != "labels"
    model = hcfl.load_model(run.export(folder / "m.safetensors", cluster=0))
    mean = model(torch.from_numpy(model.schema.encode(table).x))[:, 0].numpy()
    np.testing.assert_allclose(mean, run.predict(table, cluster=0), rtol=1e-4)


def test_class_weights(tables):
    _, table = tables
    federation = hcfl.Federation.from_frame(table, label="cold", client="site", drop="price,wet")
    counts = federation.class_table().sum(axis=0)
    prepared = prepare(from_flat(method="fedavg", class_weights="balanced"), federation)
    weights = np.array(prepared.setting.network.task.weights)
    assert (weights * counts).sum() == pytest.approx(counts.sum())
    assert weights[0] / weights[1] == pytest.approx(counts[1] / counts[0])
    named = prepare(from_flat(method="fedavg", class_weights="no=1, yes=3"), federation)
    assert named.setting.network.task.weights == (1.0, 3.0)
    for wrong, words in (("no=1", "for each of the classes no, yes"), ("heavy", "must be balanced")):
        with pytest.raises(InputError, match=words):
            prepare(from_flat(method="fedavg", class_weights=wrong), federation)
    with pytest.raises(InputError, match="the task is regression"):
        prepare(from_flat(method="fedavg", class_weights="balanced"), planted())


def test_a_likelihood_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def laplace(outputs, answers):\n    return -(outputs[:, 0] - answers).abs()\n\nlaplace.outputs = 1\n"
    )
    settings = {"loss": f"{tmp_path / 'mine.py'}:laplace", "rounds": 3}
    _, state, record = played("fedem", planted(), **settings)
    assert "spread" not in state.server.ensemble.heads
    assert np.isfinite(record.objective)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"beta": 0.5}, r"data.beta = 0.5: changes labels of classes, but the task is regression"),
        ({"noise": "pair", "noise_rate": 0.1}, r"data.noise = pair: changes labels of classes"),
        ({"task": "classification"}, "labels are whole numbers"),
        ({"task": "multi-label"}, r"y of several labels must be \(90, labels\)"),
    ],
)
def test_what_a_regression_cannot_have_is_refused(settings, words):
    draw = np.random.default_rng(0)
    with pytest.raises(InputError, match=words):
        hcfl.Federation.from_arrays(draw.normal(size=(90, 3)), draw.normal(size=90), clients=3, **settings)
