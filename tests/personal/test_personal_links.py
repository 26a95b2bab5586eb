"""Links: residuals, scores and mixtures of numbers and labels by hand, and personal parts of whole runs of them."""

import csv
from dataclasses import replace
from itertools import pairwise
from math import exp, log

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.core.local_plan import train
from hcfl.core.predictions import Predictions, kept_models, predictions, predictions_of_all
from hcfl.core.state import PersonalPart
from hcfl.data.local_data import LocalData
from hcfl.engines import Batched
from hcfl.models.ensemble import Copies, outputs_of
from hcfl.models.tasks import Classification, MultiLabel, OwnLikelihood, Regression
from hcfl.personal import heads
from hcfl.personal.clients import Clients
from hcfl.personal.fine_tune import Tuning, main_models
from hcfl.personal.inner_split import Gains, held_of
from hcfl.personal.links import link_of, scoring_of
from hcfl.personal.making import candidates_of, gains_of, make, predict, predicted, with_variances
from hcfl.personal.stacking import common_weights
from hcfl.personal.task_links import Classes, Labels, Numbers, OwnNumbers
from hcfl.runs.prepare import prepare
from hcfl.tiers.client_segments import Segments

NUMBERS = Regression(mean=10.0, std=2.0, edges=(9.0, 11.0))
LABELS = MultiLabel(labels=("a", "b"), sets=("00", "01", "10", "11"))


def laplace(outputs, answers):
    return -(outputs[:, 0] - answers).abs()


def centred(samples, features, seed):
    """Features in principal axes, E‖z‖² = 1, with a constant."""
    z = torch.randn(1, samples, features, generator=torch.Generator().manual_seed(seed)) + 3
    return heads.Axes.of(z, torch.ones(1, samples, dtype=torch.bool)).of_each(z)


def test_the_head_of_a_number_is_ridge_regression_on_what_the_group_leaves():
    z = centred(30, 4, 1)
    generator = torch.Generator().manual_seed(2)
    group, answers = torch.randn(1, 30, 1, generator=generator), torch.randn(1, 30, generator=generator)
    counted = (torch.arange(30) < 30).view(1, 30, 1).expand(-1, -1, 2)
    found = heads.fit(Numbers(NUMBERS), z, group, answers, counted, torch.tensor([[10.0, 0.3]]))
    wide, left = z[0].double(), (answers - group[:, :, 0])[0].double()
    for problem, penalty in enumerate((10.0, 0.3)):
        by_formula = torch.linalg.solve(wide.T @ wide + penalty * torch.eye(5), wide.T @ left)
        assert_close(found[0, :, problem, 0].double(), by_formula, rtol=1e-4, atol=1e-5)


def test_what_is_held_out_changes_no_head_of_a_number():
    generator = torch.Generator().manual_seed(3)
    features, answers = torch.randn(40, 4, generator=generator), torch.randn(40, generator=generator)
    group, held, segments = torch.zeros(40, 1), torch.arange(40) % 5 == 0, Segments((25, 15))
    link = Numbers(NUMBERS)
    found = heads.held_out(link, features, group, answers, segments, held)
    other = heads.held_out(link, features, group, torch.where(held, answers + 9, answers), segments, held)
    assert_close(found[held], other[held])
    # and the same formula, by hand, with the samples of the first client that are not held out
    mine, last = ~held[:25], len(heads.PENALTIES) - 1
    seen = features[:25][mine].double()
    scale = (seen - seen.mean(dim=0)).square().sum(dim=1).mean().sqrt()
    z = torch.cat([(features[:25].double() - seen.mean(dim=0)) / scale, torch.ones(25, 1)], dim=1)
    ridge = z[mine].T @ z[mine] + heads.PENALTIES[last] * torch.eye(5)
    by_formula = z @ torch.linalg.solve(ridge, z[mine].T @ answers[:25][mine].double())
    assert_close(found[:25, last, 0].double(), by_formula, rtol=1e-4, atol=1e-4)


