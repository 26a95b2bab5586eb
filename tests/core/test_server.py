"""The server's part of a round on hand-computed numbers."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from hcfl.config import from_flat
from hcfl.core import server
from hcfl.core.aggregation import aggregate, own_models, own_updates, whole_updates
from hcfl.core.apply_decision import apply
from hcfl.core.cluster_log import Merge, Move, Removal, Split
from hcfl.core.rounds import play
from hcfl.core.state import Update
from hcfl.errors import InputError
from hcfl.methods import Method, build
from hcfl.methods.local_models import ClusterModels
from hcfl.methods.robust_means import weighted_mean
from hcfl.models import MODELS, Network
from hcfl.models.ensemble import Ensemble, initialise
from hcfl.runs.prepare import prepare
from hcfl.tiers import (
    Conditional,
    Correlation,
    Decision,
    Fixed,
    HardByLoss,
    MergeDecision,
    MoveDecision,
    PrincipalAngles,
    Prototypes,
    SoftEM,
    SplitAndRemove,
    SplitDecision,
    UpdateCosine,
)
from hcfl.tiers.gaussians import Moments

RC = build("fedrc", clusters=1)
NETWORK = Network(*MODELS["mlp"]((2,), 2))


def ensemble(heads, extractors=((0.0,),), topology="split") -> Ensemble:
    return Ensemble({"e": torch.tensor(extractors)}, {"h": torch.tensor(heads)}, topology)


def update(client, samples, heads, weights, columns=None, extractors=((0.0,),), counts=None, topology="split"):
    """What one participant sends."""
    started = torch.eye(len(weights))[list(columns or range(len(heads)))]
    return Update(
        clients=(client,),
        sizes=torch.tensor([float(samples)]),
        models=ensemble(heads, extractors, topology),
        row_participants=torch.zeros(len(heads), dtype=torch.long),
        started=started,
        mass=samples * started,
        weights=torch.tensor([weights]),
        objective=torch.zeros(1),
        counts=None if counts is None else counts.unsqueeze(0),
    )


full = partial(update, topology="full")


def test_weighted_mean_weighs_by_samples_and_keeps_what_nobody_reports():
    received = {"h": torch.tensor([[9.0], [9.0], [9.0]])}
    reported = {"h": torch.tensor([[1.0], [5.0], [2.0]])}
    # Column 0 from two clients of 30 and 10 samples, column 2 from one, column 1 from nobody.
    mass = torch.tensor([[30.0, 0, 0], [10.0, 0, 0], [0, 0, 4.0]])
    mean = weighted_mean(received, reported, mass)
    assert mean["h"].tolist() == [[2.0], [9.0], [2.0]]


def test_counters_among_running_statistics_stay_whole_numbers():
    mean = weighted_mean({"n": torch.tensor([0])}, {"n": torch.tensor([3, 4])}, torch.tensor([[1.0], [3.0]]))
    assert mean["n"].dtype == torch.int64
    assert mean["n"].tolist() == [4]


def test_soft_clusters_average_everybody_and_the_extractor_too():
    reports = Update.join(
        [
            update(0, 30, [[1.0], [0.0]], [0.9, 0.1], extractors=[[4.0]]),
            update(1, 10, [[5.0], [8.0]], [0.1, 0.9], extractors=[[0.0]]),
        ]
    )
    received = ensemble([[0.0], [0.0]])
    found = aggregate(received, reports)
    assert found.heads["h"].tolist() == [[2.0], [2.0]]
    assert found.extractors["e"].tolist() == [[3.0]]


def test_hard_clusters_average_their_own_clients_and_an_empty_one_keeps_its_model():
    received = ensemble([[7.0], [7.0]], [[7.0], [7.0]], "full")
    reports = Update.join(
        [
            full(0, 30, [[1.0]], [1.0, 0.0], columns=(0,), extractors=[[4.0]]),
            full(1, 10, [[5.0]], [1.0, 0.0], columns=(0,), extractors=[[0.0]]),
        ]
    )
    found = aggregate(received, reports)
    assert found.heads["h"].tolist() == [[2.0], [7.0]]
    assert found.extractors["e"].tolist() == [[3.0], [7.0]]


def test_class_shares_come_from_the_latest_report_of_all_clients():
    state = server.begin(build("fedrc", clusters=1), ensemble([[0.0]]), clients=3, classes=2)
    assert_close(server.shares(RC, state, 2), torch.tensor([[0.5, 0.5]]))
    state = server.record(state, update(0, 4, [[0.0]], [1.0], counts=torch.tensor([[3.0, 1.0]])))
    assert_close(server.shares(RC, state, 2), torch.tensor([[0.75, 0.25]]))
    # Client 1 reports later; client 0 is absent and still counts; client 2 never reported.
    state = server.record(state, update(1, 4, [[0.0]], [1.0], counts=torch.tensor([[0.0, 4.0]])))
    assert_close(server.shares(RC, state, 2), torch.tensor([[3 / 8, 5 / 8]]))
    assert state.last_seen.tolist() == [1, 2, 0]


@pytest.fixture
def four():
    """Four clients took part; clients 1 and 3 are at cluster 1 of ids (5, 8); client 4 never took part."""
    state = server.begin(build("hcfl+(fedrc)", clusters=2), ensemble([[0.0], [0.0]]), clients=5, classes=2)
    weights = [[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.0, 1.0]]
    reports = Update.join(
        [
            update(c, 10 * (c + 1), [[float(c)], [10.0 + c]], w, counts=torch.full((2, 2), float(c)))
            for c, w in enumerate(weights)
        ]
    )
    state = replace(server.record(state, reports), clusters=(5, 8), born=9)
    return state, reports


def decide(first, second, remove=(), rule="halve", parent=1) -> Decision:
    return Decision((SplitDecision(parent, first, second, rule, 0.9, 0.3, 0.5),), remove)


def test_a_split_averages_each_part_and_halves_weights(four):
    state, reports = four
    after = apply(state.ensemble, state, decide((1,), (3,)), False, reports)
    assert after.clusters == (5, 8, 9)
    assert after.born == 10
    # Heads of cluster 8: client 1 sent 11, client 3 sent 13; cluster 5 stays.
    assert after.ensemble.heads["h"].tolist() == [[0.0], [11.0], [13.0]]
    assert_close(after.weights[1], torch.tensor([0.4, 0.3, 0.3]))
    assert_close(after.weights[3], torch.tensor([0.0, 0.5, 0.5]))
    assert_close(after.weights[0], torch.tensor([0.9, 0.05, 0.05]))
    # The tie goes to the part that the split put the client in; who never took part stays uniform and nobody's.
    assert after.members.tolist() == [0, 1, 0, 2, -1]
    assert_close(after.weights[4], torch.full((3,), 1 / 3))
    assert_close(after.counts[:, 2], after.counts[:, 1])
    assert after.changes == (Split(1, 8, 9, (1,), (3,), "halve", 0.9, 0.3, 0.5),)


def test_a_part_is_averaged_by_its_clients_samples(four):
    state, reports = four
    after = apply(state.ensemble, state, decide((0, 2), (1, 3), parent=0), False, reports)
    # Cluster 5: clients 0 (10 samples, sent 0) and 2 (30, sent 2) | 1 (20, sent 1) and 3 (40, sent 3).
    assert_close(after.ensemble.heads["h"], torch.tensor([[60 / 40], [0.0], [140 / 60]]))


def test_a_part_without_participants_keeps_the_parent_s_head(four):
    state, reports = four
    state = replace(state, ensemble=ensemble([[1.0], [2.0]]))
    after = apply(state.ensemble, state, decide((1, 3), (4,)), False, reports)
    assert_close(after.ensemble.heads["h"], torch.tensor([[1.0], [(20 * 11 + 40 * 13) / 60], [2.0]]))


def test_without_scwu_members_are_one_hot(four):
    state, reports = four
    after = apply(state.ensemble, state, decide((1,), (3,), rule="one-hot"), False, reports)
    assert after.weights[1].tolist() == [0.0, 1.0, 0.0]
    assert after.weights[3].tolist() == [0.0, 0.0, 1.0]
    assert_close(after.weights[0], torch.tensor([0.9, 0.05, 0.05]))
    assert after.changes[0].rule == "one-hot"


def test_removal_drops_the_column_everywhere(four):
    state, reports = four
    after = apply(state.ensemble, state, Decision(remove=(0,)), False, reports)
    assert after.clusters == (8,)
    assert after.ensemble.heads["h"].shape == (1, 1)
    assert after.counts.shape == (5, 1, 2)
    assert_close(after.weights, torch.ones(5, 1))
    assert after.members.tolist() == [0, 0, 0, 0, -1]
    assert after.changes == (Removal(1, 5),)


def test_split_and_removal_in_one_round_keep_their_clusters_apart(four):
    state, reports = four
    after = apply(state.ensemble, state, decide((1,), (3,), remove=(0,)), False, reports)
    assert after.clusters == (8, 9)
    assert after.ensemble.heads["h"].tolist() == [[11.0], [13.0]]
    assert after.members.tolist()[1::2] == [0, 1]
    assert after.born == 10, "ids are never used again"


def test_own_update_is_that_of_the_client_s_own_head():
    received = ensemble([[1.0], [2.0]])
    reports = Update.join([update(0, 1, [[4.0], [0.0]], [0.9, 0.1]), update(1, 1, [[0.0], [7.0]], [0.2, 0.8])])
    found = own_updates(NETWORK, received, reports, torch.tensor([0, 1]))
    assert found.tolist() == [[3.0], [5.0]]


def test_in_the_full_topology_the_update_is_the_whole_model():
    received = ensemble([[1.0], [2.0]], [[0.5], [0.25]], "full")
    reports = Update.join(
        [
            full(0, 1, [[4.0]], [1.0, 0.0], columns=(0,), extractors=[[1.0]]),
            full(1, 1, [[7.0]], [0.0, 1.0], columns=(1,), extractors=[[1.0]]),
        ]
    )
    found = own_updates(NETWORK, received, reports, torch.tensor([0, 1]))
    assert found.tolist() == [[3.0, 0.5], [5.0, 0.75]]


def test_the_whole_update_includes_the_shared_extractor():
    received = ensemble([[1.0], [2.0]], [[0.5]])
    reports = Update.join(
        [
            update(0, 1, [[4.0], [0.0]], [0.9, 0.1], extractors=[[1.0]]),
            update(1, 1, [[0.0], [7.0]], [0.2, 0.8], extractors=[[0.25]]),
        ]
    )
    found = whole_updates(NETWORK, received, reports, torch.tensor([0, 1]))
    assert found.tolist() == [[3.0, 0.5], [5.0, -0.25]]


def test_clients_have_a_cluster_before_they_ever_take_part_only_where_each_has_its_own():
    one = server.begin(build("cfl"), ensemble([[0.0]]), clients=3, classes=2)
    assert one.members.tolist() == [-1, -1, -1]
    assert one.weights.tolist() == [[1.0]] * 3
    each = server.begin(build("local"), ensemble([[0.0]] * 3), clients=3, classes=2)
    assert each.members.tolist() == [0, 1, 2]
    assert each.weights.tolist() == torch.eye(3).tolist()


def shown(method, state, reports, **changes):
    """What tier 3 is shown at the end of a round."""
    seen = []

    class Watch(SplitAndRemove):
        def decide(self, *what):
            seen.extend(what)
            return Decision()

    watch = type("Watch", (Watch,), changes)(0.3)
    server.conclude(replace(method, adaptation=watch), NETWORK, state, reports)
    return seen


COSINE = Method(Conditional(), SoftEM(), SplitAndRemove(0.3), UpdateCosine(), "split", 2, name="mine")


def test_tiers_are_shown_participants_by_id_with_their_own_weights_and_changes():
    state = server.begin(COSINE, ensemble([[1.0], [2.0]]), clients=4, classes=2)
    reports = Update.join([update(1, 30, [[4.0], [0.0]], [0.9, 0.1]), update(3, 10, [[0.0], [7.0]], [0.2, 0.8])])
    participants, _, _ = shown(COSINE, state, reports)
    assert participants.clients == (1, 3)
    assert participants.members.tolist() == [0, 1]
    assert participants.round == 1
    assert_close(participants.weights, torch.tensor([0.9, 0.8]))
    assert participants.updates.tolist() == [[3.0], [5.0]], "from what was sent, not from the new mean"
    assert participants.sizes.tolist() == [30.0, 10.0]
    assert participants.unplaced.tolist() == [True, True]
    split = Split(0, 0, 1, (0,), (3,), "halve", 0.9, 0.3, 0.5)
    assert shown(COSINE, replace(state, changes=(split,)), reports)[0].unplaced.tolist() == [True, False]


def test_only_where_signatures_are_all_that_counts_are_absent_clients_shown():
    method = replace(COSINE, distance=PrincipalAngles(1))
    state = server.begin(method, ensemble([[1.0], [2.0]]), clients=4, classes=2)
    state = replace(state, members=torch.tensor([0, -1, -1, -1]), signatures={0: torch.eye(2)[:, :1]})
    new = replace(update(3, 1, [[0.0], [7.0]], [0.2, 0.8]), signatures={3: torch.eye(2)[:, :1]})
    assert shown(method, state, new)[0].clients == (0, 3)
    assert shown(method, state, new, needs="updates")[0].clients == (3,)
    assert shown(replace(COSINE, adaptation=Fixed(), distance=None), state, new, uses_distance=False)[0].clients == (3,)


def test_a_cluster_is_occupied_by_absent_clients_and_while_somebody_has_not_spoken():
    state = server.begin(COSINE, ensemble([[1.0], [2.0]]), clients=2, classes=2)
    first, second = update(0, 1, [[0.0], [0.0]], [0.9, 0.1]), update(1, 1, [[0.0], [0.0]], [0.1, 0.9])
    assert shown(COSINE, state, first)[2].tolist() == [True, True], "client 1 may still join either"
    assert shown(COSINE, server.record(state, first), second)[2].tolist() == [True, True], "client 0 is absent"
    both = Update.join([first, replace(second, weights=torch.tensor([[0.8, 0.2]]))])
    assert shown(COSINE, state, both)[2].tolist() == [True, False]
    third = server.begin(COSINE, ensemble([[1.0], [2.0], [3.0]]), clients=2, classes=2)
    only = update(0, 1, [[0.0]] * 3, [1.0, 0.0, 0.0])
    assert shown(COSINE, third, only)[2].tolist() == [True, True, False], "nobody starts in one that came later"


def test_running_statistics_are_no_part_of_an_update():
    network = Network(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)), torch.nn.Linear(1, 1))

    def model(weight, statistic):
        return {"0.weight": torch.tensor([[weight]]), "1.running_mean": torch.tensor([[statistic]])}

    received = Ensemble(model(1.0, 0.0), {"h": torch.tensor([[1.0]])}, "full")
    sent = Ensemble(model(1.5, 100.0), {"h": torch.tensor([[4.0]])}, "full")
    trained = replace(update(0, 1, [[4.0]], [1.0]), models=sent)
    found = own_updates(network, received, trained, torch.tensor([0]))
    assert found.tolist() == [[3.0, 0.5]]


def test_an_update_counts_from_the_model_that_training_started_from():
    received = ensemble([[1.0], [2.0]])
    joined = replace(update(0, 1, [[4.0]], [0.0, 1.0], columns=(1,)), started=torch.tensor([[1.0, 0.0]]))
    assert own_updates(NETWORK, received, joined, torch.tensor([1])).tolist() == [[3.0]]


def test_a_split_of_hard_clusters_moves_the_second_part_and_nobody_else():
    state = server.begin(build("hcfl+(fesem)"), ensemble([[0.0]]), clients=3, classes=2)
    reports = Update.join([update(c, 1, [[float(c)]], [1.0]) for c in range(3)])
    after = apply(state.ensemble, server.record(state, reports), decide((0,), (1,), parent=0), True, reports)
    assert after.weights.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert after.changes[0].rule == "move"


def test_in_the_full_topology_a_split_averages_whole_models():
    received = ensemble([[9.0]], [[9.0]], "full")
    state = server.begin(build("cfl"), received, clients=3, classes=2)
    reports = Update.join(
        [
            full(0, 10, [[1.0]], [1.0], extractors=[[4.0]]),
            full(1, 30, [[3.0]], [1.0], extractors=[[8.0]]),
            full(2, 10, [[5.0]], [1.0], extractors=[[2.0]]),
        ]
    )
    after = apply(received, server.record(state, reports), decide((0, 1), (2,), parent=0), True, reports)
    assert after.ensemble.heads["h"].tolist() == [[2.5], [5.0]]
    assert after.ensemble.extractors["e"].tolist() == [[7.0], [2.0]]


def test_two_removals_in_one_round_take_the_clusters_that_were_named():
    heads = [[0.0], [1.0], [2.0], [3.0]]
    state = server.begin(build("hcfl+(fedrc)", clusters=4), ensemble(heads), clients=1, classes=2)
    only = update(0, 1, heads, [0.1, 0.0, 0.6, 0.3], counts=torch.arange(8.0).view(4, 2))
    after = apply(state.ensemble, server.record(state, only), Decision(remove=(0, 2)), False, only)
    assert after.clusters == (1, 3)
    assert after.ensemble.heads["h"].tolist() == [[1.0], [3.0]]
    assert after.counts[0].tolist() == [[2.0, 3.0], [6.0, 7.0]]
    assert after.members.tolist() == [1], "its cluster is gone: the next best of those that stay"


def test_a_round_weighs_the_shared_extractor_by_samples():
    method = Method(Conditional(), SoftEM(), Fixed(), None, "split", 1, name="mine")
    state = server.begin(method, ensemble([[0.0]]), clients=2, classes=2)
    reports = Update.join(
        [update(0, 30, [[1.0]], [1.0], extractors=[[4.0]]), update(1, 10, [[5.0]], [1.0], extractors=[[0.0]])]
    )
    after, _ = server.conclude(method, NETWORK, state, reports)
    assert after.ensemble.extractors["e"].tolist() == [[3.0]]
    assert after.sizes.tolist() == [30.0, 10.0]


def test_the_floor_of_class_shares_is_the_formulation_s_own():
    method = Method(Correlation(floor=1.0), SoftEM(), Fixed(), None, "full", 1, name="mine")
    state = server.begin(method, ensemble([[0.0]], topology="full"), clients=1, classes=2)
    state = server.record(state, full(0, 2, [[0.0]], [1.0], counts=torch.tensor([[0.0, 2.0]])))
    assert_close(server.shares(method, state, 2), torch.tensor([[1 / 3, 2 / 3]]))


def test_a_split_places_both_parts_wherever_their_clients_were(four):
    state, reports = four
    after = apply(state.ensemble, state, decide((0, 1), (3,)), False, reports)
    assert after.members.tolist() == [1, 1, 0, 2, -1]


def test_an_assigned_client_that_never_took_part_belongs_to_no_part_of_a_split():
    state = server.begin(build("cfl"), ensemble([[0.0]], topology="full"), clients=3, classes=2)
    reports = Update.join([full(c, 1, [[0.0]], [1.0]) for c in range(2)])
    after = apply(state.ensemble, server.record(state, reports), decide((0,), (1,), parent=0), True, reports)
    assert after.weights[2].tolist() == [0.5, 0.5]
    assert after.members.tolist() == [0, 1, -1]


def test_running_statistics_are_no_part_of_a_whole_update():
    network = Network(torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)), torch.nn.Linear(1, 1))

    def model(weight, statistic):
        return {"0.weight": torch.tensor([[weight]]), "1.running_mean": torch.tensor([[statistic]])}

    received = Ensemble(model(1.0, 0.0), {"h": torch.tensor([[1.0]])}, "split")
    sent = Ensemble(model(1.5, 100.0), {"h": torch.tensor([[4.0]])}, "split")
    trained = replace(update(0, 1, [[4.0]], [1.0]), models=sent)
    found = whole_updates(network, received, trained, torch.tensor([0]))
    assert found.tolist() == [[3.0, 0.5]]


def test_a_merge_takes_the_size_weighted_mean_of_models_and_all_clients():
    state = server.begin(build("stocfl"), ensemble([[1.0], [2.0], [6.0]], [[0.0], [0.0], [4.0]], "full"), 3, 2)
    each = torch.eye(3).tolist()
    reports = Update.join(
        [full(c, 10 * (c + 1), [[v]], each[c], columns=(c,), extractors=[[v]]) for c, v in enumerate((1.0, 2.0, 6.0))]
    )
    state = replace(server.record(state, reports), clusters=(4, 5, 8), counts=torch.arange(18.0).view(3, 3, 2))
    merge = MergeDecision(into=0, gone=2, distance=0.1, threshold=0.9)
    after = apply(state.ensemble, state, Decision(merges=(merge,)), True, reports)
    # Clients 0 (10 samples) and 2 (30): (10·1 + 30·6)/40 and (10·0 + 30·4)/40.
    assert after.ensemble.heads["h"].tolist() == [[4.75], [2.0]]
    assert after.ensemble.extractors["e"].tolist() == [[3.0], [0.0]]
    assert after.clusters == (4, 5)
    assert after.members.tolist() == [0, 1, 0]
    assert after.weights.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    assert after.counts[0].tolist() == [[0.0 + 4.0, 1.0 + 5.0], [2.0, 3.0]]
    assert after.changes == (Merge(1, into=4, gone=8, distance=0.1, threshold=0.9),)


def test_merges_follow_each_other_by_id():
    state = server.begin(build("stocfl"), ensemble([[1.0], [2.0], [6.0]], [[0.0]] * 3, "full"), 3, 2)
    reports = Update.join([full(c, 1, [[0.0]], torch.eye(3)[c].tolist(), columns=(c,)) for c in range(3)])
    state = server.record(state, reports)
    merges = (MergeDecision(1, 2, 0.1, 0.9), MergeDecision(0, 1, 0.2, 0.9))
    after = apply(state.ensemble, state, Decision(merges=merges), True, reports)
    # (2 + 6)/2 = 4 for two clients, then (1 + 2·4)/3
    assert after.ensemble.heads["h"].tolist() == [[3.0]]
    assert after.members.tolist() == [0, 0, 0]
    assert after.weights.tolist() == [[1.0]] * 3


@pytest.mark.parametrize(("with_model", "heads"), [(True, [[1.0], [8.0]]), (False, [[1.0], [7.0]])])
def test_what_a_client_that_moves_has_trained_counts_in_its_new_cluster_or_nowhere(with_model, heads):
    state = server.begin(build("wecfl"), ensemble([[0.0], [0.0]], [[0.0], [0.0]], "full"), 4, 2)
    hard = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    reports = Update.join(
        [
            full(c, 10, [[v]], w, columns=(w.index(1.0),), extractors=[[v]])
            for c, (v, w) in enumerate(zip((1.0, 9.0, 7.0), hard, strict=True))
        ]
    )
    received = state.ensemble
    state = server.record(state, reports)
    state = replace(state, ensemble=aggregate(received, reports), counts=torch.ones(4, 2, 2))
    assert state.ensemble.heads["h"].tolist() == [[5.0], [7.0]]
    moves = (MoveDecision(1, 1, with_model),)
    after = apply(received, state, Decision(moves=moves), True, reports)
    assert after.ensemble.heads["h"].tolist() == after.ensemble.extractors["e"].tolist() == heads
    assert after.members.tolist()[:3] == [0, 1, 1]
    assert after.weights[1].tolist() == [0.0, 1.0]
    assert after.counts[1].tolist() == [[0.0, 0.0], [2.0, 2.0]], "what it reported is the other cluster's now"
    assert after.counts[0].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert after.changes == (Move(1, clients=(1,), to=(1,)),)
    # When all have left a cluster, it keeps the model of the round's start.
    both = (*moves, MoveDecision(0, 1, with_model))
    assert apply(received, state, Decision(moves=both), True, reports).ensemble.heads["h"][0].tolist() == [0.0]


def test_own_models_count_in_every_cluster_by_weight():
    """FedSoft: cluster k is the average of the clients' models, weighted by column-normalised counts."""
    received = ensemble([[0.0], [0.0]], [[0.0], [0.0]], "full")
    reports = Update.join(
        [
            replace(
                full(0, 30, [[1.0]], [0.8, 0.2], columns=(0,), extractors=[[1.0]]), mass=torch.tensor([[24.0, 6.0]])
            ),
            replace(
                full(1, 10, [[5.0]], [0.6, 0.4], columns=(0,), extractors=[[5.0]]), mass=torch.tensor([[6.0, 4.0]])
            ),
        ]
    )
    found = aggregate(received, reports)
    # Counts: 24 and 6 of cluster 0, 6 and 4 of cluster 1.
    expected = torch.tensor([[(24 * 1 + 6 * 5) / 30], [(6 * 1 + 4 * 5) / 10]])
    assert_close(found.heads["h"], expected)
    assert_close(found.extractors["e"], expected)


