"""A client's round, alone and in a group: who is trained, what is sent, how a late client catches up."""

from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from hcfl import rng
from hcfl.core.client import catch_up, class_mix, looked_at, must_look, parameter_distances, placed
from hcfl.core.cluster_log import Removal, Split
from hcfl.core.local_plan import train
from hcfl.core.sgd import Supervision, shuffle, train_extractor, train_heads
from hcfl.core.state import Broadcast, ClientState, Update
from hcfl.data.local_data import LocalData
from hcfl.methods import Method, build
from hcfl.methods.local_models import ClusterModels, OwnModel
from hcfl.models import MODELS, Network
from hcfl.models.ensemble import Ensemble, forward, initialise, rows
from hcfl.models.inputs import Scaled, Scaling
from hcfl.tiers import (
    Assigned,
    ByLabelDistribution,
    Conditional,
    Correlation,
    FeatureNormDistance,
    Fixed,
    FuzzyCMeans,
    HardByParameters,
    Joint,
    SoftEM,
    SplitAndRemove,
    Weights,
)
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.formulation import class_counts, objective
from hcfl.tiers.gaussians import feature_moments, initial_gaussians, mixture_log_density
from helpers import local_sgd, take_part_with

SGD = local_sgd(lr=0.1, batch=8)


def data(samples=20, seed=0) -> LocalData:
    generator = torch.Generator().manual_seed(seed)
    return LocalData.alone(torch.randn(samples, 4, generator=generator), torch.arange(samples) % 3, 3)


def alone(method, network, sgd, mine, broadcast, client, state, seed):
    """The round of one client, as a group of one."""
    states = {} if state is None else {client: state}
    update, (after,) = take_part_with(method, network, sgd, mine, broadcast, [client], states, seed)
    return update, after


def batches_of(round_, client, samples=20) -> list[torch.Tensor]:
    """A client's batches of a round, drawn by hand."""
    return shuffle(Segments((samples,)), SGD, [rng.torch_generator(0, "batches", round_, client)]).of(0)


def message(name, clusters, round_=1, changes=(), ids=None) -> tuple:
    method = build(name, clusters=clusters) if name != "fedavg" else build(name)
    network, ensemble = initialise(MODELS["mlp"], (4,), 3, method.topology, clusters, seed=0)
    shares = torch.full((clusters, 3), 1 / 3)
    weights = torch.full((10, clusters), 1 / clusters)
    return method, network, Broadcast(round_, ensemble, shares, ids or tuple(range(clusters)), tuple(changes), weights)


def test_soft_clients_train_every_head_and_report_what_the_method_needs():
    method, network, broadcast = message("hcfl+(fedrc)", 3)
    update, state = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    assert update.clients == (7,)
    assert update.sizes.tolist() == [20.0]
    assert update.row_participants.tolist() == [0, 0, 0]
    assert update.started.tolist() == torch.eye(3).tolist()
    assert update.mass.tolist() == (20 * torch.eye(3)).tolist()
    assert len(update.models.heads["weight"]) == 3
    assert len(update.models.extractors["1.weight"]) == 1
    assert update.counts.shape == (1, 3, 3)
    assert update.counts.sum().item() == pytest.approx(20)
    assert update.prototypes.class_counts.tolist() == [[7.0, 7.0, 6.0]]
    assert state.round == 1
    assert state.weights.sample.shape == (20, 3)
    assert_close(update.weights, state.weights.client)


def test_methods_send_nothing_that_they_do_not_need():
    method, network, broadcast = message("fedem", 2)
    update, state = alone(method, network, SGD, data(), broadcast, 0, None, seed=0)
    assert update.counts is None
    assert update.prototypes is None
    assert state.weights.sample is None


def test_hard_clients_train_only_their_own_model():
    method, network, broadcast = message("ifca", 3)
    update, _ = alone(method, network, SGD, data(), broadcast, 0, None, seed=0)
    assert update.started.tolist() == update.weights.tolist()
    assert update.mass.tolist() == (20 * update.weights).tolist()
    assert len(update.models.heads["weight"]) == len(update.models.extractors["1.weight"]) == 1