def test_the_heads_of_labels_are_the_minimum_of_the_penalised_loss():
    z, generator = centred(50, 3, 4), torch.Generator().manual_seed(5)
    group, answers = torch.randn(1, 50, 2, generator=generator), (torch.randn(1, 50, 2, generator=generator) > 0.3)
    counted = torch.ones(1, 50, 1, dtype=torch.bool)
    found = heads.fit(Labels(2), z, group, answers.float(), counted, torch.tensor([[0.3]]))[0, :, 0].double()

    def objective(flat):
        delta = flat.reshape(-1, 2)
        logits = group[0].double().numpy() + z[0].double().numpy() @ delta
        signs = np.where(answers[0].numpy(), 1.0, -1.0)
        return np.logaddexp(0, -signs * logits).sum() + 0.15 * (delta**2).sum()

    best = minimize(objective, np.zeros(found.numel()), options={"gtol": 1e-8})
    assert objective(found.numpy()) == pytest.approx(float(best.fun), rel=1e-4)


def of_one_client(group, answers, held=None):
    """One client, of whom only predictions matter."""
    data = LocalData(torch.zeros(len(group), 1), torch.zeros(len(group), dtype=torch.long), 2, Segments((len(group),)))
    held = torch.zeros(len(group), dtype=torch.bool) if held is None else held
    features = torch.zeros(len(group), 1)
    return Clients([0], replace(data, targets=answers), held, Predictions(group, features), None, None, 0)


def test_the_prior_of_a_number_is_the_mean_of_what_the_group_leaves_and_one_sample_more():
    group, answers = torch.tensor([[1.0, 0.5], [2.0, 0.5], [7.0, 0.5]]), torch.tensor([2.0, 4.0, 0.0])
    counted = torch.tensor([True, True, False])
    assert_close(Numbers(NUMBERS).intercepts(of_one_client(group, answers), counted), torch.tensor([[(1 + 2) / 3]]))


def test_the_prior_of_a_label_brings_the_expected_frequency_to_the_clients_own():
    answers = torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0], [1.0, 0.0]])
    client = of_one_client(torch.full((4, 2), 0.5), answers)
    found = Labels(2).intercepts(client, torch.ones(4, dtype=torch.bool))[0].tolist()
    assert found[1] == pytest.approx(0, abs=1e-6)
    # 4(1 − p) = δ: what the likelihood and the penalty say of label a
    assert 4 * (1 - 1 / (1 + exp(-found[0]))) == pytest.approx(found[0], abs=1e-3)


