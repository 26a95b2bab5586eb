"""The loop: equivalences between methods, planted clusters, same seed same result."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from hcfl.core import rounds, server
from hcfl.core.client import take_part
from hcfl.core.cluster_log import Split, follow, missed_split
from hcfl.core.lost_ids import lists_of, unlisted
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.data import Federation
from hcfl.engines import Batched, Sequential
from hcfl.errors import InputError
from hcfl.methods import METHODS, Method, build
from hcfl.methods.local_models import ClusterModels, OwnModel
from hcfl.models.ensemble import Ensemble, forward, outputs_of
from hcfl.runs.progress import describe_change
from hcfl.tiers import (
    ByLabelDistribution,
    Conditional,
    Correlation,
    Fixed,
    FuzzyCMeans,
    HardByLoss,
    HardByParameters,
    PrototypeDistance,
    SampleWiseEM,
    SoftEM,
    SplitAndRemove,
    UpdateCosine,
    Weights,
)
from helpers import blobs, local_sgd, play, same, setting, start
from public_cfl import play_public


@pytest.mark.parametrize("weighting", [HardByLoss(), HardByParameters(), SoftEM(), SampleWiseEM(0.4)])
@pytest.mark.parametrize("formulation", [Conditional(), Correlation()])
def test_one_cluster_of_full_models_is_fedavg(skewed, formulation, weighting):
    expected, fedavg = play(skewed, build("fedavg"))
    found, records = play(skewed, Method(formulation, weighting, Fixed(), None, "full", 1, name="mine"))
    same(found.server.ensemble.heads, expected.server.ensemble.heads)
    same(found.server.ensemble.extractors, expected.server.ensemble.extractors)
    assert [record.val for record in records] == [record.val for record in fedavg]
    assert [record.test for record in records] == [record.test for record in fedavg]


TOGETHER = local_sgd(lr=0.1, batch=16, epochs=2, order="together")


@pytest.mark.parametrize("weighting", [SoftEM(), SampleWiseEM(0.4)])
@pytest.mark.parametrize("formulation", [Conditional(), Correlation()])
def test_one_cluster_whose_head_and_extractor_train_together_is_fedavg(skewed, formulation, weighting):
    expected, fedavg = play(skewed, build("fedavg"))
    method = Method(formulation, weighting, Fixed(), None, "split", 1, name="mine")
    found, records = play(skewed, method, sgd=TOGETHER)
    same(found.server.ensemble.heads, expected.server.ensemble.heads)
    same(found.server.ensemble.extractors, expected.server.ensemble.extractors)
    assert [record.val for record in records] == [record.val for record in fedavg]
    blocks, _ = play(skewed, method)
    assert not torch.equal(blocks.server.ensemble.heads["weight"], found.server.ensemble.heads["weight"])


def test_that_is_fedavg_with_dropout_too(skewed):
    fedavg, method = build("fedavg"), Method(Conditional(), SoftEM(), Fixed(), None, "split", 1, name="mine")
    network, _ = start(skewed, fedavg)
    network.extractor.feature_dropout = 0.3
    expected, _ = play(skewed, fedavg, network=network)
    found, _ = play(skewed, method, sgd=TOGETHER, network=network)
    same(found.server.ensemble.heads, expected.server.ensemble.heads)
    same(found.server.ensemble.extractors, expected.server.ensemble.extractors)
    plain, _ = play(skewed, fedavg)
    assert not torch.equal(plain.server.ensemble.heads["weight"], expected.server.ensemble.heads["weight"])


def test_full_models_have_no_order(skewed):
    one, two = (play(skewed, build("fedem"), **changes)[0] for changes in ({}, {"sgd": TOGETHER}))
    same(one.server.ensemble.heads, two.server.ensemble.heads)


@pytest.mark.parametrize("formulation", [Conditional(), Correlation()])
def test_mu_0_is_client_wise_soft_em_in_the_split_topology(planted, formulation):
    adaptation, distance = SplitAndRemove(0.3), PrototypeDistance("CSCP")
    sample_wise = Method(formulation, SampleWiseEM(0.0), adaptation, distance, "split", 1, name="a")
    client_wise = Method(formulation, SoftEM(), adaptation, distance, "split", 1, name="b")
    one, records_one = play(planted, sample_wise, 5)
    two, records_two = play(planted, client_wise, 5)
    assert_close(one.server.weights, two.server.weights)
    for name, tensor in one.server.ensemble.heads.items():
        assert_close(tensor, two.server.ensemble.heads[name])
    assert [record.changes for record in records_one] != [()] * 5, "the test must see a split"
    assert [len(r.changes) for r in records_one] == [len(r.changes) for r in records_two]


def found_partition(state):
    return {
        frozenset(torch.nonzero(state.server.members == k).flatten().tolist())
        for k in range(len(state.server.clusters))
    }


def true_partition(federation):
    concept = federation.truth.concept
    return {frozenset((concept == k).nonzero()[0].tolist()) for k in set(concept.tolist())}


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "hcfl+(fedem)", "hcfl+(fesem)"])
def test_hcfl_plus_finds_planted_clusters_that_it_was_not_told(planted, name):
    state, records = play(planted, build(name), 12)
    assert found_partition(state) == true_partition(planted)
    assert records[-1].quality.ari == 1.0
    assert records[-1].test > 0.9


def test_one_model_cannot_serve_planted_clusters(planted):
    _, fedavg = play(planted, build("fedavg"), 12)
    assert fedavg[-1].test < 0.6


@pytest.mark.parametrize("name", ["ifca", "fedem", "fedrc"])
def test_fixed_k_methods_find_planted_clusters(planted, name):
    # Symmetry between identical starts must break: one of a few seeds is enough, all of them usually do.
    found = (play(planted, build(name), 15, seed=seed)[0] for seed in range(4))
    assert any(found_partition(state) == true_partition(planted) for state in found)


@pytest.mark.parametrize("name", METHODS)
def test_same_seed_same_result_whatever_the_order(planted, name):
    one, records_one = play(planted, build(name), 3, participation=0.6)
    torch.manual_seed(12345)
    two, records_two = play(planted, build(name), 3, participation=0.6, engine=Reversed())
    same(one.server.ensemble.heads, two.server.ensemble.heads)
    assert torch.equal(one.server.weights, two.server.weights)
    for a, b in zip(records_one, records_two, strict=True):
        assert replace(a, seconds=0.0) == replace(b, seconds=0.0)
    other, _ = play(planted, build(name), 1, participation=0.6, seed=9)
    assert not torch.equal(other.server.ensemble.heads["weight"][0], one.server.ensemble.heads["weight"][0])


class Reversed(Sequential):
    """Runs the participants in the opposite order."""

    def execute(self, task):
        alone, done = super().execute, {}
        for client in task.participants[::-1]:
            done[client] = alone(task.only([client]))
        updates, kept = zip(*(done[client] for client in task.participants), strict=True)
        return Update.join(updates), [state for (state,) in kept]


@pytest.mark.parametrize("name", METHODS)
def test_invariants_hold_in_every_round(planted, name):
    method = build(name)
    chosen = setting(planted, method, participation=0.5)
    _, ensemble = start(planted, method)
    for state, record in rounds.play(chosen, rounds.begin(chosen, ensemble), 8):
        server = state.server
        assert_close(server.weights.sum(dim=1), torch.ones(planted.clients))
        assert record.participants == 6
        seen = server.last_seen > 0
        if method.clusters is None:
            seen = seen | True
        assert ((server.members >= 0) == seen).all()
        assert sum(record.cluster_sizes.values()) == int(seen.sum())
        assert server.ensemble.clusters == len(server.clusters) == server.weights.shape[1]
        assert record.clusters == len(server.members[server.members >= 0].unique())
        for change in record.changes:
            if hasattr(change, "first"):
                took_part = set(torch.nonzero(server.last_seen == record.round).flatten().tolist())
                assert change.second
                assert not set(change.first) & set(change.second)
                if not server.signatures and not server.memory:
                    assert change.first
                    assert set(change.first + change.second) <= took_part
        for client, own in state.clients.items():
            assert own.round == int(server.last_seen[client])
            assert_close(own.weights.client.sum(), torch.tensor(1.0))
        for newcomer in state.newcomers:
            assert_close(newcomer.client.sum(), torch.tensor(1.0))


@pytest.mark.parametrize("uniform", [False, True])
def test_absent_clients_catch_up_with_exactly_what_the_server_has(planted, uniform):
    """What a client computes from the changes it missed is what the server's table says of it."""
    state, records = play(planted, build("hcfl+(fedrc)", uniform_split=uniform), 10, participation=0.4)
    assert len(state.server.changes) > 1
    rules = {change.rule for record in records for change in record.changes if hasattr(change, "rule")}
    assert rules == {"uniform" if uniform else "halve"}
    for client, own in state.clients.items():
        missed = [change for change in state.server.changes if change.round >= own.round]
        weights = follow(own.weights, own.clusters, missed, client)
        assert_close(weights.client, state.server.weights[[client]])