def test_fesem_joins_the_nearest_model_after_training():
    method, network, broadcast = message("fesem", 2)
    heads = {name: tensor.clone() for name, tensor in broadcast.ensemble.heads.items()}
    # The client trains cluster 0; a copy of where it will end is planted as cluster 1.
    state = ClientState(0, (0, 1), Weights(torch.tensor([[1.0, 0.0]])))
    trained, _ = alone(method, network, SGD, data(), broadcast, 0, state, seed=0)
    assert trained.mass.tolist() == [[20.0, 0.0]]
    for name in heads:
        heads[name][1] = trained.models.heads[name][0]
    extractors = {
        name: torch.stack([tensor[0], trained.models.extractors[name][0]])
        for name, tensor in broadcast.ensemble.extractors.items()
    }
    planted = replace(broadcast, ensemble=Ensemble(extractors, heads, "full"))
    update, after = alone(method, network, SGD, data(), planted, 0, state, seed=0)
    assert update.started.tolist() == [[1.0, 0.0]]
    assert update.mass.tolist() == [[0.0, 20.0]]
    assert after.weights.client.tolist() == [[0.0, 1.0]]
    assert_close(
        update.models.heads["weight"],
        trained.models.heads["weight"],
        msg="the trained model goes to the cluster it joins",
    )


def test_parameter_distance_by_hand_leaves_running_statistics_out():
    extractor = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.BatchNorm1d(1))
    network = Network(extractor, torch.nn.Linear(1, 1))

    def ensemble(weights, heads, statistics):
        k = len(weights)
        return Ensemble(
            {
                "0.weight": torch.tensor(weights).view(k, 1, 1),
                "1.weight": torch.zeros(k, 1),
                "1.bias": torch.zeros(k, 1),
                "1.running_mean": torch.tensor(statistics).view(k, 1),
                "1.running_var": torch.ones(k, 1),
                "1.num_batches_tracked": torch.zeros(k, dtype=torch.long),
            },
            {"weight": torch.tensor(heads).view(k, 1, 1), "bias": torch.zeros(k, 1)},
            "full",
        )

    received = ensemble([0.0, 3.0], [0.0, 4.0], [100.0, 0.0])
    assert_close(parameter_distances(network, received, ensemble([0.0], [0.0], [0.0])), torch.tensor([[0.0, 5.0]]))


def test_hcfl_plus_fesem_compares_heads_only():
    _, network, broadcast = message("hcfl+(fesem)", 2)
    far = {name: tensor + 100 for name, tensor in broadcast.ensemble.extractors.items()}
    trained = Ensemble(far, rows(broadcast.ensemble.heads, [1]), "split")
    (distances,) = parameter_distances(network, broadcast.ensemble, trained)
    assert distances[1] == 0
    assert distances[0] > 0


def test_a_client_that_missed_rounds_catches_up_before_its_e_step():
    changes = (
        Split(2, 0, 2, (7,), (9,), "halve", 0.9, 0.2, 0.3),
        Removal(3, 1),
    )
    method, network, broadcast = message("hcfl+(fedem)", 2, round_=4, changes=changes, ids=(0, 2))
    state = ClientState(1, (0, 1), Weights(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]] * 20)))
    fresh, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    update, after = alone(method, network, SGD, data(), broadcast, 7, state, seed=0)
    # All of its mass was on a cluster that is gone: uniform again, like somebody new.
    assert_close(update.weights, fresh.weights)
    assert after.clusters == (0, 2)
    assert after.weights.sample.shape == (20, 2)


def test_changes_of_its_own_last_round_are_still_news():
    change = Split(1, 0, 1, (7,), (9,), "halve", 0.9, 0.2, 0.3)
    method, network, broadcast = message("hcfl+(fedem)", 2, round_=2, changes=(change,))
    state = ClientState(1, (0,), Weights(torch.ones(1, 1), torch.ones(20, 1)))
    _, after = alone(method, network, SGD, data(), broadcast, 7, state, seed=0)
    assert after.weights.client.shape == (1, 2)


def test_the_result_does_not_depend_on_torch_s_global_generator():
    method, network, broadcast = message("hcfl+(fedrc)", 2)
    torch.manual_seed(1)
    one, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    torch.manual_seed(2)
    two, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    other, _ = alone(method, network, SGD, data(), broadcast, 8, None, seed=0)
    assert torch.equal(one.models.heads["weight"], two.models.heads["weight"])
    assert not torch.equal(one.models.heads["weight"], other.models.heads["weight"]), "batches are the client's own"


def test_an_e_step_by_hand_from_what_was_received():
    method, network, broadcast = message("fedrc", 2)
    shares = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    mine = data()
    update, _ = alone(method, network, SGD, mine, replace(broadcast, class_shares=shares), 7, None, seed=0)
    _, logits = forward(network, broadcast.ensemble, mine.inputs)
    log_l = logits.log_softmax(dim=2)[torch.arange(20), :, mine.labels] - shares.log().T[mine.labels]
    gamma = log_l.softmax(dim=1)  # uniform weights cancel
    assert_close(update.weights, gamma.mean(dim=0, keepdim=True))
    assert_close(update.counts, class_counts(gamma, mine.labels, 3, mine.segments))
    assert update.objective.item() == pytest.approx(objective(log_l, update.weights, mine.segments).item(), rel=1e-6)