def test_an_own_model_s_update_counts_from_the_mixture_that_it_started_from():
    received = ensemble([[1.0], [2.0]])
    mixture = torch.tensor([[0.25, 0.75]])
    own = replace(update(0, 1, [[4.0]], [0.25, 0.75], columns=(0,)), started=mixture, mass=mixture)
    found = own_updates(NETWORK, received, own, torch.tensor([1]))
    assert found.tolist() == [[4.0 - 1.75]]
    assert own_models(NETWORK, own, torch.tensor([1])).tolist() == [[4.0]]


@pytest.mark.parametrize(("name", "zero"), [("ifca", True), ("fesem", True), ("ifca", False), ("fesem", False)])
def test_a_cluster_without_participants_keeps_its_model_unless_the_public_error_is_wanted(name, zero):
    method = build(name, clusters=2, zero_empty=zero)
    state = server.begin(method, ensemble([[3.0], [4.0]], [[5.0], [6.0]], "full"), clients=1, classes=2)
    only = full(0, 1, [[1.0]], [1.0, 0.0], columns=(0,), extractors=[[2.0]])
    after, _ = server.conclude(method, NETWORK, state, only)
    assert after.ensemble.heads["h"].tolist() == [[1.0], [0.0 if zero else 4.0]]
    assert after.ensemble.extractors["e"].tolist() == [[2.0], [0.0 if zero else 6.0]]


