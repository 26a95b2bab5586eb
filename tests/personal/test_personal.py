"""Personal parts: the arithmetic by hand, the choice by the inner split, and what they must never do."""

import csv
from dataclasses import replace
from itertools import pairwise
from math import log

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.testing import assert_close

import hcfl
from hcfl.core import rounds
from hcfl.core.local_plan import train
from hcfl.core.predictions import Predictions, kept_models, predictions_of_all
from hcfl.core.state import PersonalPart
from hcfl.data import Federation
from hcfl.engines import Batched
from hcfl.methods import build
from hcfl.models.ensemble import Copies
from hcfl.personal import heads, prior
from hcfl.personal.families import Clients
from hcfl.personal.fine_tune import Tuning, main_models
from hcfl.personal.inner_split import best_candidate, fold_of_each
from hcfl.personal.making import make, mixture_share, predict
from hcfl.personal.measuring import PersonalParts
from hcfl.tiers.client_segments import Segments
from helpers import blobs, setting, start


def test_the_prior_puts_the_clients_frequencies_in_place_of_the_groups():
    group = torch.tensor([0.5, 0.5])
    # 6 and 0 samples, and one for each class: 7/8 and 1/8.
    assert_close(prior.correction(torch.tensor([6, 0]), group), torch.tensor([log(7 / 4), log(1 / 4)]))
    half = torch.log(torch.tensor([[0.5, 0.5]]))
    assert_close(
        prior.corrected(half, prior.correction(torch.tensor([6, 0]), group)).exp(), torch.tensor([[7 / 8, 1 / 8]])
    )
    # A client without samples has its group's frequencies, however skewed these are.
    skewed = torch.tensor([0.9, 0.1])
    assert_close(prior.correction(torch.tensor([0, 0]), skewed), torch.zeros(2))


def objective(z, offsets, labels, penalty, delta):
    """Σ CE + λ/2‖Δ‖², and its slope, in double precision."""
    logits = offsets + z @ delta
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    error = np.exp(log_probs) - np.eye(offsets.shape[1])[labels]
    value = -log_probs[np.arange(len(labels)), labels].sum() + penalty / 2 * (delta**2).sum()
    return value, z.T @ error + penalty * delta


@pytest.mark.parametrize("penalty", [10.0, 1.0, 0.03])
def test_heads_are_the_minimum_of_the_penalised_loss(penalty):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(1, 60, 5, generator=generator) * torch.tensor([5.0, 2.0, 1.0, 0.5, 0.1]) + 3
    offsets = torch.log_softmax(torch.randn(1, 60, 3, generator=generator), dim=2)
    labels = (features[0] @ torch.randn(5, 3, generator=generator)).argmax(dim=1).unsqueeze(0)
    everything = torch.ones(1, 60, 1, dtype=torch.bool)
    z = heads.Axes.of(features, everything[:, :, 0]).of_each(features)
    assert_close(z[0, :, :-1].square().sum(dim=1).mean(), torch.tensor(1.0))
    found = heads.fit(z, offsets, labels, everything, torch.tensor([[penalty]]))[0, :, 0]
    wide, given, classes = z[0].double().numpy(), offsets[0].double().numpy(), labels[0].numpy()
    best = minimize(
        lambda flat: tuple(np.ravel(part) for part in objective(wide, given, classes, penalty, flat.reshape(-1, 3))),
        np.zeros(found.numel()),
        jac=True,
        options={"gtol": 1e-9},
    )
    value, _ = objective(wide, given, classes, penalty, found.double().numpy())
    assert value == pytest.approx(float(best.fun), rel=2e-3)


def test_a_fold_is_predicted_by_heads_that_have_not_seen_it():
    """Change a fold's labels: its own predictions stay, those of the other folds do not."""
    generator = torch.Generator().manual_seed(2)
    features, labels = torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator)
    offsets, segments = torch.zeros(40, 3), Segments((25, 15))
    fold = fold_of_each(segments, 0, [0, 1], 4)
    before = heads.held_out_log_probs(features, offsets, labels, segments, fold, 4)
    after = heads.held_out_log_probs(
        features, offsets, torch.where(fold == 1, (labels + 1) % 3, labels), segments, fold, 4
    )
    assert_close(before[fold == 1], after[fold == 1])
    assert not torch.allclose(before[fold != 1], after[fold != 1], atol=1e-3)