def with_statistics(shape, classes):
    extractor = torch.nn.Sequential(torch.nn.Linear(*shape, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.5))
    return extractor, torch.nn.Linear(5, classes)


@pytest.mark.parametrize("topology", ["split", "full"])
def test_the_e_step_runs_in_evaluation_mode(topology):
    _, _, broadcast = message("fedem", 1)
    method = Method(Conditional(), SoftEM(), Fixed(), None, topology, 1, name="mine")
    network, ensemble = initialise(with_statistics, (4,), 3, topology, 1, seed=0)
    mine = data()
    update, _ = alone(method, network, SGD, mine, replace(broadcast, ensemble=ensemble), 7, None, seed=0)
    features = mine.inputs @ ensemble.extractors["0.weight"][0].T + ensemble.extractors["0.bias"][0]
    logits = features / (1 + 1e-5) ** 0.5 @ ensemble.heads["weight"][0].T + ensemble.heads["bias"][0]
    assert update.objective.item() == pytest.approx(
        -cross_entropy(logits, mine.labels, reduction="sum").item(), rel=1e-5
    )


def test_prototypes_are_of_the_extractor_that_everybody_received():
    method, network, broadcast = message("hcfl+(fedrc)", 2)
    update, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    features = network.embed(broadcast.ensemble.extractor(0), data().inputs).detach()
    assert_close(update.prototypes.mean, features.mean(dim=0, keepdim=True))


def test_batches_are_the_round_s_own():
    method, network, broadcast = message("fedem", 2)
    one, two = (
        alone(method, network, SGD, data(), replace(broadcast, round=number), 7, None, seed=0)[0] for number in (1, 2)
    )
    assert not torch.equal(one.models.heads["weight"], two.models.heads["weight"])


def test_dropout_is_seeded_and_the_round_s_and_the_client_s_own():
    _, _, broadcast = message("fedem", 1)
    method = Method(Conditional(), SoftEM(), Fixed(), None, "split", 1, name="mine")

    def dropping(shape, classes):
        return torch.nn.Sequential(torch.nn.Linear(*shape, 5), torch.nn.Dropout(0.5)), torch.nn.Linear(5, classes)

    network, ensemble = initialise(dropping, (4,), 3, "split", 1, seed=0)
    # All samples are the same, so that the order of batches cannot matter.
    equal = LocalData.alone(torch.ones(8, 4), torch.zeros(8, dtype=torch.long), 3)

    def trained(round_, client):
        torch.manual_seed(torch.seed())
        received = replace(broadcast, round=round_, ensemble=ensemble)
        return alone(method, network, SGD, equal, received, client, None, seed=0)[0].models.extractors["0.weight"]

    assert torch.equal(trained(1, 7), trained(1, 7))
    assert not torch.equal(trained(1, 7), trained(2, 7))
    assert not torch.equal(trained(1, 7), trained(1, 8))


@pytest.mark.parametrize("name", ["fesem", "hcfl+(fesem)"])
def test_a_hard_client_trains_its_own_model_with_all_of_its_weight(name):
    method, network, broadcast = message(name, 2)
    state = ClientState(0, (0, 1), Weights(torch.tensor([[0.0, 1.0]])))
    sgd = local_sgd(lr=0.1, weight_decay=0.0)
    update, _ = alone(method, network, sgd, data(), broadcast, 7, state, seed=0)
    assert update.started.tolist() == [[0.0, 1.0]]
    assert (update.models.heads["weight"][0] - broadcast.ensemble.heads["weight"][1]).norm() > 0.01


def test_the_extractor_is_trained_with_the_heads_as_they_are_after_training():
    method, network, broadcast = message("hcfl+(fedem)", 1)
    update, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    extractor, heads, mine = broadcast.ensemble.extractor(0), update.models.heads, data()
    gamma, batches = torch.ones(20, 1), batches_of(1, 7)
    expected = train_extractor(network, extractor, heads, mine.inputs, Supervision(mine.labels, gamma, batches, SGD))
    assert_close(update.models.extractors["1.weight"][0], expected["1.weight"])