def test_the_common_model_is_the_mean_of_all_participants_models():
    state = server.begin(build("stocfl"), ensemble([[0.0]] * 3, [[0.0]] * 3, "full"), clients=3, classes=2)
    assert state.common.heads["h"].tolist() == [[0.0]]
    reports = Update.join(
        [
            replace(
                full(c, n, [[v]], torch.eye(3)[c].tolist(), columns=(c,), extractors=[[-v]]),
                signatures={c: torch.eye(3)[c]},
            )
            for c, n, v in ((0, 30, 1.0), (2, 10, 5.0))
        ]
    )
    after, _ = server.conclude(build("stocfl"), NETWORK, state, reports)
    assert after.common.heads["h"].tolist() == [[2.0]]
    assert after.common.extractors["e"].tolist() == [[-2.0]]
    assert after.signatures.keys() == {0, 2}
    assert server.broadcast(build("stocfl"), after, 2).common is after.common
    assert server.begin(build("cfl"), ensemble([[0.0]], topology="full"), 3, 2).common is None


def test_signatures_are_compared_across_rounds_but_updates_are_not():
    stocfl = build("stocfl", tau=0.5)
    state = server.begin(stocfl, ensemble([[0.0]] * 3, [[0.0]] * 3, "full"), clients=3, classes=2)

    def report(client, signature):
        new = full(client, 1, [[0.0]], torch.eye(3)[client].tolist(), columns=(client,))
        return replace(new, signatures={client: torch.tensor(signature)})

    state, _ = server.conclude(stocfl, NETWORK, state, report(0, [1.0, 0.0]))
    assert state.changes == ()
    state, _ = server.conclude(stocfl, NETWORK, state, report(2, [1.0, 0.1]))
    assert [(change.into, change.gone) for change in state.changes] == [(0, 2)], "client 0 is absent, and known"
    assert state.members.tolist() == [0, 1, 0], "client 1 never took part and stays alone"