def test_the_choice_needs_more_than_one_standard_error():
    group = torch.full((4,), -1.0)
    noisy = torch.tensor([-0.2, -1.8, -0.2, -1.7])  # better by 0.025 on average, with an error of 0.43
    clear = torch.tensor([-0.9, -0.9, -0.8, -0.9])
    table = torch.stack([group, noisy, clear], dim=1)
    assert best_candidate(table[:, :2], Segments((4,))).tolist() == [0]
    assert best_candidate(table, Segments((4,))).tolist() == [2]
    assert best_candidate(table, Segments((1, 3))).tolist() == [0, 2]  # one sample has no error to compare with


def test_the_share_of_a_mixture_follows_the_held_out_likelihood():
    right, wrong = torch.full((9,), log(0.8)), torch.full((9,), log(0.2))
    share, _ = mixture_share(wrong, right, Segments((9,)))
    assert float(share) == pytest.approx(0.9, abs=0.06)  # nine samples for the own, one for the group: near 9/10
    share, _ = mixture_share(right, wrong, Segments((9,)))
    assert float(share) < 0.01
    share, score = mixture_share(torch.cat([right, wrong]), torch.cat([wrong, right]), Segments((18,)))
    assert 0.4 < float(share) < 0.5  # as many for the one as for the other, and one more for the group
    assert float(score.mean()) == pytest.approx(log(0.5), abs=0.01)


def test_a_mixture_predicts_between_group_and_own():
    group = Predictions(torch.log(torch.tensor([[0.8, 0.2]])), torch.zeros(1, 1))
    part = PersonalPart("mixture", 0.25, bias=torch.tensor([0.0, log(16.0)]))  # own: 0.2 and 0.8
    assert_close(predict(None, part, group, torch.zeros(1, 1)).exp(), torch.tensor([[0.65, 0.35]]))


@pytest.fixture(scope="module")
def shifted():
    """Clients of one method; the last one labels everything differently, and has many samples, another has ten."""
    x, y = blobs(classes=3, per_class=150, seed=3)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    client = np.repeat([0, 1, 2, 3, 4], [120, 12, 90, 90, 138])
    y = np.where(client == 4, (y + 1) % 3, y)
    return Federation.from_arrays(x, y, client=client, val_share=0.2)


def played(federation, name, number=3, **changes):
    method = build(name)
    chosen = setting(federation, method, **changes)
    _, ensemble = start(federation, method)
    return chosen, list(rounds.play(chosen, rounds.begin(chosen, ensemble), number))[-1]


@pytest.mark.parametrize("kind", ["prior", "auto"])
def test_the_federation_is_the_same_with_and_without_personal_parts(shifted, kind):
    _, (plain, before) = played(shifted, "hcfl+(fedrc)")
    _, (state, record) = played(shifted, "hcfl+(fedrc)", personal=PersonalParts(kind, train))
    assert (record.val, record.test, record.cluster_sizes) == (before.val, before.test, before.cluster_sizes)
    for name, tensor in plain.server.ensemble.heads.items():
        assert_close(tensor, state.server.ensemble.heads[name], rtol=0, atol=0)
    assert record.val_personal is not None
    assert before.val_personal is None
    assert set(state.personal) == set(range(5))


def test_a_client_with_many_samples_leaves_a_group_that_does_not_fit(shifted):
    _, (state, record) = played(shifted, "fedavg", personal=PersonalParts("head", train))
    badly = state.scores.right / state.scores.samples < 0.5
    assert badly.any()  # one model cannot serve clients that contradict each other
    assert set(np.array(state.scores.kinds)[badly.numpy()]) == {"head"}
    assert float(state.scores.personal.sum() / state.scores.samples.sum()) > 0.95
    assert record.val_personal > record.val