def test_numbers_are_scored_by_their_means_with_one_variance_and_a_floor():
    answers, segments = torch.tensor([1.0, 0.0, 0.0]), Segments((2, 1))
    group = torch.tensor([[0.0, 0.5], [1.0, 0.5], [0.0, 0.5]])
    own = torch.tensor([[1.0, 1e-4], [0.5, 1e-4], [100.0, 1e-4]])  # the variance that it has learnt says nothing
    link = Numbers(NUMBERS)
    # The group errs by 1 and 1 for the first client, by 0 for the second; one sample more has its own variance.
    first = (1 + 1 + 0.5) / 3
    expected = [[-1 / (2 * first), 0.0], [-1 / (2 * first), -0.25 / (2 * first)], [0.0, log(0.02)]]
    assert_close(link.scores([group, own], answers, segments), torch.tensor(expected, dtype=torch.float64))
    errors, learnt = link.errors([group, own], answers, segments)
    assert_close(errors, torch.tensor([[1.0, 0.0], [-1.0, -0.5], [0.0, -100.0]], dtype=torch.float64))
    assert_close(learnt, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_the_variance_of_a_number_is_the_mean_squared_error_of_its_mixture():
    errors = torch.tensor([[1.0, 0.0], [-1.0, -0.5], [0.0, -100.0]], dtype=torch.float64)
    gains = Gains(torch.tensor([2.0, 1.0]), torch.zeros(3, 1), errors, torch.tensor([0.5, 0.5]))
    parts = [PersonalPart("head"), PersonalPart("head"), PersonalPart("none")]
    half = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    # Errors ½ and −¾, and −100; one sample more has the variance that the group has learnt.
    first, second = ((0.25 + 0.5625) / 2) ** (2 / 3) * 0.5 ** (1 / 3), (10_000 * 0.5) ** 0.5
    found = [part.variance for part in with_variances(parts[:2], gains, half)]
    assert found == pytest.approx([first, second])
    alone = Gains(torch.tensor([0.0]), torch.zeros(0, 1), errors[:0], torch.tensor([0.5]))
    assert with_variances(parts[2:], alone, half[:1])[0].variance is None


def test_labels_are_scored_one_by_one_with_a_floor():
    answers = torch.tensor([[1.0, 0.0]])
    columns = [torch.tensor([[0.5, 0.2]]), torch.tensor([[1e-9, 0.2]])]
    expected = torch.tensor([[log(0.5) + log(0.8), log(0.02) + log(0.8)]])
    assert_close(Labels(2).scores(columns, answers, Segments((1,))), expected)
    assert Labels(2).largest == pytest.approx(2 * log(50))


def test_own_likelihoods_are_scored_by_what_is_gained_and_at_most_by_the_floor():
    task = OwnLikelihood(NUMBERS, laplace)
    outputs, answers = torch.tensor([[[1.0]], [[0.0]]]), torch.tensor([3.0, 30.0])
    scoring = scoring_of(task)
    one, two = scoring.of_model(outputs, answers), scoring.of_model(outputs + 1, answers)
    assert_close(one, torch.tensor([[1.0, 1.0, -2.0], [0.0, 1.0, -30.0]]))
    assert_close(scoring.scores([one, two], answers, Segments((2,))), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    far = scoring.of_model(outputs - 100, answers)
    assert_close(scoring.scores([one, far], answers, Segments((2,)))[:, 1], torch.full((2,), log(0.02)))
    both = scoring.mixed(torch.stack([one, two], dim=1), torch.tensor([0.5, 0.5]))
    assert_close(both[0], torch.tensor([1.5, 1.25, log(exp(-2) / 2 + exp(-1) / 2)]))


def test_mixtures_of_numbers_and_labels():
    group, own, weights = torch.tensor([[0.0, 1.0]]), torch.tensor([[4.0, 2.0]]), torch.tensor([0.75, 0.25])
    # mean ¾·0 + ¼·4 = 1; E[y²] = ¾·1 + ¼·(2 + 16) = 5.25; less 1
    assert_close(Numbers(NUMBERS).mixed(torch.stack([group, own], dim=1), weights), torch.tensor([[1.0, 4.25]]))
    labels = torch.tensor([[[0.8, 0.2], [0.0, 1.0]]])
    assert_close(Labels(2).mixed(labels, weights), torch.tensor([[0.6, 0.4]]))
    only = torch.tensor([0.0, 1.0])
    part = PersonalPart("head", only, torch.tensor([[1.0]]), torch.tensor([[[2.0]]]), variance=0.25)
    found = predicted(NUMBERS, part, Predictions(group, torch.tensor([[3.0]])), None)
    assert_close(found, torch.tensor([[7.0, 0.25]]))
    part = PersonalPart("prior", only, torch.tensor([[log(4.0), 0.0]]))
    found = predicted(LABELS, part, Predictions(torch.tensor([[0.5, 0.25]]), own), None)
    assert_close(found, torch.tensor([[0.8, 0.25]]))


def test_every_task_has_its_link():
    own = OwnLikelihood(NUMBERS, laplace)
    assert link_of(own) is None
    assert isinstance(scoring_of(own), OwnNumbers)
    assert isinstance(link_of(OwnLikelihood(Classification(), laplace)), Classes)
    assert link_of(LABELS) == Labels(2)
    assert [len(candidates_of("auto", task)) for task in (own, NUMBERS, LABELS)] == [4, 12, 12]


def planted(kind="numbers", own=0.5, clients=6, samples=100, seed=0, **settings):
    """Return clients with a slope and an intercept of their own on top of a common one."""
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), samples)
    x = draw.normal(size=(len(client), 4)).astype(np.float32)
    slopes = np.array([2, 0, 0, 0]) + own * draw.normal(size=(clients, 4))[client]
    value = own * draw.normal(size=clients)[client] + (x * slopes).sum(axis=1) + 0.3 * draw.normal(size=len(x))
    if kind == "numbers":
        return hcfl.Federation.from_arrays(x, 20 + 5 * value, client=client, seed=seed, **settings)
    y = np.stack([value > 0, x[:, 1] + own * draw.normal(size=clients)[client] > 0.5], axis=1)
    return hcfl.Federation.from_arrays(x, y.astype(np.float32), client=client, seed=seed, **settings)