def test_a_client_follows_a_split_from_its_own_part():
    change = Split(1, 0, 1, (7,), (9,), "one-hot", 0.9, 0.2, 0.3)
    method, _, broadcast = message("hcfl+(fedem)", 2, round_=2, changes=(change,))
    state = ClientState(1, (0,), Weights(torch.ones(1, 1), torch.ones(20, 1)))
    for client, expected in ((7, [1.0, 0.0]), (9, [0.0, 1.0]), (8, [0.5, 0.5])):
        weights = catch_up(method, broadcast, client, state, Segments((20,)))
        assert weights.client.tolist() == [expected]
        assert weights.sample.tolist() == [expected] * 20


def test_a_client_of_one_sample_does_not_train_a_batch_normalisation():
    method, _, broadcast = message("hcfl+(fedem)", 1)
    network, ensemble = initialise(with_statistics, (4,), 3, "split", 1, seed=0)
    update, _ = alone(method, network, SGD, data(1), replace(broadcast, ensemble=ensemble), 7, None, seed=0)
    assert torch.equal(update.models.extractors["0.weight"], ensemble.extractors["0.weight"])


def first_update(sgd, round_=1, build_network=None):
    """What a StoCFL client sends once."""
    method = build("stocfl")
    network, ensemble = initialise(build_network or MODELS["mlp"], (4,), 3, "full", 2, seed=0, identical=True)
    sent = Broadcast(round_, ensemble, torch.full((2, 3), 1 / 3), (0, 1), (), torch.eye(2))
    sent = replace(sent, anchor=ensemble.select([0]), common=ensemble.select([0]))
    return alone(method, network, sgd, data(), sent, 1, None, seed=0)[0].signatures[1]


def test_a_signature_is_one_plain_epoch_however_long_and_however_held_clients_train():
    once = first_update(SGD)
    assert_close(first_update(replace(SGD, epochs=3)), once, rtol=0, atol=0)
    assert_close(first_update(replace(SGD, proximal=5.0)), once, rtol=0, atol=0)


def test_dropout_in_a_signature_does_not_depend_on_the_round():
    def dropping(shape, classes):
        return torch.nn.Sequential(torch.nn.Linear(*shape, 5), torch.nn.Dropout(0.5)), torch.nn.Linear(5, classes)

    assert torch.equal(first_update(SGD, 1, dropping), first_update(SGD, 4, dropping))


def test_a_signature_of_one_sample_does_not_train_a_batch_normalisation():
    method = build("fedgroup")
    network, ensemble = initialise(with_statistics, (4,), 3, "full", 1, seed=0)
    sent = Broadcast(1, ensemble, torch.full((1, 3), 1 / 3), (0,), (), torch.ones(2, 1), anchor=ensemble)
    update, _ = alone(method, network, SGD, data(1), sent, 1, None, seed=0)
    assert update.signatures[1].abs().max() == 0


def test_a_fuzzy_client_counts_with_its_membership_to_the_power_of_the_fuzzifier():
    _, network, broadcast = message("fedem", 2)
    method = Method(Conditional(), FuzzyCMeans(3.0), Fixed(), None, "full", 2, OwnModel(proximal=0.0), name="mine")
    update, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    assert 0 < update.weights.min() < 0.5
    assert_close(update.mass, 20 * update.weights**3)


def test_the_objective_is_that_of_the_weights_a_client_sends():
    # Cluster 1 is planted where training of cluster 0 ends: the client settles there.
    method, network, broadcast = message("fesem", 2)
    state = ClientState(0, (0, 1), Weights(torch.tensor([[1.0, 0.0]])))
    trained, _ = alone(method, network, SGD, data(), broadcast, 0, state, seed=0)
    ends = Ensemble(
        {
            name: torch.cat([t[:1], trained.models.extractors[name]])
            for name, t in broadcast.ensemble.extractors.items()
        },
        {name: torch.cat([t[:1], trained.models.heads[name]]) for name, t in broadcast.ensemble.heads.items()},
        "full",
    )
    update, _ = alone(method, network, SGD, data(), replace(broadcast, ensemble=ends), 0, state, seed=0)
    assert update.weights.tolist() == [[0.0, 1.0]]
    _, logits = forward(network, ends, data().inputs)
    expected = -cross_entropy(logits[:, 1], data().labels, reduction="sum").item()
    assert update.objective.item() == pytest.approx(expected, rel=1e-5)


def with_gaussians(weighting, clusters=2, local=None):
    """A Joint method, its network, and what it sends in round 2, when the models have left the initial one."""
    method = Method(Joint(2, 3), weighting, Fixed(), None, "full", clusters, local or ClusterModels(), name="mine")
    network, ensemble = initialise(MODELS["mlp"], (4,), 3, "full", 2, seed=0)
    anchor = initialise(MODELS["mlp"], (4,), 3, "full", 1, seed=9)[1]
    features = network.embed(anchor.extractor(0), data().inputs).detach()
    gaussians = initial_gaussians(feature_moments(features), 2, 3, 1e-3)
    sent = Broadcast(2, ensemble, torch.full((2, 3), 1 / 3), (0, 1), (), torch.eye(2), anchor=anchor)
    return method, network, features, replace(sent, gaussians=gaussians)


