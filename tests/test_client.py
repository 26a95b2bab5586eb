"""One client's round: who is trained, what is sent, how a late client catches up (spec §3-§5)."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

from hcfl import rng
from hcfl.client import catch_up, parameter_distances, take_part
from hcfl.clusters import Removal, Split
from hcfl.ensemble import Ensemble, forward, initialise, rows
from hcfl.local import ClusterModels, OwnModel
from hcfl.methods import Method, build
from hcfl.models import MODELS, Network
from hcfl.state import Broadcast, ClientState
from hcfl.tiers import (
    Assigned,
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
from hcfl.tiers.formulation import class_counts, objective
from hcfl.tiers.gaussians import feature_moments, found, mixture_log_density
from hcfl.training import LocalData, LocalSGD, batch_indices, train_extractor, train_heads

SGD = LocalSGD(lr=0.1, batch=8)


def data(samples=20, seed=0) -> LocalData:
    generator = torch.Generator().manual_seed(seed)
    return LocalData(torch.randn(samples, 4, generator=generator), torch.arange(samples) % 3, 3)


def message(name, clusters, round_=1, changes=(), ids=None) -> tuple:
    method = build(name, clusters=clusters) if name != "fedavg" else build(name)
    network, ensemble = initialise(MODELS["mlp"], (4,), 3, method.topology, clusters, seed=0)
    shares = torch.full((clusters, 3), 1 / 3)
    weights = torch.full((10, clusters), 1 / clusters)
    return method, network, Broadcast(round_, ensemble, shares, ids or tuple(range(clusters)), tuple(changes), weights)


def test_soft_clients_train_every_head_and_report_what_the_method_needs():
    method, network, broadcast = message("hcfl+(fedrc)", 3)
    update, state = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    assert update.client == 7
    assert update.samples == 20
    assert update.mass.tolist() == update.started.tolist() == torch.eye(3).tolist()
    assert len(update.heads["weight"]) == 3
    assert len(update.extractors["1.weight"]) == 1
    assert update.counts.shape == (3, 3)
    assert update.counts.sum().item() == pytest.approx(20)
    assert update.prototypes.class_counts.tolist() == [7.0, 7.0, 6.0]
    assert state.round == 1
    assert state.weights.sample.shape == (20, 3)
    assert_close(update.weights, state.weights.client)


def test_methods_send_nothing_that_they_do_not_need():
    method, network, broadcast = message("fedem", 2)
    update, state = take_part(method, network, SGD, data(), broadcast, 0, None, seed=0)
    assert update.counts is None
    assert update.prototypes is None
    assert state.weights.sample is None


def test_hard_clients_train_only_their_own_model():
    method, network, broadcast = message("ifca", 3)
    update, _ = take_part(method, network, SGD, data(), broadcast, 0, None, seed=0)
    assert update.mass.tolist() == update.started.tolist() == [update.weights.tolist()]
    assert len(update.heads["weight"]) == len(update.extractors["1.weight"]) == 1


def test_fesem_joins_the_nearest_model_after_training():
    method, network, broadcast = message("fesem", 2)
    heads = {name: tensor.clone() for name, tensor in broadcast.ensemble.heads.items()}
    # The client trains cluster 0; a copy of where it will end is planted as cluster 1.
    state = ClientState(0, (0, 1), Weights(torch.tensor([1.0, 0.0])))
    trained, _ = take_part(method, network, SGD, data(), broadcast, 0, state, seed=0)
    assert trained.mass.tolist() == [[1.0, 0.0]]
    for name in heads:
        heads[name][1] = trained.heads[name][0]
    extractors = {
        name: torch.stack([tensor[0], trained.extractors[name][0]])
        for name, tensor in broadcast.ensemble.extractors.items()
    }
    planted = replace(broadcast, ensemble=Ensemble(extractors, heads, "full"))
    update, after = take_part(method, network, SGD, data(), planted, 0, state, seed=0)
    assert update.started.tolist() == [[1.0, 0.0]]
    assert update.mass.tolist() == [[0.0, 1.0]]
    assert after.weights.client.tolist() == [0.0, 1.0]
    assert_close(update.heads["weight"], trained.heads["weight"], msg="the trained model goes to the cluster it joins")


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
    assert_close(parameter_distances(network, received, ensemble([0.0], [0.0], [0.0])), torch.tensor([0.0, 5.0]))


def test_hcfl_plus_fesem_compares_heads_only():
    _, network, broadcast = message("hcfl+(fesem)", 2)
    far = {name: tensor + 100 for name, tensor in broadcast.ensemble.extractors.items()}
    trained = Ensemble(far, rows(broadcast.ensemble.heads, [1]), "split")
    distances = parameter_distances(network, broadcast.ensemble, trained)
    assert distances[1] == 0
    assert distances[0] > 0


def test_a_client_that_missed_rounds_catches_up_before_its_e_step():
    changes = (
        Split(2, 0, 2, (7,), (9,), "halve", 0.9, 0.2, 0.3),
        Removal(3, 1),
    )
    method, network, broadcast = message("hcfl+(fedem)", 2, round_=4, changes=changes, ids=(0, 2))
    state = ClientState(1, (0, 1), Weights(torch.tensor([0.0, 1.0]), torch.tensor([[0.5, 0.5]] * 20)))
    fresh, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    update, after = take_part(method, network, SGD, data(), broadcast, 7, state, seed=0)
    # All of its mass was on a cluster that is gone: uniform again, like somebody new.
    assert_close(update.weights, fresh.weights)
    assert after.clusters == (0, 2)
    assert after.weights.sample.shape == (20, 2)


def test_changes_of_its_own_last_round_are_still_news():
    change = Split(1, 0, 1, (7,), (9,), "halve", 0.9, 0.2, 0.3)
    method, network, broadcast = message("hcfl+(fedem)", 2, round_=2, changes=(change,))
    state = ClientState(1, (0,), Weights(torch.ones(1), torch.ones(20, 1)))
    _, after = take_part(method, network, SGD, data(), broadcast, 7, state, seed=0)
    assert after.weights.client.shape == (2,)


def test_the_result_does_not_depend_on_torch_s_global_generator():
    method, network, broadcast = message("hcfl+(fedrc)", 2)
    torch.manual_seed(1)
    one, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    torch.manual_seed(2)
    two, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    other, _ = take_part(method, network, SGD, data(), broadcast, 8, None, seed=0)
    assert torch.equal(one.heads["weight"], two.heads["weight"])
    assert not torch.equal(one.heads["weight"], other.heads["weight"]), "batches are the client's own"


def test_an_e_step_by_hand_from_what_was_received():
    method, network, broadcast = message("fedrc", 2)
    shares = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    mine = data()
    update, _ = take_part(method, network, SGD, mine, replace(broadcast, class_shares=shares), 7, None, seed=0)
    _, logits = forward(network, broadcast.ensemble, mine.inputs)
    log_l = logits.log_softmax(dim=2)[torch.arange(20), :, mine.labels] - shares.log().T[mine.labels]
    gamma = log_l.softmax(dim=1)  # uniform weights cancel
    assert_close(update.weights, gamma.mean(dim=0))
    assert_close(update.counts, class_counts(gamma, mine.labels, 3))
    assert update.objective == pytest.approx(objective(log_l, update.weights).item(), rel=1e-6)


def with_statistics(shape, classes):
    extractor = torch.nn.Sequential(torch.nn.Linear(*shape, 5), torch.nn.BatchNorm1d(5), torch.nn.Dropout(0.5))
    return extractor, torch.nn.Linear(5, classes)


@pytest.mark.parametrize("topology", ["split", "full"])
def test_the_e_step_runs_in_evaluation_mode(topology):
    _, _, broadcast = message("fedem", 1)
    method = Method(Conditional(), SoftEM(), Fixed(), None, topology, 1, name="mine")
    network, ensemble = initialise(with_statistics, (4,), 3, topology, 1, seed=0)
    mine = data()
    update, _ = take_part(method, network, SGD, mine, replace(broadcast, ensemble=ensemble), 7, None, seed=0)
    features = mine.inputs @ ensemble.extractors["0.weight"][0].T + ensemble.extractors["0.bias"][0]
    logits = features / (1 + 1e-5) ** 0.5 @ ensemble.heads["weight"][0].T + ensemble.heads["bias"][0]
    assert update.objective == pytest.approx(-cross_entropy(logits, mine.labels, reduction="sum").item(), rel=1e-5)


def test_prototypes_are_of_the_extractor_that_everybody_received():
    method, network, broadcast = message("hcfl+(fedrc)", 2)
    update, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    features = network.embed(broadcast.ensemble.extractor(0), data().inputs).detach()
    assert_close(update.prototypes.mean, features.mean(dim=0))


def test_batches_are_the_round_s_own():
    method, network, broadcast = message("fedem", 2)
    one, two = (
        take_part(method, network, SGD, data(), replace(broadcast, round=number), 7, None, seed=0)[0]
        for number in (1, 2)
    )
    assert not torch.equal(one.heads["weight"], two.heads["weight"])


def test_dropout_is_seeded_and_the_round_s_and_the_client_s_own():
    _, _, broadcast = message("fedem", 1)
    method = Method(Conditional(), SoftEM(), Fixed(), None, "split", 1, name="mine")

    def dropping(shape, classes):
        return torch.nn.Sequential(torch.nn.Linear(*shape, 5), torch.nn.Dropout(0.5)), torch.nn.Linear(5, classes)

    network, ensemble = initialise(dropping, (4,), 3, "split", 1, seed=0)
    # All samples are the same, so that the order of batches cannot matter.
    equal = LocalData(torch.ones(8, 4), torch.zeros(8, dtype=torch.long), 3)

    def trained(round_, client):
        torch.manual_seed(torch.seed())
        received = replace(broadcast, round=round_, ensemble=ensemble)
        return take_part(method, network, SGD, equal, received, client, None, seed=0)[0].extractors["0.weight"]

    assert torch.equal(trained(1, 7), trained(1, 7))
    assert not torch.equal(trained(1, 7), trained(2, 7))
    assert not torch.equal(trained(1, 7), trained(1, 8))


@pytest.mark.parametrize("name", ["fesem", "hcfl+(fesem)"])
def test_a_hard_client_trains_its_own_model_with_all_of_its_weight(name):
    method, network, broadcast = message(name, 2)
    state = ClientState(0, (0, 1), Weights(torch.tensor([0.0, 1.0])))
    sgd = LocalSGD(lr=0.1, weight_decay=0.0)
    update, _ = take_part(method, network, sgd, data(), broadcast, 7, state, seed=0)
    assert update.started.tolist() == [[0.0, 1.0]]
    assert (update.heads["weight"][0] - broadcast.ensemble.heads["weight"][1]).norm() > 0.01


def test_the_extractor_is_trained_with_the_heads_as_they_are_after_training():
    method, network, broadcast = message("hcfl+(fedem)", 1)
    update, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    batches = batch_indices(20, SGD, rng.torch_generator(0, "batches", 1, 7))
    extractor = broadcast.ensemble.extractor(0)
    expected = train_extractor(network, extractor, update.heads, data(), torch.ones(20, 1), batches, SGD)
    assert_close(update.extractors["1.weight"][0], expected["1.weight"])


def test_a_client_follows_a_split_from_its_own_part():
    change = Split(1, 0, 1, (7,), (9,), "one-hot", 0.9, 0.2, 0.3)
    method, _, broadcast = message("hcfl+(fedem)", 2, round_=2, changes=(change,))
    state = ClientState(1, (0,), Weights(torch.ones(1), torch.ones(20, 1)))
    for client, expected in ((7, [1.0, 0.0]), (9, [0.0, 1.0]), (8, [0.5, 0.5])):
        weights = catch_up(method, data(), broadcast, client, state)
        assert weights.client.tolist() == expected
        assert weights.sample.tolist() == [expected] * 20


def test_a_client_of_one_sample_does_not_train_a_batch_normalisation():
    method, _, broadcast = message("hcfl+(fedem)", 1)
    network, ensemble = initialise(with_statistics, (4,), 3, "split", 1, seed=0)
    update, _ = take_part(method, network, SGD, data(1), replace(broadcast, ensemble=ensemble), 7, None, seed=0)
    assert torch.equal(update.extractors["0.weight"], ensemble.extractors["0.weight"])


def first_update(sgd, round_=1, build_network=None):
    """What a StoCFL client sends once."""
    method = build("stocfl")
    network, ensemble = initialise(build_network or MODELS["mlp"], (4,), 3, "full", 2, seed=0, identical=True)
    sent = Broadcast(round_, ensemble, torch.full((2, 3), 1 / 3), (0, 1), (), torch.eye(2))
    sent = replace(sent, anchor=ensemble.select([0]), common=ensemble.select([0]))
    return take_part(method, network, sgd, data(), sent, 1, None, seed=0)[0].signature


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
    update, _ = take_part(method, network, SGD, data(1), sent, 1, None, seed=0)
    assert update.signature.abs().max() == 0


def test_a_fuzzy_client_counts_with_its_membership_to_the_power_of_the_fuzzifier():
    _, network, broadcast = message("fedem", 2)
    method = Method(Conditional(), FuzzyCMeans(3.0), Fixed(), None, "full", 2, OwnModel(proximal=0.0), name="mine")
    update, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    assert 0 < update.weights.min() < 0.5
    assert_close(update.mass, update.weights.unsqueeze(0) ** 3)


def test_the_objective_is_that_of_the_weights_a_client_sends():
    # Cluster 1 is planted where training of cluster 0 ends: the client settles there.
    method, network, broadcast = message("fesem", 2)
    state = ClientState(0, (0, 1), Weights(torch.tensor([1.0, 0.0])))
    trained, _ = take_part(method, network, SGD, data(), broadcast, 0, state, seed=0)
    ends = Ensemble(
        {name: torch.cat([t[:1], trained.extractors[name]]) for name, t in broadcast.ensemble.extractors.items()},
        {name: torch.cat([t[:1], trained.heads[name]]) for name, t in broadcast.ensemble.heads.items()},
        "full",
    )
    update, _ = take_part(method, network, SGD, data(), replace(broadcast, ensemble=ends), 0, state, seed=0)
    assert update.weights.tolist() == [0.0, 1.0]
    _, logits = forward(network, ends, data().inputs)
    expected = -cross_entropy(logits[:, 1], data().labels, reduction="sum").item()
    assert update.objective == pytest.approx(expected, rel=1e-5)


def with_gaussians(weighting, clusters=2, local=None):
    """A Joint method, its network, and what it sends in round 2, when the models have left the initial one."""
    method = Method(Joint(2, 3), weighting, Fixed(), None, "full", clusters, local or ClusterModels(), name="mine")
    network, ensemble = initialise(MODELS["mlp"], (4,), 3, "full", 2, seed=0)
    anchor = initialise(MODELS["mlp"], (4,), 3, "full", 1, seed=9)[1]
    features = network.embed(anchor.extractor(0), data().inputs).detach()
    gaussians = found(feature_moments(features), 2, 3, 1e-3)
    sent = Broadcast(2, ensemble, torch.full((2, 3), 1 / 3), (0, 1), (), torch.eye(2), anchor=anchor)
    return method, network, features, replace(sent, gaussians=gaussians)


def test_inputs_are_embedded_by_the_initial_model_not_by_today_s():
    method, network, features, sent = with_gaussians(SoftEM())
    raw, _ = take_part(method, network, SGD, data(), replace(sent, gaussians=None), 0, None, seed=0)
    assert_close(raw.moments.first[0], features.double().sum(dim=0))
    later, _ = take_part(method, network, SGD, data(), sent, 0, None, seed=0)
    z = sent.gaussians.embed(features).double()
    assert_close(later.moments.second.sum(dim=0), (z**2).sum(dim=0), rtol=1e-4, atol=1e-6)


def test_a_client_keeps_its_mixing_of_gaussians_when_it_settles_after_training():
    method, network, _, sent = with_gaussians(HardByParameters())
    state = ClientState(1, (0, 1), Weights(torch.tensor([0.0, 1.0]), components=torch.full((2, 2), 0.5)))
    _, after = take_part(method, network, SGD, data(), sent, 1, state, seed=0)
    assert_close(after.weights.components.sum(dim=1), torch.ones(2))
    assert after.weights.components[0].tolist() == [0.5, 0.5]
    assert after.weights.components[1].tolist() != [0.5, 0.5]


def test_a_placed_client_looks_at_its_own_cluster_s_mixing_and_shares_only():
    method, network, features, sent = with_gaussians(Assigned(), None)
    components = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    state = ClientState(1, (0, 1), Weights(torch.tensor([0.0, 1.0]), components=components))
    update, _ = take_part(method, network, SGD, data(), sent, 1, state, seed=0)
    _, logits = forward(network, sent.ensemble, data().inputs)
    density = mixture_log_density(components, sent.gaussians.log_densities(sent.gaussians.embed(features)))[:, 1]
    expected = density.sum() - cross_entropy(logits[:, 1], data().labels, reduction="sum")
    assert update.objective == pytest.approx(expected.item(), rel=1e-4)
    shares = torch.tensor([[0.8, 0.1, 0.1], [0.2, 0.3, 0.5]])
    update, _ = take_part(
        replace(method, formulation=Correlation()), network, SGD, data(), replace(sent, class_shares=shares), 1, None, 0
    )
    expected = -cross_entropy(logits[:, 1], data().labels, reduction="sum") - shares[1].log()[data().labels].sum()
    assert update.objective == pytest.approx(expected.item(), rel=1e-5)


def test_feature_norms_are_sent_as_means_of_lengths():
    _, network, broadcast = message("hcfl+(fedrc)", 2)
    method = Method(Conditional(), SoftEM(), SplitAndRemove(0.3), FeatureNormDistance(), "split", 2, name="mine")
    update, _ = take_part(method, network, SGD, data(), broadcast, 7, None, seed=0)
    lengths = network.embed(broadcast.ensemble.extractor(0), data().inputs).detach().norm(dim=1)
    assert_close(update.prototypes.mean, lengths.mean().view(1))
    assert_close(update.prototypes.class_means[2, 0], lengths[2::3].mean())


def test_a_kept_head_is_trained_on_the_features_of_the_extractor_that_was_kept_with_it():
    _, network, broadcast = message("hcfl+(fedem)", 2)
    method = Method(Conditional(), SoftEM(), Fixed(), None, "split", 2, OwnModel(proximal=0.0), name="mine")
    own = initialise(MODELS["mlp"], (4,), 3, "split", 1, seed=9)[1]
    state = ClientState(1, (0, 1), Weights(torch.tensor([0.5, 0.5])), own)
    update, _ = take_part(method, network, SGD, data(), replace(broadcast, round=2), 7, state, seed=0)
    batches = batch_indices(20, SGD, rng.torch_generator(0, "batches", 2, 7))
    features = network.embed(own.extractor(0), data().inputs).detach()
    expected = train_heads(network, own.heads, features, data().labels, torch.ones(20, 1), batches, SGD, own.heads)
    assert_close(update.heads["weight"], expected["weight"])