def linear(shape, outputs):
    return nn.Flatten(), nn.Linear(shape[0], outputs)


def played(federation, kind, method="fedavg", number=4, model=linear, **settings):
    given = {"rounds": number, "evaluate_every": number, "epochs": 1, "engine": "sequential", **settings}
    prepared = prepare(from_flat(method=method, personal=kind, **given), federation, model)
    *_, (state, record) = rounds.play(prepared.setting, prepared.state, number)
    return prepared.setting, state, record


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_own_slopes_are_found_on_top_of_a_group(kind):
    _, state, record = played(planted(kind), "head", number=12)
    assert record.val_personal > record.val + (0.1 if kind == "numbers" else 0.03)
    assert set(state.scores.kinds) == {"head"}


@pytest.mark.parametrize("name", ["fedavg", "fedem", "fedrep"])
@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_clients_together_and_one_by_one_make_the_same_parts(kind, name):
    federation = planted(kind, clients=4, samples=60)
    chosen, state, _ = played(federation, "auto", name, number=2)
    whole = chosen.personal.federation
    data, network = whole.local_data(range(4)), chosen.network
    held = held_of(data.segments)
    seen = predictions_of_all(
        whole, network, chosen.method, state.server, state.clients, data.inputs, data.segments, data.answers
    )
    shares = torch.full((4, federation.classes), 1 / federation.classes)
    models = main_models(state.server.ensemble, state.server.weights, kept_models(state.clients, 4))
    tuning = Tuning(network, Batched().train, chosen.sgd, chosen.personal.start)
    everyone = Clients(range(4), data, held, seen, shares, models, 0)
    gains = gains_of("auto", everyone, tuning)
    common = common_weights(gains)
    assert gains.sent.errors is None
    made = make("auto", everyone, tuning, gains, common)
    for client, (one, last) in enumerate(pairwise(np.cumsum((0, *data.segments.sizes)))):
        mine = Predictions(seen.mixed[one:last], seen.features[one:last])
        own = Copies.stack([models.of(client)])
        alone = Clients([client], whole.local_data([client]), held[one:last], mine, shares[[client]], own, 0)
        plain = replace(tuning, trainer=train)
        found = gains_of("auto", alone, plain)
        assert found.sent.possible(12, scoring_of(network.task).largest)
        assert_close(found.each, gains.segments.split(gains.each)[client], rtol=1e-3, atol=1e-3)
        (part,) = make("auto", alone, plain, found, common)
        assert part.kind == made[client].kind
        by_itself = predict(network, part, mine, alone.data.inputs)
        both = predict(network, made[client], mine, alone.data.inputs)
        assert_close(by_itself, both, rtol=1e-3, atol=1e-3)