@pytest.mark.parametrize("topology", ["split", "full"])
def test_update_cosine_splits_too(planted, topology):
    method = Method(Conditional(), SoftEM(), SplitAndRemove(0.3), UpdateCosine(), topology, 1, name="mine")
    _, records = play(planted, method, 4)
    assert any(record.changes for record in records)


def test_newcomers_without_class_shares_find_other_weights_and_change_nothing_else(skewed):
    states, records = zip(
        *(play(skewed, build("fedrc"), 3, plain_newcomers=plain) for plain in (False, True)), strict=True
    )
    assert [record.val for record in records[0]] == [record.val for record in records[1]]
    same(states[0].server.ensemble.heads, states[1].server.ensemble.heads)
    with_shares, plain = (state.newcomers[0].client for state in states)
    assert not torch.allclose(with_shares, plain)


def test_fresh_newcomers_do_not_depend_on_the_past(planted):
    _, persistent = play(planted, build("hcfl+(fedrc)"), 10)
    _, fresh = play(planted, build("hcfl+(fedrc)"), 10, newcomers="fresh")
    assert fresh[-1].test > 0.9
    assert [r.val for r in fresh] == [r.val for r in persistent]


def test_sampling_draws_different_clients_every_round_and_never_none(planted):
    chosen = setting(planted, build("fedavg"), participation=0.01)
    drawn = [rounds.sample_clients(chosen, number) for number in range(1, 9)]
    assert all(len(clients) == 1 for clients in drawn)
    assert len({clients[0] for clients in drawn}) > 2