def test_the_child_s_counts_are_those_of_its_parent(four):
    state, reports = four
    state = replace(state, counts=torch.arange(20.0).view(5, 2, 2))
    after = apply(state.ensemble, state, decide((1,), (3,)), False, reports)
    assert after.counts[0].tolist() == [[0.0, 1.0], [2.0, 3.0], [2.0, 3.0]]


def test_the_members_of_a_removed_cluster_go_to_the_next_best():
    heads = [[0.0], [1.0], [2.0]]
    state = server.begin(build("hcfl+(fedem)", clusters=3), ensemble(heads), clients=2, classes=2)
    reports = Update.join([update(0, 1, heads, [0.3, 0.1, 0.6]), update(1, 1, heads, [0.1, 0.7, 0.2])])
    after = apply(state.ensemble, server.record(state, reports), Decision(remove=(2,)), False, reports)
    assert after.members.tolist() == [0, 1]
    assert_close(after.weights[0], torch.tensor([0.75, 0.25]))


def test_a_cluster_that_takes_no_part_in_a_merge_keeps_its_model():
    state = server.begin(build("stocfl"), ensemble([[1.0], [2.0], [6.0]], [[0.0]] * 3, "full"), 3, 2)
    reports = Update.join([full(c, 1, [[0.0]], torch.eye(3)[c].tolist(), columns=(c,)) for c in range(3)])
    state = replace(server.record(state, reports), clusters=(4, 5, 8))
    merge = Decision(merges=(MergeDecision(0, 1, 0.1, 0.9),))
    after = apply(state.ensemble, state, merge, True, reports)
    assert after.clusters == (4, 8)
    assert after.ensemble.heads["h"].tolist() == [[1.5], [6.0]]
    assert after.members.tolist() == [0, 0, 1]


