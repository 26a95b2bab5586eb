"""Personal parts: the arithmetic by hand, weights by what was set aside, and what parts must never do."""

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
from hcfl.models.tasks import CLASSES
from hcfl.personal import heads, links, prior
from hcfl.personal.clients import Clients
from hcfl.personal.fine_tune import Tuning, main_models
from hcfl.personal.inner_split import Gains, held_of, number_aside, set_aside
from hcfl.personal.making import gains_of, make, predict, predicted
from hcfl.personal.measuring import PersonalParts
from hcfl.personal.stacking import COMMON, SMALLEST, common_weights, em, own_weights
from hcfl.personal.task_links import Classes
from hcfl.tiers.client_segments import Segments
from helpers import blobs, setting, start


def test_the_prior_puts_the_clients_frequencies_in_place_of_the_groups():
    group = torch.tensor([0.5, 0.5])
    # 6 and 0 samples, and one for each class: 7/8 and 1/8.
    assert_close(prior.correction(torch.tensor([6, 0]), group), torch.tensor([log(7 / 4), log(1 / 4)]))
    half = torch.log(torch.tensor([[0.5, 0.5]]))
    assert_close(
        links.shifted(Classes(), half, prior.correction(torch.tensor([6, 0]), group)).exp(),
        torch.tensor([[7 / 8, 1 / 8]]),
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
    found = heads.fit(Classes(), z, offsets, labels, everything, torch.tensor([[penalty]]))[0, :, 0]
    wide, given, classes = z[0].double().numpy(), offsets[0].double().numpy(), labels[0].numpy()
    best = minimize(
        lambda flat: tuple(np.ravel(part) for part in objective(wide, given, classes, penalty, flat.reshape(-1, 3))),
        np.zeros(found.numel()),
        jac=True,
        options={"gtol": 1e-9},
    )
    value, _ = objective(wide, given, classes, penalty, found.double().numpy())
    assert value == pytest.approx(float(best.fun), rel=2e-3)


def test_heads_have_not_seen_what_is_held_out():
    """Change the labels of what is held out: its predictions stay. Change others: they do not."""
    generator = torch.Generator().manual_seed(2)
    features, labels = torch.randn(40, 4, generator=generator), torch.randint(3, (40,), generator=generator)
    offsets, segments = torch.zeros(40, 3), Segments((25, 15))
    held = torch.arange(40) % 5 == 0
    before = heads.held_out(Classes(), features, offsets, labels, segments, held)
    after = heads.held_out(Classes(), features, offsets, torch.where(held, (labels + 1) % 3, labels), segments, held)
    assert_close(before[held], after[held])
    after = heads.held_out(Classes(), features, offsets, torch.where(held, labels, (labels + 1) % 3), segments, held)
    assert not torch.allclose(before[held], after[held], atol=1e-3)


def test_axes_of_many_features_are_those_of_a_full_decomposition():
    generator = torch.Generator().manual_seed(4)
    scales = torch.arange(1, 301).float() ** -1.0
    features = torch.randn(2, 400, 300, generator=generator) * scales
    centred = features - features.mean(dim=1, keepdim=True)
    axes = heads.principal_axes(centred)[:, :, : heads.AXES]
    z = centred @ axes
    products = z.mT @ z
    spread = torch.diagonal(products, dim1=1, dim2=2)
    off = products - torch.diag_embed(spread)
    assert float(off.abs().max()) < 1e-4 * float(spread.max())  # what `fit` relies on
    exact = torch.linalg.svdvals(centred)[:, : heads.AXES].square()
    assert_close(spread[:, :50], exact[:, :50], rtol=1e-3, atol=0)
    assert_close(spread.sum(dim=1), exact.sum(dim=1), rtol=1e-2, atol=0)


def test_a_client_sets_aside_its_last_training_samples(shifted):
    apart, data = set_aside(shifted), shifted.local_data(range(5))
    held = data.segments.split(held_of(data.segments))
    for rows, kept, mine in zip(shifted.train, apart.train, held, strict=True):
        assert len(rows) - len(kept) == number_aside(len(rows)) > 0
        assert torch.equal(rows[~mine], kept)
        assert torch.equal(rows[: len(kept)], kept)


def found(*gains, samples, candidates=1):
    """Gains of clients: each client's samples gain the same by each candidate."""
    number = torch.tensor(samples, dtype=torch.float64)
    each = torch.tensor(gains).view(len(samples), candidates)
    return Gains(number, torch.repeat_interleave(each, number.long(), dim=0))


def test_weights_of_all_clients_are_a_fixed_point_of_em_by_hand():
    """Three samples, all twice as likely by the candidate; equal weights count for two samples."""
    weights = common_weights(found(log(2), log(2), samples=(1, 2)))
    # w = (3·2w / (2w + 1 − w) + 2·½) / (3 + 2), so 5w² − 2w − 1 = 0.
    assert_close(weights, torch.tensor([1 - (2 + 24**0.5) / 10, (2 + 24**0.5) / 10], dtype=torch.float64))
    assert common_weights(Gains(torch.zeros(2, dtype=torch.float64), torch.zeros(0, 1))).tolist() == [1, 0]


def test_em_finds_the_weights_that_make_samples_most_likely():
    generator = torch.Generator().manual_seed(0)
    likelihoods = torch.rand(300, 3, generator=generator, dtype=torch.float64) ** 3
    found = em(likelihoods, Segments((300,)), torch.full((1, 3), 1 / 3, dtype=torch.float64), 0.0)[0]

    def loss(free):
        weights = np.exp([*free, 0]) / np.exp([*free, 0]).sum()
        return -np.log(likelihoods.numpy() @ weights).sum()

    best = minimize(loss, np.zeros(2))
    assert -float((likelihoods @ found).log().sum()) == pytest.approx(float(best.fun), abs=1e-3)


def test_a_client_with_few_samples_has_the_weights_of_all_and_one_with_many_its_own():
    mixed = found(2.0, 2.0, 2.0, -2.0, -2.0, 0.0, samples=(50, 50, 50, 50, 1, 0))
    common = common_weights(mixed)
    weights = own_weights(mixed, common)
    assert_close(weights.sum(dim=1), torch.ones(6, dtype=torch.float64))
    assert_close(weights[5], common)
    assert float(weights[4, 1]) == pytest.approx(float(common[1]), abs=0.05)
    assert float(weights[0, 1]) > 0.9 > float(common[1]) > 0.5 > float(weights[3, 1])


def test_parts_with_small_weights_are_left_out():
    weights = own_weights(found(3.0, -3.0, samples=(50,), candidates=2), torch.tensor([0.05, 0.9, 0.05]))
    # The third has nothing of the samples, and 0.05 of the 20 that the weights of all count for: 0.014.
    assert 0.05 * COMMON / (50 + COMMON) < SMALLEST
    assert weights.tolist() == [[0, 1, 0]]
    assert float(weights.sum()) == pytest.approx(1)


def test_clients_choose_the_same_weights_together_and_one_by_one():
    both = found(1.0, 0.2, -1.0, 0.5, 0.0, 0.0, samples=(5, 20, 9), candidates=2)
    common, segments = common_weights(both), both.segments
    for row, (number, each) in enumerate(zip(both.samples, segments.split(both.each), strict=True)):
        assert_close(own_weights(Gains(number.view(1), each), common)[0], own_weights(both, common)[row])


def test_what_diverged_gains_nothing():
    scores = torch.tensor([[-1.0, float("nan"), -0.5], [-1.0, float("inf"), -3.0], [float("nan")] * 3])
    assert_close(Gains.of(scores, Segments((3,))).each, torch.tensor([[0.0, 0.5], [-2.0, -2.0], [0.0, 0.0]]))


def test_gains_that_no_client_can_have_found_are_refused():
    honest = found(0.5, samples=(4,))
    assert honest.possible(1, log(50))
    assert not honest.possible(2, log(50))
    assert not honest.possible(1, 0.4)
    for lie in (
        replace(honest, samples=torch.tensor([1e6], dtype=torch.float64)),
        replace(honest, samples=torch.tensor([3.5], dtype=torch.float64)),
        replace(honest, samples=torch.tensor([3.0], dtype=torch.float64)),  # not as many as there are gains
        replace(honest, samples=torch.tensor([float("nan")], dtype=torch.float64)),
        replace(honest, each=torch.full((4, 1), 1e6)),
        replace(honest, each=torch.full((4, 1), float("nan"))),
        replace(honest, each=torch.zeros(4, 1, dtype=torch.float64)),
        replace(honest, errors=torch.zeros(4, 2)),  # what is not to be told
        replace(honest, learnt=torch.zeros(1)),
    ):
        assert not lie.possible(1, log(50))


def test_a_part_predicts_between_group_and_own():
    group = Predictions(torch.log(torch.tensor([[0.8, 0.2]])), torch.tensor([[2.0]]))
    bias = torch.tensor([[0.0, log(16.0)]])  # own: 0.2 and 0.8
    part = PersonalPart("prior", torch.tensor([0.75, 0.25]), bias)
    assert_close(predicted(CLASSES, part, group, None).exp(), torch.tensor([[0.65, 0.35]]))
    # A second head, ½·log 16·φ with φ = 2, says the same; a whole model says 0.5 and 0.5.
    weight = torch.tensor([[[0.0, 0.0]], [[0.0, log(16.0) / 2]]])
    part = PersonalPart("head", torch.tensor([0.5, 0.1, 0.15, 0.25]), torch.cat([bias, torch.zeros(1, 2)]), weight)
    found = predicted(CLASSES, part, group, torch.zeros(1, 1, 2))
    assert_close(found.exp(), torch.tensor([[0.4 + 0.05 + 0.125, 0.1 + 0.2 + 0.125]]))
    assert_close(predicted(CLASSES, PersonalPart("none"), group, None), group.mixed)


@pytest.fixture(scope="module")
def shifted():
    """Clients of one method; the last one labels everything differently, and has many samples, another has ten."""
    x, y = blobs(classes=3, per_class=150, seed=3)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    client = np.repeat([0, 1, 2, 3, 4], [120, 12, 90, 90, 138])
    y = np.where(client == 4, (y + 1) % 3, y)
    return Federation.from_arrays(x, y, client=client, val_share=0.2)


def prepared(federation, name, kind=None, after=3, trainer=train, **changes):
    """The setting and the state before round 1."""
    method = build(name)
    _, ensemble = start(federation, method)
    first = replace(ensemble.select([0]), topology="full")
    parts = None if kind is None else PersonalParts(kind, trainer, first, federation, after)
    chosen = setting(federation, method, personal=parts, **changes)
    return chosen, rounds.begin(chosen, ensemble)


def played(federation, name, number=3, kind=None, after=None, trainer=train, **changes):
    """The setting, and the last state with its record; by default nothing that was set aside comes back."""
    chosen, begun = prepared(federation, name, kind, after or number, trainer, **changes)
    return chosen, list(rounds.play(chosen, begun, number))[-1]


@pytest.mark.parametrize("kind", ["prior", "auto"])
def test_the_federation_is_the_same_with_and_without_personal_parts(shifted, kind):
    _, (plain, before) = played(set_aside(shifted), "hcfl+(fedrc)")
    _, (state, record) = played(shifted, "hcfl+(fedrc)", kind=kind)
    assert (record.val, record.test, record.cluster_sizes) == (before.val, before.test, before.cluster_sizes)
    for name, tensor in plain.server.ensemble.heads.items():
        assert_close(tensor, state.server.ensemble.heads[name], rtol=0, atol=0)
    assert record.val_personal is not None
    assert before.val_personal is None
    assert set(state.personal) == set(range(5))


def test_a_client_with_many_samples_leaves_a_group_that_does_not_fit(shifted):
    _, (state, record) = played(shifted, "fedavg", kind="head")
    badly = state.scores.right / state.scores.samples < 0.5
    assert badly.any()  # one model cannot serve clients that contradict each other
    assert set(np.array(state.scores.kinds)[badly.numpy()]) == {"head"}
    assert float(state.scores.personal.sum() / state.scores.samples.sum()) > 0.95
    assert record.val_personal > record.val


def test_val_is_never_looked_at(shifted):
    """With all held-out labels changed, the same parts are made."""
    y = shifted.y.clone()
    y[shifted.val_rows] = (y[shifted.val_rows] + 1) % 3
    one = played(shifted, "fedavg", kind="auto")[1][0]
    two = played(replace(shifted, y=y), "fedavg", kind="auto")[1][0]
    assert one.scores.kinds == two.scores.kinds
    for client in range(5):
        assert_close(one.personal[client].weights, two.personal[client].weights, rtol=0, atol=0)
        if one.personal[client].bias is not None:
            assert_close(one.personal[client].bias, two.personal[client].bias, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fedavg", "hcfl+(fedem)"])
def test_clients_together_and_one_by_one_make_the_same_parts(shifted, name):
    chosen, (state, _) = played(set_aside(shifted), name)
    whole, data = shifted, shifted.local_data(range(5))
    held = held_of(data.segments)
    seen = predictions_of_all(
        whole, chosen.network, chosen.method, state.server, state.clients, data.inputs, data.segments
    )
    shares = torch.full((5, 3), 1 / 3)
    models = main_models(state.server.ensemble, state.server.weights, kept_models(state.clients, 5))
    first = replace(start(shifted, chosen.method)[1].select([0]), topology="full")
    tuning = Tuning(chosen.network, Batched().train, chosen.sgd, first)
    everyone = Clients(range(5), data, held, seen, shares, models, 0)
    gains = gains_of("auto", everyone, tuning)
    common = common_weights(gains)
    made = make("auto", everyone, tuning, gains, common)
    ends = np.cumsum((0, *data.segments.sizes))
    for client, (one, last) in enumerate(pairwise(ends)):
        mine = Predictions(seen.mixed[one:last], seen.features[one:last])
        own = Copies.stack([models.of(client)])
        alone = Clients([client], whole.local_data([client]), held[one:last], mine, shares[[client]], own, 0)
        plain = replace(tuning, trainer=train)
        (part,) = make("auto", alone, plain, gains_of("auto", alone, plain), common)
        assert part.kind == made[client].kind
        by_itself = predict(chosen.network, part, mine, alone.data.inputs)
        both = predict(chosen.network, made[client], mine, alone.data.inputs)
        assert_close(by_itself, both, rtol=1e-3, atol=1e-3)


def test_ten_clients_with_twenty_samples_each_are_not_hurt():
    x, y = blobs(classes=4, per_class=50, features=6, seed=5)
    lost = 0.0
    for seed in range(3):
        client = np.random.default_rng(seed).permutation(len(y)) % 10
        federation = Federation.from_arrays(x * 0.25, y, client=client, val_share=0.3, seed=seed)
        _, (state, _) = played(federation, "fedavg", 8, kind="auto", trainer=Batched().train)
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
    with pytest.raises(hcfl.InputError, match=r"personal\.kind = 'head': .* has 2 steps of time"):
        hcfl.run("fedavg", personal="head", steps=2, rounds_per_step=1, clients=4)


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