def test_inputs_are_embedded_by_the_initial_model_not_by_today_s():
    method, network, features, sent = with_gaussians(SoftEM())
    raw, _ = alone(method, network, SGD, data(), replace(sent, gaussians=None), 0, None, seed=0)
    assert_close(raw.moments.first[0], features.double().sum(dim=0))
    later, _ = alone(method, network, SGD, data(), sent, 0, None, seed=0)
    z = sent.gaussians.embed(features).double()
    assert_close(later.moments.second.sum(dim=0), (z**2).sum(dim=0), rtol=1e-4, atol=1e-6)


def test_a_client_keeps_its_mixing_of_gaussians_when_it_settles_after_training():
    method, network, _, sent = with_gaussians(HardByParameters())
    state = ClientState(1, (0, 1), Weights(torch.tensor([[0.0, 1.0]]), components=torch.full((1, 2, 2), 0.5)))
    _, after = alone(method, network, SGD, data(), sent, 1, state, seed=0)
    assert_close(after.weights.components.sum(dim=2), torch.ones(1, 2))
    assert after.weights.components[0, 0].tolist() == [0.5, 0.5]
    assert after.weights.components[0, 1].tolist() != [0.5, 0.5]


def test_a_placed_client_looks_at_its_own_cluster_s_mixing_and_shares_only():
    method, network, features, sent = with_gaussians(Assigned(), None)
    components = torch.tensor([[[0.9, 0.1], [0.2, 0.8]]])
    state = ClientState(1, (0, 1), Weights(torch.tensor([[0.0, 1.0]]), components=components))
    update, _ = alone(method, network, SGD, data(), sent, 1, state, seed=0)
    _, logits = forward(network, sent.ensemble, data().inputs)
    densities = sent.gaussians.log_densities(sent.gaussians.embed(features))
    density = mixture_log_density(components, densities, Segments((20,)))[:, 1]
    expected = density.sum() - cross_entropy(logits[:, 1], data().labels, reduction="sum")
    assert update.objective.item() == pytest.approx(expected.item(), rel=1e-4)
    shares = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    method = replace(method, formulation=Correlation(), topology="split")
    network, ensemble = initialise(MODELS["mlp"], (4,), 3, "split", 2, seed=0)
    sent = replace(sent, ensemble=ensemble, class_shares=shares)
    update, _ = alone(method, network, SGD, data(), sent, 1, None, seed=0)
    _, logits = forward(network, ensemble, data().inputs)
    expected = -cross_entropy(logits[:, 1], data().labels, reduction="sum") - shares[1].log()[data().labels].sum()
    assert update.objective.item() == pytest.approx(expected.item(), rel=1e-5)


def test_nobody_looks_at_data_that_tell_nothing_and_then_there_is_no_objective(monkeypatch):
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    assert must_look(build("cfl"), weights).tolist() == [False, True]
    assert must_look(replace(build("cfl"), topology="split"), weights).tolist() == [True, True], "for the features"
    assert must_look(with_gaussians(Assigned(), None)[0], weights).tolist() == [True, True], "for the density"
    assert must_look(build("ifca"), weights).tolist() == [True, True]
    assert must_look(build("fedavg"), torch.ones(2, 1)).tolist() == [False, False]
    method = build("cfl")
    network, sent = sent_to(method, 2)
    sent, mine = replace(sent, weights=weights), several((5, 6))
    mixed, _ = take_part_with(method, network, SGD, mine, sent, [0, 1], {}, seed=0)
    assert mixed.objective is None
    unplaced, _ = alone(method, network, SGD, data(), sent, 1, None, seed=0)
    assert unplaced.objective.shape == (1,)
    monkeypatch.setattr("hcfl.core.client.forward", lambda *_: pytest.fail("looked"))
    settled, _ = alone(method, network, SGD, data(), sent, 0, None, seed=0)
    assert settled.objective is None
    assert settled.weights.tolist() == [[0.0, 1.0]]
    assert settled.started.tolist() == [[0.0, 1.0]]