def test_a_cluster_whose_client_never_took_part_keeps_its_model_through_a_merge():
    state = server.begin(build("stocfl"), ensemble([[1.0], [2.0], [6.0]], [[0.0]] * 3, "full"), 3, 2)
    reports = Update.join([full(c, 10, [[0.0]], torch.eye(3)[c].tolist(), columns=(c,)) for c in (0, 1)])
    merge = Decision(merges=(MergeDecision(0, 1, 0.1, 0.9),))
    after = apply(state.ensemble, server.record(state, reports), merge, True, reports)
    assert after.ensemble.heads["h"].tolist() == [[1.5], [6.0]]


def test_a_move_of_soft_weights_leaves_models_and_counts_and_names_clusters_by_id(four):
    state, reports = four
    state = replace(state, ensemble=ensemble([[1.0], [2.0]]))
    after = apply(ensemble([[0.0], [0.0]]), state, Decision(moves=(MoveDecision(2, 1, False),)), False, reports)
    assert after.ensemble is state.ensemble
    assert after.weights[2].tolist() == [0.0, 1.0]
    assert after.counts[2].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert after.changes == (Move(1, clients=(2,), to=(8,)),)


def test_the_common_model_is_of_the_clusters_that_clients_have_joined_in_this_round():
    method = Method(Conditional(), HardByLoss(), Fixed(), None, "full", 2, ClusterModels(0.5, "global"), name="mine")
    state = server.begin(method, ensemble([[0.0], [0.0]], [[0.0], [0.0]], "full"), clients=2, classes=2)
    reports = Update.join(
        [
            full(0, 30, [[1.0]], [1.0, 0.0], columns=(0,), extractors=[[3.0]]),
            full(1, 10, [[5.0]], [0.0, 1.0], columns=(1,), extractors=[[7.0]]),
        ]
    )
    after, _ = server.conclude(method, NETWORK, state, reports)
    assert after.common.heads["h"].tolist() == [[2.0]]
    assert after.common.extractors["e"].tolist() == [[4.0]]