def test_a_federation_without_test_set_or_concepts_has_none_there():
    x, y = blobs()
    federation = Federation.from_arrays(x, y, client=torch.arange(len(y)) % 4)
    _, records = play(federation, build("hcfl+(fedrc)"), 2)
    assert records[-1].test is None
    assert records[-1].test_per_concept == ()
    assert records[-1].quality.ari is None
    assert records[-1].val is not None


@pytest.fixture
def four_groups() -> Federation:
    """Twelve clients in four concepts."""
    x, y = blobs()
    return Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=4, seed=1)


def test_cfl_splits_recursively_into_exactly_the_planted_groups(four_groups):
    state, records = play(four_groups, build("cfl", tol1=0.4, tol2=0.8), 8)
    assert len([change for record in records for change in record.changes]) == 3, "1 → 2 → 4 clusters"
    assert found_partition(state) == true_partition(four_groups)
    assert records[-1].test > 0.9


@pytest.mark.parametrize("engine", [Sequential(), Batched()])
def test_cfl_with_lost_ids_is_the_public_code(four_groups, engine):
    """Whose lists and models a hand-written loop has, ours has: also of clients in two lists, or in none."""
    method = build("cfl", tol1=0.4, tol2=0.8, lost_ids=True)
    state, records = play(four_groups, method, 6, engine=engine)
    _, ensemble = start(four_groups, method)
    public = play_public(setting(four_groups, method), ensemble, 0.4, 0.8, 6)
    lists = lists_of(state.server.changes, four_groups.clients)
    assert [list(clients) for clients in lists.values()] == public.lists
    times = np.bincount(np.concatenate(public.lists), minlength=four_groups.clients)
    assert times.min() == 0, "some clients are in no list"
    assert times.max() >= 2, "and some in several"
    assert len(records[-1].cluster_sizes) == len(public.lists)

    server_state = state.server
    mine = server_state.ensemble.select(server_state.members.tolist())
    averages = server_state.ensemble.select([server_state.column(cluster) for cluster in lists])
    for found, expected in ((mine, public.models), (averages, public.averages)):
        for part in ("extractors", "heads"):
            assert_close(getattr(found, part), getattr(expected, part), rtol=0, atol=1e-5)
    assert found_partition(state) != true_partition(four_groups)
    for client, own in state.clients.items():
        missed = [change for change in server_state.changes if change.round >= own.round]
        assert_close(follow(own.weights, own.clusters, missed, client).client, server_state.weights[[client]])