def test_feature_norms_are_sent_as_means_of_lengths():
    _, network, broadcast = message("hcfl+(fedrc)", 2)
    method = Method(Conditional(), SoftEM(), SplitAndRemove(0.3), FeatureNormDistance(), "split", 2, name="mine")
    update, _ = alone(method, network, SGD, data(), broadcast, 7, None, seed=0)
    lengths = network.embed(broadcast.ensemble.extractor(0), data().inputs).detach().norm(dim=1)
    assert_close(update.prototypes.mean, lengths.mean().view(1, 1))
    assert_close(update.prototypes.class_means[0, 2, 0], lengths[2::3].mean())


def test_a_kept_head_is_trained_on_the_features_of_the_extractor_that_was_kept_with_it():
    _, network, broadcast = message("hcfl+(fedem)", 2)
    method = Method(Conditional(), SoftEM(), Fixed(), None, "split", 2, OwnModel(proximal=0.0), name="mine")
    own = initialise(MODELS["mlp"], (4,), 3, "split", 1, seed=9)[1]
    state = ClientState(1, (0, 1), Weights(torch.tensor([[0.5, 0.5]])), own)
    update, _ = alone(method, network, SGD, data(), replace(broadcast, round=2), 7, state, seed=0)
    features = network.embed(own.extractor(0), data().inputs).detach()
    gamma, batches = torch.ones(20, 1), batches_of(2, 7)
    expected = train_heads(network, own.heads, features, Supervision(data().labels, gamma, batches, SGD), own.heads)
    assert_close(update.models.heads["weight"], expected["weight"])


GROUP = (
    "fedavg",
    "fedem",
    "ifca",
    "fesem",
    "hcfl+(fedrc)",
    "hcfl+(fesem)",
    "fedrc",
    "stocfl",
    "pacfl",
    "cfl",
    "fedsoft",
)
FEDSOFT_SPLIT = Method(Conditional(), SoftEM(), Fixed(), None, "split", 2, OwnModel(), name="own heads")
FUZZY = Method(Conditional(), FuzzyCMeans(3.0), Fixed(), None, "full", 2, OwnModel(kept=False), name="fuzzy")
NORMS = Method(Conditional(), SoftEM(), SplitAndRemove(0.3), FeatureNormDistance(), "split", 2, name="norms")
HACCS = Method(Conditional(), ByLabelDistribution(), Fixed(), None, "full", 2, name="haccs")
GROUPED = [*map(build, GROUP), FEDSOFT_SPLIT, FUZZY, NORMS, HACCS]


def drawn(*shape, seed=0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def several(sizes) -> LocalData:
    """Clients of these sizes; the fewer samples one has, the fewer classes."""
    parts = [data(samples, seed=client) for client, samples in enumerate(sizes)]
    inputs, labels = torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts])
    return LocalData(inputs, labels, 3, Segments(tuple(sizes)))


def smooth(shape, classes):
    """A network without kinks: at a kink, a last digit that differs can turn a gradient on or off."""
    return torch.nn.Sequential(torch.nn.Linear(*shape, 8), torch.nn.Tanh()), torch.nn.Linear(8, classes)


def sent_to(method, clients, gaussians=True):
    """The network, and what the server sends in round 4, by when everything has left its start."""
    clusters = 1 if method.name == "fedavg" else 2
    network, ensemble = initialise(smooth, (4,), 3, method.topology, clusters, seed=0)
    one = initialise(smooth, (4,), 3, method.topology, 1, seed=9)[1]
    # Server's rows: every second client is placed in a cluster, where it has not told otherwise.
    weights = torch.full((clients, clusters), 1 / clusters)
    weights[::2] = torch.eye(clusters)[0]
    soft = not method.weighting.hard
    sent = Broadcast(
        round=4,
        ensemble=ensemble,
        class_shares=drawn(clusters, 3, seed=1).add(0.1).softmax(dim=1),
        clusters=tuple(range(clusters)),
        changes=(),
        weights=weights * 0.5 + 0.5 / clusters if soft else weights,
        anchor=one if method.uses_anchor else None,
        common=one if method.local.uses_global_model else None,
    )
    if method.formulation.gaussians and gaussians:
        features = network.embed(one.extractor(0), data(30).inputs).detach()
        sent = replace(
            sent, gaussians=initial_gaussians(feature_moments(features), method.formulation.gaussians, 3, 1e-3)
        )
    return network, sent


def state_of(method, client, samples, clusters) -> ClientState:
    """What a client kept from round 2."""
    if method.weighting.hard:
        weights = torch.eye(clusters)[[client % clusters]]
    else:
        weights = drawn(1, clusters, seed=client).softmax(dim=1)
    sample = drawn(samples, clusters, seed=10 + client).softmax(dim=1)
    number = method.formulation.gaussians
    components = drawn(1, clusters, number, seed=20 + client).softmax(dim=2) if number else None
    sample_wise = method.weighting.start(weights, Segments((samples,))).sample is not None
    own = initialise(smooth, (4,), 3, method.topology, 1, seed=30 + client)[1] if method.local.kept else None
    return ClientState(2, tuple(range(clusters)), Weights(weights, sample if sample_wise else None, components), own)