def test_the_initial_model_that_is_kept_is_one():
    received = ensemble([[1.0], [2.0]], [[3.0], [4.0]], "full")
    anchor = server.begin(build("fedgmm", clusters=2), received, clients=2, classes=2).anchor
    assert (anchor.heads["h"].tolist(), anchor.extractors["e"].tolist()) == ([[1.0]], [[3.0]])
    assert server.begin(build("fedem", clusters=2), received, clients=2, classes=2).anchor is None


def test_joined_updates_keep_every_row_with_its_participant():
    """One participant alone, and two that were put together before."""
    first = update(4, 5, [[1.0], [2.0]], [0.9, 0.1], extractors=[[-1.0]], counts=torch.full((2, 2), 1.0))
    pair = Update.join(
        [
            update(7, 6, [[3.0], [4.0]], [0.2, 0.8], extractors=[[-2.0]], counts=torch.full((2, 2), 2.0)),
            update(2, 7, [[5.0], [6.0]], [0.5, 0.5], extractors=[[-3.0]], counts=torch.full((2, 2), 3.0)),
        ]
    )
    prototypes = Prototypes(torch.arange(4.0).view(2, 2, 1), torch.ones(2, 2), torch.tensor([[8.0], [9.0]]))
    pair = replace(pair, signatures={2: torch.tensor([2.0])}, prototypes=prototypes)
    alone = Prototypes(torch.full((1, 2, 1), 5.0), torch.zeros(1, 2), torch.tensor([[7.0]]))
    first = replace(first, signatures={4: torch.tensor([4.0])}, prototypes=alone, objective=torch.tensor([-3.0]))
    moments = Moments(*(torch.tensor([value]) for value in (1.0, 2.0, 3.0)))
    first, pair = replace(first, moments=moments), replace(pair, moments=moments)
    joined = Update.join([first, pair])
    assert joined.clients == (4, 7, 2)
    assert joined.sizes.tolist() == [5.0, 6.0, 7.0]
    assert pair.row_participants.tolist() == [0, 0, 1, 1]
    assert joined.row_participants.tolist() == [0, 0, 1, 1, 2, 2]
    assert joined.models.heads["h"].tolist() == [[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]]
    assert joined.models.extractors["e"].tolist() == [[-1.0], [-2.0], [-3.0]]
    assert joined.models.topology == "split"
    assert joined.started.tolist() == torch.eye(2).repeat(3, 1).tolist()
    assert joined.mass.sum(dim=1).tolist() == [5.0, 5.0, 6.0, 6.0, 7.0, 7.0]
    assert_close(joined.weights, torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]]))
    assert joined.objective.tolist() == [-3.0, 0.0, 0.0]
    assert joined.counts[:, 0, 0].tolist() == [1.0, 2.0, 3.0]
    assert joined.prototypes.mean.tolist() == [[7.0], [8.0], [9.0]]
    assert joined.signatures == {4: torch.tensor([4.0]), 2: torch.tensor([2.0])}
    assert (joined.moments.mass.item(), joined.moments.first.item(), joined.moments.second.item()) == (2.0, 4.0, 6.0)