def test_no_newcomer_joins_a_client_that_was_lost(four_groups):
    method = build("cfl", tol1=0.4, tol2=0.8, lost_ids=True)
    state, _ = play(four_groups, method, 6)
    lonely = unlisted(state.server)
    assert lonely.any()
    alone = [change for change in state.server.changes if isinstance(change, Split) and change.rule == "alone"]
    assert describe_change(alone[0]) == f"client {alone[0].second[0]} left alone, as cluster {alone[0].child}"
    for newcomer in state.newcomers:
        assert float(newcomer.client[0, lonely].sum()) == 0
        assert float(newcomer.client.sum()) == 1


@pytest.mark.parametrize("engine", [Sequential(), Batched()])
def test_fesem_finds_more_from_equal_centres_than_from_models_drawn_apart(planted, engine):
    equal, apart = (
        play(planted, build("fesem", independent_start=independent), 6, engine=engine) for independent in (False, True)
    )
    (state, records), (_, independent) = equal, apart
    assert [record.clusters for record in records] == [3] * 6
    assert [len(record.changes) for record in records] == [2, 0, 0, 0, 0, 0], "k-means once, after round 1"
    assert records[-1].quality.ari == 1.0
    assert independent[-1].quality.ari < 0.5
    assert [len(record.changes) for record in independent] == [0] * 6
    assert found_partition(state) == true_partition(planted)


def test_fesem_s_late_clients_join_the_nearest_centre(planted):
    state, records = play(planted, build("fesem"), 12, participation=0.5)
    assert records[0].participants < planted.clients
    assert (state.server.last_seen > 0).all()
    assert records[-1].quality.ari > 0.8


def test_icfl_on_parameters_compares_what_clients_trained(four_groups):
    updates, parameters = (
        play(four_groups, build("icfl", cosine_of=of), 12)[1][-1] for of in ("updates", "parameters")
    )
    # Models that began as one have cosines near 1, so their clusters stay together for longer.
    assert 1 <= parameters.clusters < updates.clusters


@pytest.mark.parametrize("name", ["hcfl-prime(fedem)", "hcfl-prime(fedrc)", "hcfl-prime(fedsoft)"])
def test_hcfl_prime_finds_planted_clusters_and_removes_none(four_groups, name):
    state, records = play(four_groups, build(name, tol1=0.4, tol2=0.8), 10)
    assert found_partition(state) == true_partition(four_groups)
    assert all(change.rule == "one-hot" for record in records for change in record.changes)


def test_icfl_separates_concepts_step_by_step(four_groups):
    _, records = play(four_groups, build("icfl"), 16)
    assert records[0].clusters == 1, "its threshold starts at 0"
    assert records[-1].clusters >= 3
    assert records[-1].quality.ari > 0.6


def test_local_clients_never_learn_from_each_other(planted):
    state, records = play(planted, build("local"), 3)
    assert records[-1].clusters == planted.clients
    assert torch.equal(state.server.members, torch.arange(planted.clients))
    # Client 0 alone in a federation of its own makes the same model.
    alone = replace(planted, train=planted.train[:1], val=planted.val[:1], truth=None)
    expected, _ = play(alone, build("fedavg"), 3)
    assert_close(state.server.ensemble.heads["weight"][:1], expected.server.ensemble.heads["weight"])


def test_a_proximal_term_keeps_clients_near_what_they_received(planted):
    moved = {}
    for proximal in (0.0, 5.0):
        method = replace(build("fedavg"), local=ClusterModels(proximal))
        _, before = start(planted, method)
        state, _ = play(planted, method, 1)
        moved[proximal] = (state.server.ensemble.heads["weight"] - before.heads["weight"]).norm()
    assert moved[5.0] < 0.7 * moved[0.0]