def equal(one, two) -> None:
    """Whether two dataclasses hold the same, however deep; numbers within what other orders of summing may change."""
    assert type(one) is type(two)
    if isinstance(one, torch.Tensor):
        assert_close(one, two, rtol=1e-5, atol=1e-6)
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for name, value in one.items():
            equal(value, two[name])
    elif hasattr(one, "__dataclass_fields__"):
        for field in fields(one):
            equal(getattr(one, field.name), getattr(two, field.name))
    else:
        assert one == two


def per_sample(update) -> Update:
    """Divide the objective, whose terms can cancel, by how many they are."""
    return replace(update, objective=None if update.objective is None else update.objective / update.sizes)


def check_group(method, network, sent, sizes, states, sgd=SGD) -> tuple[Update, list[ClientState]]:
    """A group gives what each of its clients gives alone."""
    clients, mine = list(range(len(sizes))), several(sizes)
    together, kept = take_part_with(method, network, sgd, mine, sent, clients, states, seed=0)
    parts = zip(clients, mine.segments.split(mine.inputs), mine.segments.split(mine.labels), strict=True)
    done = [alone(method, network, sgd, LocalData.alone(x, y, 3), sent, c, states.get(c), 0) for c, x, y in parts]
    equal(per_sample(together), per_sample(Update.join([update for update, _ in done])))
    assert len(kept) == len(done)
    for state, (_, expected) in zip(kept, done, strict=True):
        equal(state, expected)
    return together, kept


@pytest.mark.parametrize("method", GROUPED, ids=lambda method: method.name)
@settings(max_examples=8)
@given(group=st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=4), epochs=st.integers(1, 2))
def test_a_group_gives_what_each_of_its_clients_gives_alone(method, group, epochs):
    """Whatever the others' sizes, and whoever takes part for the first time."""
    network, sent = sent_to(method, len(group))
    sizes, clusters = [samples for samples, _ in group], len(sent.clusters)
    states = {c: state_of(method, c, samples, clusters) for c, (samples, new) in enumerate(group) if not new}
    update, _ = check_group(method, network, sent, sizes, states, replace(SGD, epochs=epochs))
    signed = set(range(len(group))) - set(states) if {"signatures", "first updates"} & method.needs else set()
    assert set(update.signatures) == signed


@pytest.mark.parametrize("gaussians", [True, False])
@pytest.mark.parametrize("weighting", [SoftEM(), HardByParameters(), Assigned()])
@pytest.mark.parametrize("known", [(), (1,), (0, 2), (0, 1, 2)])
def test_a_group_models_inputs_as_each_of_its_clients_does_alone(known, weighting, gaussians):
    """FedGMM: every client has its own mixing of Gaussians; moments are sums."""
    placed_by_server = isinstance(weighting, Assigned)
    method = replace(build("fedgmm"), weighting=weighting, clusters=None if placed_by_server else 2)
    sizes = (7, 1, 16)
    network, sent = sent_to(method, 3, gaussians)
    states = {client: state_of(method, client, sizes[client], 2) for client in known}
    update, kept = check_group(method, network, sent, sizes, states)
    assert update.moments.mass.sum().item() == pytest.approx(24)
    assert [state.weights.components.shape for state in kept] == [(1, 2, 3)] * 3


@pytest.mark.parametrize("method", GROUPED, ids=lambda method: method.name)
def test_a_group_whose_inputs_are_scaled_when_they_are_looked_at_gives_the_same(method):
    network, sent = sent_to(method, 3)
    states = {1: state_of(method, 1, 4, len(sent.clusters))}
    mine, scaling = several((9, 4, 6)), Scaling(torch.full((4,), 3.0), torch.full((4,), 0.5))
    stored = replace(mine, inputs=Scaled((mine.inputs * 8).round().to(torch.int16), scaling))
    ready = replace(mine, inputs=stored.inputs[:])
    one, two = (take_part_with(method, network, SGD, x, sent, [0, 1, 2], states, seed=0) for x in (stored, ready))
    equal(one[0], two[0])
    for kept, expected in zip(one[1], two[1], strict=True):
        equal(kept, expected)