def test_the_log_likelihood_of_answers_is_that_of_the_mixture():
    """Also where each model was only asked for the samples on which it has weight."""
    federation = planted(clients=3, samples=40)
    for name in ("fedem", "ifca"):  # a common extractor or full models, soft or hard weights
        chosen, state, _ = played(federation, "none", name, number=1, clusters=3)
        data, network = chosen.federation.local_data(range(3)), chosen.network
        weights = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0]])
        each = data.segments.each(weights)
        seen = predictions(network, state.server.ensemble, data.inputs, data.segments, each, answers=data.answers)
        outputs = outputs_of(network, state.server.ensemble, data.inputs)
        mixed = network.task.mix(network.task.distribution(outputs), each)
        assert_close(seen.mixed, mixed)
        expected = (each * network.task.log_likelihood(outputs, data.answers).exp()).sum(dim=1).log()
        assert_close(seen.log_likelihood, expected, rtol=1e-4, atol=1e-4)


def test_ten_clients_with_twenty_samples_each_are_not_hurt():
    lost = 0.0
    for seed in range(3):
        federation = planted(own=0.0, clients=10, samples=40, seed=seed, val_share=0.5)
        _, _, record = played(federation, "auto", number=10, engine="batched")
        lost += (record.val - record.val_personal) / 3
    assert lost < 0.01


def test_the_deviation_of_an_own_model_is_that_of_what_was_set_aside(tmp_path):
    """A network learns its few samples by heart; what it then says of new ones must not be as sure."""
    federation = planted(clients=3, samples=200, own=2.0, val_share=0.5)
    run = hcfl.run("fedavg", federation, personal="fine-tune", rounds=2, epochs=1, out=tmp_path / "run", threads=1)
    assert set(run.state.scores.kinds) == {"fine-tune"}
    loaded = hcfl.load(run.path)
    for client in range(3):
        rows = federation.val[client]
        mean, deviation = loaded.predict_proba(federation.x[rows].numpy(), client=client).T
        errors = mean - (federation.answers[rows].numpy() * federation.task.std + federation.task.mean)
        assert 0.5 < np.sqrt((errors**2).mean()) / deviation[0] < 2


@pytest.mark.parametrize("kind", ["head", "mixture"])
@pytest.mark.parametrize("task", ["numbers", "labels"])
def test_a_run_has_the_metrics_of_the_task_twice_and_serves_the_part(tmp_path, task, kind):
    federation = planted(task, clients=3, samples=80)
    run = hcfl.run("fedavg", federation, linear, personal=kind, rounds=3, epochs=1, out=tmp_path / "run", threads=1)
    name = "r2" if task == "numbers" else "accuracy"
    summary, loaded = run.summary, hcfl.load(run.path, model=linear)
    assert summary[f"score_personal_{name}"] > summary[f"score_{name}"]
    with (run.path / "scores.csv").open() as file:
        assert float(next(csv.DictReader(file))[f"personal_{name}"]) == pytest.approx(
            summary[f"score_personal_{name}"], rel=1e-4
        )
    total = 0.0
    for client in range(3):
        rows = federation.val[client]
        found = torch.from_numpy(loaded.predict_proba(federation.x[rows].numpy(), client=client))
        if task == "numbers":
            found = (found - torch.tensor([federation.task.mean, 0.0])) / federation.task.std
        total += float(federation.task.score(found, federation.answers[rows]).sum())
    assert total / len(federation.val_rows) == pytest.approx(summary["val_personal_last"], abs=1e-4)
    for suffix in ("pt", "onnx"):
        loaded.export(tmp_path / f"own.{suffix}", client=0)  # it compares the file with the run's own prediction


def test_a_likelihood_of_the_users_own_needs_a_whole_model(tmp_path):
    source = tmp_path / "mine.py"
    source.write_text("def laplace(outputs, answers):\n    return -(outputs[:, 0] - answers).abs()\n")
    federation, loss = planted(own=2.0, clients=3, samples=80), f"{source}:laplace"
    with pytest.raises(hcfl.InputError, match=r"personal\.kind = 'head': must be fine-tune, .* training\.loss"):
        played(federation, "head", loss=loss)
    _, state, record = played(federation, "mixture", loss=loss, lr=0.1)
    assert "none" not in state.scores.kinds
    assert record.val_personal > record.val