def test_pairs_without_a_shared_class_are_counted():
    x, y = blobs()
    federation = Federation.from_arrays(x, y, clients=8, classes_per_client=2)
    _, records = play(federation, build("hcfl+(fedrc)"), 1)
    # Two groups of four clients: 16 of 28 pairs.
    assert records[0].without_shared_class == pytest.approx(16 / 28)


def test_participants_come_in_the_order_of_their_ids(planted):
    chosen = setting(planted, build("fedavg"), participation=0.5)
    for number in range(1, 5):
        drawn = rounds.sample_clients(chosen, number)
        assert drawn == sorted(set(drawn))


def test_training_that_diverges_says_so(planted):
    with pytest.raises(InputError, match=r"training.lr = 1e\+30: training diverged in round 2"):
        play(planted, build("fedavg"), 3, sgd=local_sgd(lr=1e30))


@pytest.mark.parametrize("topology", ["split", "full"])
@pytest.mark.parametrize("part", ["objective", "weights", "heads", "extractors"])
def test_an_update_is_finite_only_when_all_of_it_is(part, topology):
    """Two participants of two models each, with a shared extractor or two; the second sends what is no number."""
    number = 2 if topology == "split" else 4
    heads = {"w": torch.ones(4, 2)}
    extractors = {"w": torch.ones(number, 2), "steps": torch.zeros(number, dtype=torch.long)}
    update = Update(
        clients=(3, 8),
        sizes=torch.ones(2),
        models=Ensemble(extractors, heads, topology),
        row_participants=torch.tensor([0, 0, 1, 1]),
        started=torch.eye(2).repeat(2, 1),
        mass=torch.eye(2).repeat(2, 1),
        weights=torch.full((2, 2), 0.5),
        objective=-torch.ones(2),
    )
    assert update.finite.tolist() == [True, True]
    parts = {
        "objective": update.objective[1:],
        "weights": update.weights[1],
        "heads": heads["w"][2],
        "extractors": extractors["w"][-1],
    }
    parts[part][-1] = torch.nan if part in ("objective", "weights") else torch.inf
    assert update.finite.tolist() == [True, False]


@pytest.mark.parametrize("name", ["stocfl", "fl+hc", "wecfl", "fedgroup"])
def test_methods_that_group_clients_find_planted_clusters(planted, name):
    settings = {"threshold": 1.2} if name == "fl+hc" else {}  # a length of updates, so it depends on model and data
    state, records = play(planted, build(name, **settings), 10)
    assert found_partition(state) == true_partition(planted)
    assert records[-1].test > 0.9


@pytest.mark.parametrize("name", ["fedgmm", "fedsoft"])
def test_soft_methods_find_planted_clusters(planted, name):
    found = [play(planted, build(name), 15, seed=seed)[0] for seed in range(3)]
    assert any(found_partition(state) == true_partition(planted) for state in found)


def test_fuzzy_c_means_of_heads_finds_planted_clusters(planted):
    local = OwnModel(kept=False, proximal=0.0)
    method = Method(Conditional(), FuzzyCMeans(), Fixed(), None, "split", 3, local)
    found = [play(planted, method, 15, seed=seed)[0] for seed in range(4)]
    assert any(found_partition(state) == true_partition(planted) for state in found)


def two_cameras(seed=0) -> Federation:
    """Eight clients whose inputs lie in one of two subspaces, with opposite labels: one model cannot serve both."""
    generator = np.random.default_rng(seed)
    x, y, client, concept, test = [], [], [], [], []
    for one in range(10):
        camera = one % 2
        labels = generator.integers(0, 2, 60)
        inputs = 0.05 * generator.normal(size=(60, 8))
        inputs[:, 0] += 2 * labels - 1  # what the label depends on, the same for all …
        inputs[:, 1 + 3 * camera : 4 + 3 * camera] += 2 * generator.normal(size=(60, 3))  # … and where else they lie
        x.append(inputs)
        y.append(labels ^ camera)
        client.append(np.full(60, one))
        concept.append(np.full(60, camera))
        test.append(np.full(60, one >= 8))
    arrays = [np.concatenate(part) for part in (x, y, client, concept, test)]
    return Federation.from_arrays(
        arrays[0].astype(np.float32), arrays[1], client=arrays[2], concept=arrays[3], test=arrays[4]
    )