@pytest.mark.parametrize(("name", "rule"), [("cfl", "move"), ("hcfl+(fesem)", "move"), ("hcfl+(fedrc)", "halve")])
def test_each_of_a_group_follows_the_changes_that_it_missed(name, rule):
    method = build(name)
    network, sent = sent_to(method, 5)
    sent = replace(sent, changes=(Split(2, 0, 1, (0,), (1,), rule, 0.9, 0.2, 0.3),))
    sizes = (9, 4, 12, 3, 6)
    # 0 and 1 took part in the split, 2 missed it, 3 and 4 are new.
    states = {client: state_of(method, client, sizes[client], 1) for client in range(3)}
    update, kept = check_group(method, network, sent, sizes, states)
    assert [state.clusters for state in kept] == [(0, 1)] * 5
    if name == "cfl":
        assert update.weights[:2].tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_in_a_group_who_is_placed_looks_at_its_own_cluster_and_others_at_all():
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    assert placed(build("cfl"), weights).tolist() == [True, False, True]
    assert looked_at(build("cfl"), weights).tolist() == [[False, True], [True, True], [True, False]]
    assert placed(build("ifca"), weights).tolist() == [False] * 3
    assert looked_at(build("ifca"), weights).tolist() == [[True, True]] * 3


def test_a_group_of_placed_and_other_clients_of_cfl():
    """Who is placed stays; who is not takes the cluster with the lowest loss, which may be either."""
    method = build("cfl")
    network, sent = sent_to(method, 4)
    sizes = (20, 5, 9, 14)
    states = {
        1: state_of(method, 1, 5, 2),
        3: replace(state_of(method, 3, 14, 2), weights=Weights(torch.ones(1, 2) / 2)),
    }
    update, _ = check_group(method, network, sent, sizes, states)
    mine = several(sizes)
    _, logits = forward(network, sent.ensemble, mine.inputs)
    losses = torch.stack([cross_entropy(logits[:, k], mine.labels, reduction="none") for k in range(2)], dim=1)
    best = mine.segments.mean(losses)[3].argmin().item()
    # 0 is new, and placed by the server; 1 knows its place; 2 is like 0; 3 has taken part and is nowhere.
    assert update.weights.argmax(dim=1).tolist() == [0, 1, 0, best]
    assert update.weights.max(dim=1).values.tolist() == [1.0] * 4


def test_batch_normalisation_and_dropout_are_each_client_s_own_in_a_group():
    method = build("hcfl+(fedem)", clusters=2)
    _, sent = sent_to(method, 3)
    network, ensemble = initialise(with_statistics, (4,), 3, "split", 2, seed=0)
    check_group(method, network, replace(sent, ensemble=ensemble), (9, 1, 17), {})


def test_what_clients_of_a_group_keep_shares_no_memory():
    """Else one who stays away would keep the models of everybody in its last round alive."""
    network, sent = sent_to(build("fedsoft"), 3)
    update, kept = take_part_with(build("fedsoft"), network, SGD, several((5, 6, 7)), sent, [0, 1, 2], {}, seed=0)
    for state in kept:
        tensors = [state.weights.client, *state.own.heads.values(), *state.own.extractors.values()]
        assert all(tensor.untyped_storage().nbytes() == tensor.numel() * 4 for tensor in tensors)
    assert torch.equal(kept[1].own.heads["weight"], update.models.heads["weight"][[1]])


def test_in_a_group_only_those_who_are_new_start_anew():
    """FedSoft counts every other round, and at once who was never counted; fuzzy c-means keep what training gave."""
    for method in (build("fedsoft", clusters=2), FUZZY):
        network, sent = sent_to(method, 2)
        state, mine = state_of(method, 0, 9, 2), several((9, 12))
        seen = []

        def watch(network, job, seen=seen):
            seen.append(job.plan.started[:, 0])
            return train(network, job)

        take_part_with(method, network, SGD, mine, sent, [0, 1], {0: state}, 0, watch)
        assert_close(seen[0][0], state.weights.client[0])
        _, logits = forward(network, sent.ensemble, mine.inputs[9:])
        log_prob = logits.log_softmax(dim=2)[torch.arange(12), :, mine.labels[9:]]
        if method is FUZZY:
            assert seen[0][1].tolist() == torch.eye(2)[log_prob.mean(dim=0).argmax()].tolist()
        else:
            shares = torch.eye(2)[log_prob.argmax(dim=1)].mean(dim=0).clamp_min(1e-4)
            assert_close(seen[0][1], shares / shares.sum())


def test_the_class_mix_of_each_of_a_group_by_hand():
    mix = class_mix(torch.tensor([0, 0, 2, 1, 1]), 3, Segments((3, 2)))
    assert_close(mix, torch.tensor([[2 / 3, 0.0, 1 / 3], [0.0, 1.0, 0.0]]))