def test_joined_updates_of_hard_and_of_own_models_have_a_row_for_each_participant():
    joined = Update.join([full(3, 1, [[1.0]], [0.0, 1.0], columns=(1,)), full(5, 2, [[2.0]], [1.0, 0.0], columns=(0,))])
    assert joined.row_participants.tolist() == [0, 1]
    assert joined.models.topology == "full"
    assert joined.counts is joined.prototypes is joined.moments is None
    assert joined.objective.tolist() == [0.0, 0.0]
    assert joined.signatures == {}


def test_the_objective_of_a_round_is_that_of_all_or_of_nobody():
    told, silent = update(3, 1, [[1.0]], [1.0]), replace(update(5, 2, [[2.0]], [1.0]), objective=None)
    joined = Update.join([told, silent])
    assert joined.objective is None
    assert joined.finite.tolist() == [True, True]
    joined.models.heads["h"][1] = torch.nan
    assert joined.finite.tolist() == [True, False]


def spoilt(part, row, topology, value) -> Update:
    """Four participants with two models each, in which one number is not what it should be."""
    make, extractors = (full, [[0.0], [0.0]]) if topology == "full" else (update, [[0.0]])
    sent = Update.join([make(c, 1, [[0.0], [0.0]], [0.5, 0.5], extractors=extractors) for c in range(4)])
    tensors = {
        "extractors": sent.models.extractors["e"],
        "heads": sent.models.heads["h"],
        "weights": sent.weights,
        "objective": sent.objective,
    }
    assert sent.finite.tolist() == [True] * 4
    tensors[part][row] = value
    return sent


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize(
    ("part", "row", "topology", "participant"),
    [
        ("extractors", 0, "split", 0),
        ("extractors", 3, "split", 3),
        ("extractors", 0, "full", 0),
        ("extractors", 3, "full", 1),
        ("extractors", 4, "full", 2),
        ("heads", 1, "split", 0),
        ("heads", 4, "split", 2),
        ("heads", 7, "full", 3),
        ("weights", (2, 1), "split", 2),
        ("objective", 1, "full", 1),
    ],
)
def test_who_sends_something_that_is_not_a_number_is_named_and_nobody_else(part, row, topology, participant, value):
    sent = spoilt(part, row, topology, value)
    assert sent.finite.tolist() == [client != participant for client in range(4)]