def test_pacfl_finds_clients_whose_inputs_lie_elsewhere_and_fedavg_serves_neither():
    federation = two_cameras()
    state, records = play(federation, build("pacfl", threshold=60.0), 8)
    assert found_partition(state) == true_partition(federation)
    assert records[0].clusters == 2, "it groups in the first round"
    assert records[-1].val > 0.9
    _, fedavg = play(federation, build("fedavg"), 8)
    assert fedavg[-1].val < records[-1].val - 0.03


def test_labels_group_clients_that_hold_other_classes():
    x, y = blobs(classes=6, per_class=80)
    federation = Federation.from_arrays(x, y, clients=9, classes_per_client=2, grouping="grouped", seed=3)
    held = [frozenset(federation.y[rows].tolist()) for rows in federation.train]
    expected = {frozenset(c for c in range(9) if held[c] == group) for group in set(held)}
    method = Method(Conditional(), ByLabelDistribution(), Fixed(), None, "full", 3)
    found = [play(federation, method, 10, seed=seed)[0] for seed in range(5)]
    assert any(found_partition(state) == expected for state in found)


@pytest.mark.parametrize("name", ["stocfl", "fedgroup", "pacfl"])
def test_clients_that_come_late_are_placed_by_what_they_send_once(planted, name):
    federation = two_cameras() if name == "pacfl" else planted
    settings = {"clusters": 3} if name == "fedgroup" else {}
    state, records = play(federation, build(name, **settings), 16, participation=0.5)
    assert (state.server.last_seen > 0).all()
    assert len(state.server.signatures) == federation.clients
    assert records[0].participants < federation.clients
    assert records[-1].quality.ari == 1.0
    for client, own in state.clients.items():
        missed = [change for change in state.server.changes if change.round >= own.round]
        assert_close(follow(own.weights, own.clusters, missed, client).client, state.server.weights[[client]])


def test_a_signature_is_sent_once_and_comes_from_the_initial_model(planted):
    chosen = setting(planted, build("stocfl"), participation=0.5)
    _, ensemble = start(planted, build("stocfl"))
    known = {}
    for state, record in rounds.play(chosen, rounds.begin(chosen, ensemble), 5):
        new = state.server.signatures.keys() - known.keys()
        parameters = sum(t[0].numel() for part in (ensemble.heads, ensemble.extractors) for t in part.values())
        assert record.up["signatures"] == 4 * parameters * len(new)
        for client, signature in known.items():
            assert state.server.signatures[client] is signature
        known = dict(state.server.signatures)
    # Whenever a client comes, its signature is that of the first round.
    together, _ = play(planted, build("stocfl"), 1)
    for client, signature in known.items():
        assert_close(signature, together.server.signatures[client])


def test_fedsoft_clients_predict_with_their_own_models_and_newcomers_with_a_cluster(planted):
    state, records = play(planted, build("fedsoft"), 4)
    network = setting(planted, build("fedsoft")).network
    hits = 0
    for client, rows in enumerate(planted.val):
        own = state.clients[client].own
        _, logits = forward(network, own, planted.scaling(planted.x[rows]))
        hits += int((logits[:, 0].argmax(dim=1) == planted.y[rows]).sum())
    assert records[-1].val == pytest.approx(hits / sum(len(rows) for rows in planted.val))
    for newcomer in state.newcomers:
        assert sorted(newcomer.client[0].tolist()) == [0.0, 0.0, 1.0]


def test_fedsoft_goes_on_from_a_client_s_own_model(planted):
    method, still = build("fedsoft"), local_sgd(lr=1e-12, batch=16)
    half, _ = play(planted, method, 2)
    ((after, _),) = rounds.play(setting(planted, method, sgd=still), half, 3)
    for client, own in half.clients.items():
        assert_close(after.clients[client].own.heads["weight"], own.own.heads["weight"])