def test_val_is_never_looked_at(shifted):
    """With all held-out labels changed, the same parts are made."""
    y = shifted.y.clone()
    y[shifted.val_rows] = (y[shifted.val_rows] + 1) % 3
    one = played(shifted, "fedavg", personal=PersonalParts("auto", train))[1][0]
    two = played(replace(shifted, y=y), "fedavg", personal=PersonalParts("auto", train))[1][0]
    assert one.scores.kinds == two.scores.kinds
    for client in range(5):
        assert one.personal[client].share == two.personal[client].share
        if one.personal[client].bias is not None:
            assert_close(one.personal[client].bias, two.personal[client].bias, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedavg", "hcfl+(fedem)"])
def test_clients_together_and_one_by_one_make_the_same_parts(shifted, name):
    chosen, (state, _) = played(shifted, name)
    data = shifted.local_data(range(5))
    seen = predictions_of_all(
        shifted, chosen.network, chosen.method, state.server, state.clients, data.inputs, data.segments
    )
    shares = torch.full((5, 3), 1 / 3)
    models = main_models(state.server.ensemble, state.server.weights, kept_models(state.clients, 5))
    tuning = Tuning(chosen.network, Batched().train, chosen.sgd)
    together = make("auto", Clients(range(5), data, seen, shares, models, 0), tuning)
    ends = np.cumsum((0, *data.segments.sizes))
    for client, (first, last) in enumerate(pairwise(ends)):
        mine = Predictions(seen.log_probs[first:last], seen.features[first:last])
        own = Copies.stack([models.of(client)])
        alone = Clients([client], shifted.local_data([client]), mine, shares[[client]], own, 0)
        (part,) = make("auto", alone, replace(tuning, trainer=train))
        assert part.kind == together[client].kind
        one = predict(chosen.network, part, mine, alone.data.inputs)
        assert_close(one, predict(chosen.network, together[client], mine, alone.data.inputs), rtol=1e-3, atol=1e-3)


def test_ten_clients_with_twenty_samples_each_are_not_hurt():
    x, y = blobs(classes=4, per_class=50, features=6, seed=5)
    lost = 0.0
    for seed in range(3):
        client = np.random.default_rng(seed).permutation(len(y)) % 10
        federation = Federation.from_arrays(x * 0.25, y, client=client, val_share=0.3, seed=seed)
        _, (state, _) = played(federation, "fedavg", 8, personal=PersonalParts("auto", Batched().train))
        lost += float((state.scores.right - state.scores.personal).sum() / state.scores.samples.sum()) / 3
    assert lost < 0.02


def test_personal_parts_of_a_run_and_their_setting(tmp_path):
    run = hcfl.run("fedavg", clients=4, samples=300, rounds=2, personal="head", personal_every=1, out=tmp_path / "run")
    assert [row["val_personal"] is not None for row in run.rows] == [True, True]
    loaded = hcfl.load(run.path).state
    summary, held_out = run.summary, run.state.scores
    assert summary["val_personal_last"] == run.rows[-1]["val_personal"] == held_out.val_personal
    each = (held_out.personal / held_out.samples).double().numpy()
    assert summary["val_personal_worst_tenth"] == pytest.approx(each.min())  # one of four clients
    assert summary["val_personal_spread"] == pytest.approx(each.std())
    with (run.path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["accuracy_personal"]) for row in rows] == pytest.approx(each.tolist(), abs=1e-5)
    assert [row["personal"] for row in rows] == list(held_out.kinds)
    assert loaded.scores.kinds == run.state.scores.kinds
    assert set(loaded.personal) == {0, 1, 2, 3}
    with pytest.raises(hcfl.InputError, match=r"personal\.kind = 'heads'"):
        hcfl.run("fedavg", personal="heads")


@pytest.mark.parametrize("kind", ["head", "mixture"])
def test_a_client_is_served_with_its_personal_part_and_a_cluster_without(tmp_path, kind):
    run = hcfl.run("fedavg", clients=4, samples=400, rounds=2, personal=kind, out=tmp_path / "run")
    loaded, federation = hcfl.load(run.path), run.federation
    right = 0
    for client in range(4):
        rows = federation.val[client]
        right += int((loaded.predict(federation.x[rows].numpy(), client=client) == federation.y[rows].numpy()).sum())
    assert right / len(federation.val_rows) == pytest.approx(run.summary["val_personal_last"])
    assert run.state.scores.kinds[0] != "none"
    x = federation.x[:5].numpy()
    own, group = loaded.predict_proba(x, client=0), loaded.predict_proba(x, cluster=0)
    assert np.abs(own - group).max() > 1e-3
    loaded.export(tmp_path / "own.pt", client=0)  # it compares the file with the run's own prediction
    loaded.export(tmp_path / "own.safetensors", client=0)
    assert_close(hcfl.load_model(tmp_path / "own.safetensors")(torch.from_numpy(x)), torch.from_numpy(own))