def test_several_who_send_something_that_is_not_a_number_are_all_named():
    sent = spoilt("heads", 5, "split", torch.nan)
    sent.models.heads["h"][4] = torch.inf
    sent.models.extractors["e"][0] = torch.nan
    assert sent.finite.tolist() == [False, True, False, True]


def test_counters_and_models_without_parameters_are_numbers():
    counters = Ensemble({"n": torch.tensor([3])}, {"h": torch.tensor([[1.0]])}, "split")
    assert replace(update(0, 1, [[1.0]], [1.0]), models=counters).finite.tolist() == [True]
    assert replace(update(0, 1, [[1.0]], [1.0]), models=replace(counters, extractors={})).finite.tolist() == [True]


@pytest.mark.parametrize("topology", ["split", "full"])
def test_a_parameter_that_is_a_single_number_is_compared_like_any_other(topology):
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.rand(()))

    network, received = initialise(lambda shape, classes: (Scaled(), Scaled()), (1,), 2, topology, 2, seed=0)
    assert received.heads["scale"].shape == (2,)
    own = received.select([0])
    sent = Ensemble({"scale": own.extractors["scale"] + 3}, {"scale": own.heads["scale"] + 1}, topology)
    trained = replace(update(0, 1, [[0.0]], [1.0, 0.0], columns=(0,)), models=sent)
    assert_close(whole_updates(network, received, trained, torch.tensor([0])), torch.tensor([[1.0, 3.0]]))
    assert trained.finite.tolist() == [True]


def test_clusters_change_only_after_the_warm_up():
    flags = {"data": "digits", "clients": 6, "concepts": 2, "beta": 0.9, "rounds": 3, "epochs": 1}
    rounds = []
    for warm_up in (0, 2):
        prepared = prepare(from_flat(method="hcfl+(fedrc)", rho=0.1, warm_up=warm_up, **flags))
        *_, (last, _) = play(prepared.setting, prepared.state, 3)
        rounds.append(min(change.round for change in last.server.changes))
    assert rounds == [1, 3]


@pytest.mark.parametrize(
    ("name", "warm_up", "reason"), [("fedem", 5, "its clusters never change"), ("hcfl++", -1, "0 or more")]
)
def test_a_warm_up_without_sense_is_refused(name, warm_up, reason):
    with pytest.raises(InputError, match=f"warm_up = {warm_up}, but .*{reason}"):
        replace(build(name), warm_up=warm_up)