def test_stocfl_is_held_near_the_global_model(planted):
    def spread(proximal):
        state, _ = play(planted, build("stocfl", tau=1.0, proximal=proximal), 3)
        heads = state.server.ensemble.heads["weight"].flatten(1)
        return (heads - heads.mean(dim=0)).norm()

    assert spread(5.0) < 0.6 * spread(0.0)


def test_an_assigned_client_receives_no_other_cluster_s_model(planted):
    _, records = play(planted, build("stocfl"), 2)
    for record in records:
        assert record.down["extractor"] == record.up["extractor"]
        assert record.down["heads"] == record.up["heads"]


def test_without_federation_nothing_is_sent(planted):
    _, records = play(planted, build("local"), 1)
    assert records[0].down == records[0].up == {}


def test_a_client_that_missed_a_split_of_its_cluster_chooses_by_loss_when_it_is_back(planted):
    method = build("cfl", tol1=10.0, tol2=0.01)
    late = next(c for c in range(12) if planted.truth.concept[c] != planted.truth.concept[0])
    chosen = setting(planted, method)
    _, ensemble = start(planted, method)
    state = rounds.begin(chosen, ensemble)
    for _ in range(3):
        state, _ = rounds.play_round(chosen, state)
    assert missed_split(Weights(torch.ones(1, 1)), (0,), state.server.changes, client=99), "who was there in no split"
    assert not missed_split(Weights(torch.ones(1, 1)), (0,), state.server.changes, client=late)
    message = server.broadcast(method, state.server, planted.classes)
    stale = ClientState(1, (0,), Weights(torch.ones(1, 1)))
    absent = replace(
        message,
        changes=tuple(
            replace(c, first=tuple(set(c.first) - {late}), second=tuple(set(c.second) - {late}))
            for c in message.changes
        ),
    )
    data = planted.local_data([late])
    update, _ = take_part(RoundTask(chosen, absent, [late], {late: stale}))
    log_probs = torch.log_softmax(outputs_of(chosen.network, message.ensemble, data.inputs), dim=2)
    losses = -log_probs[torch.arange(len(data)), :, data.labels].mean(dim=0)
    assert update.weights.argmax(dim=1).tolist() == [int(losses.argmin())]


@pytest.mark.parametrize("name", ["fl+hc", "wecfl"])
def test_grouping_survives_partial_participation(planted, name):
    settings = {"threshold": 1.2, "after": 2} if name == "fl+hc" else {}
    _, records = play(planted, build(name, **settings), 25, participation=0.5)
    assert records[-1].quality.purity > 0.9
    assert records[-1].val > 0.9


def test_gaussians_appear_after_the_first_round_and_every_client_mixes_them(planted):
    state, records = play(planted, build("fedgmm"), 4)
    assert state.server.gaussians.means.shape == (3, 32)
    for known in state.clients.values():
        assert_close(known.weights.components.sum(dim=2), torch.ones(1, 3))
    assert records[1].up["moments"] < records[0].up["moments"], "statistics of Gaussians are smaller than of features"
    assert records[0].down["other models"] == 0
    assert records[1].down["other models"] > 0


@pytest.mark.parametrize("newcomers", ["persistent", "fresh"])
def test_rounds_can_go_unmeasured_but_not_the_last(planted, newcomers):
    method = build("hcfl+(fedrc)", rho=0.1)
    chosen = replace(setting(planted, method), evaluate_every=3, newcomers=newcomers)
    _, ensemble = start(planted, method)
    played = list(rounds.play(chosen, rounds.begin(chosen, ensemble), 8))
    assert [record.round for _, record in played if record.val is not None] == [3, 6, 8]
    assert [record.round for _, record in played if record.test is not None] == [3, 6, 8]
    assert any(record.changes for _, record in played), "clusters change in between"
    for state, record in played:
        assert all(weights.client.shape == (1, record.clusters) for weights in state.newcomers)
        assert record.quality.ari is not None

    every = list(rounds.play(replace(chosen, evaluate_every=1), rounds.begin(chosen, ensemble), 8))
    for (one, _), (two, _) in zip(played, every, strict=True):
        assert torch.equal(one.server.weights, two.server.weights), "measuring changes nothing"
    assert [record.val for _, record in played if record.val is not None] == [every[n - 1][1].val for n in (3, 6, 8)]
