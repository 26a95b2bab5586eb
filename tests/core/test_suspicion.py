"""Anomaly scores by hand, quarantine, shortened changes, and averages within a cluster."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl.config import AdmissionConfig, from_flat
from hcfl.core.aggregation import Averaging, aggregate, belongs, within
from hcfl.core.changes import lengths, shortened
from hcfl.core.state import Update
from hcfl.core.suspicion import MEMORY, MOST, Scores, judge, quarantined, scores, suspicion
from hcfl.data import build as federation_of
from hcfl.engines import Batched
from hcfl.engines.faulty import attackers_of
from hcfl.methods import build
from hcfl.methods.robust_means import Median
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble
from hcfl.runs import folder as run_folder
from hcfl.tiers import Prototypes
from helpers import play

NETWORK = Network(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))


def upload(extractors, weights, heads=None, sizes=None) -> tuple[Ensemble, Update]:
    """Participants that changed a shared extractor from zero, and have two heads each."""
    changes = torch.tensor(extractors, dtype=torch.float32)
    clients = len(changes)
    weight = torch.zeros(2 * clients, 2, 2) if heads is None else heads
    received = Ensemble(
        {"weight": torch.zeros(1, 2, 2)}, {"weight": torch.zeros(2, 2, 2), "bias": torch.zeros(2, 2)}, "split"
    )
    counts = torch.ones(clients) if sizes is None else torch.tensor(sizes)
    update = Update(
        clients=tuple(range(clients)),
        sizes=counts,
        models=Ensemble(
            {"weight": changes.view(-1, 2, 2)}, {"weight": weight, "bias": torch.zeros(2 * clients, 2)}, "split"
        ),
        row_participants=torch.arange(clients).repeat_interleave(2),
        started=torch.eye(2).repeat(clients, 1),
        mass=torch.eye(2).repeat(clients, 1) * counts.repeat_interleave(2).unsqueeze(1),
        weights=torch.tensor(weights),
    )
    return received, update


SAME = [1.0, 0.0, 0.0, 0.0]
OWN = [[0.9, 0.1]] * 3 + [[0.1, 0.9]] * 2


def test_direction_and_norm_by_hand():
    received, update = upload([SAME, SAME, [-2.0, 0, 0, 0], [0, 3.0, 0, 0], SAME], OWN)
    found = scores(NETWORK, received, update, features=False)
    assert_close(found.direction, torch.tensor([0.0, 0.0, 2.0, 1.0, 0.0]))
    assert_close(found.norm, torch.tensor([1.0, 1.0, 2.0, 3.0, 1.0]).log())
    assert not found.prototypes.any()
    assert not found.gain.any()


def test_an_upload_without_any_change_is_unlike_the_others():
    received, update = upload([SAME, SAME, [0.0] * 4, SAME, SAME], OWN)
    found = scores(NETWORK, received, update, features=False)
    assert_close(found.direction, torch.tensor([0.0, 0, 1, 0, 0]))
    assert found.norm[2] > 10
    assert not found.norm[[0, 1, 3, 4]].any()


def test_prototypes_and_gain_are_compared_within_a_cluster():
    good = torch.tensor([[5.0, -5.0], [-5.0, 5.0]])
    heads = torch.stack([good, good] * 3 + [-good, -good] * 2)
    heads[4] = -good  # client 2 answers the other class in its own cluster
    received, update = upload([SAME] * 5, OWN, heads)
    means = torch.eye(2).repeat(5, 1, 1)
    means[3:] = means[3:].flip(1)  # the second cluster is another concept
    means[1] = torch.tensor([[1.0, 0.0], [1.0, 0.0]])  # client 1's second class is not its cluster's
    update = replace(update, prototypes=Prototypes(means, torch.ones(5, 2), means.mean(dim=1)))
    found = scores(NETWORK, received, update, features=True)
    assert_close(found.prototypes, torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0]))
    assert_close(found.gain, torch.tensor([0.0, 0.0, 10.0, 0.0, 0.0]))


def test_deviations_are_in_units_of_the_usual_distance_to_the_median():
    nothing = torch.zeros(5)
    found = Scores(torch.tensor([0.0, 1.0, 2.0, 3.0, 100.0]), nothing, nothing, nothing).deviations()
    assert_close(found.direction, torch.tensor([-2.0, -1.0, 0.0, 1.0, 98.0]) / 1.4826)
    assert_close(found.worst, torch.tensor([0.0, 0.0, 0.0, 1 / 1.4826, MOST]))


def test_a_client_belongs_where_its_weight_is_at_least_half_of_its_largest():
    weights = torch.tensor([[0.6, 0.4, 0.0], [0.5, 0.25, 0.25], [0.7, 0.3, 0.0]])
    assert belongs(weights).tolist() == [[True, True, False], [True, True, True], [True, False, False]]


def test_robust_averages_compare_a_clusters_own_clients():
    """Of five heads for each cluster, two or three are its clients'; the others are what was sent out."""
    heads = torch.zeros(10, 2, 2)
    heads[[0, 2, 4]] = 1.0  # the first three clients train the first head
    heads[[7, 9]] = 2.0  # the others the second
    received, update = upload([SAME] * 5, OWN, heads)
    found = aggregate(received, update, Averaging(Median()))
    assert_close(found.heads["weight"], torch.stack([torch.full((2, 2), 1.0), torch.full((2, 2), 2.0)]))
    mean = aggregate(received, update)
    assert_close(mean.heads["weight"][0], torch.full((2, 2), 3 / 5))  # the mean is as it was


def test_models_in_quarantine_reach_no_cluster_with_trusted_clients():
    _, update = upload([SAME] * 5, OWN, sizes=[1.0, 2.0, 3.0, 4.0, 5.0])
    trusted = torch.tensor([True, False, True, False, False])
    found = quarantined(update, trusted)
    assert found.sizes.tolist() == [1.0, 0.0, 3.0, 0.0, 0.0], "nothing of them is in a shared extractor"
    assert found.mass[:, 0].tolist() == [1.0, 0, 0, 0, 3.0, 0, 0, 0, 0, 0]
    # The second cluster has clients in quarantine only: it is theirs.
    assert found.mass[:, 1].tolist() == [0.0, 0, 0, 0, 0, 0, 0, 4.0, 0, 5.0]
    assert within(update).mass[:, 1].tolist() == [0.0, 0, 0, 0, 0, 0, 0, 4.0, 0, 5.0]


def test_suspicion_is_the_mean_over_rounds_and_falls_again():
    received, bad = upload([SAME, SAME, [-1.0, 0, 0, 0], SAME, SAME], OWN)
    _, good = upload([SAME] * 5, OWN)
    first = judge(NETWORK, received, bad, torch.zeros(6, 2), 3.0, features=False)
    assert suspicion(first.evidence).tolist() == [0, 0, MOST, 0, 0, 0], "client 5 never took part"
    assert first.anomalies.quarantined == (2,)
    assert first.update.sizes.tolist() == [1, 1, 0, 1, 1]
    assert first.anomalies.reason(2).startswith(
        "sent uploads that are on average 20 deviations unlike others' (now dir"
    )
    evidence, rounds = first.evidence, 0
    while suspicion(evidence)[2] > 3:
        judged = judge(NETWORK, received, good, evidence, 3.0, features=False)
        evidence, rounds = judged.evidence, rounds + 1
    weights = sum(MEMORY**age for age in range(rounds + 1))
    assert_close(float(suspicion(evidence)[2]), MOST * MEMORY**rounds / weights)
    assert judged.anomalies.released == (2,)
    assert judged.update.sizes.tolist() == [1] * 5


def test_changes_are_shortened_to_a_multiple_of_the_median():
    received, update = upload([SAME, [2.0, 0, 0, 0], [0, 8.0, 0, 0], SAME, SAME], OWN)
    assert_close(lengths(received, update, frozenset()), torch.tensor([1.0, 2, 8, 1, 1], dtype=torch.float64))
    found = shortened(received, update, frozenset(), longest=2.0)
    assert_close(found.models.extractors["weight"].flatten(1)[2], torch.tensor([0.0, 2, 0, 0]))
    assert_close(found.models.extractors["weight"][:2], update.models.extractors["weight"][:2], rtol=0, atol=0)
    assert shortened(received, update, frozenset(), longest=8.0) is update


@pytest.mark.parametrize("name", ["hcfl+(fedem)", "ifca", "fedsoft", "stocfl", "fedgmm"])
def test_uploads_of_every_kind_of_method_can_be_judged(planted, name):
    state, records = play(planted, build(name), 2, engine=Batched(), admission=AdmissionConfig(quarantine=3))
    assert state.server.evidence[:, 1].tolist() == pytest.approx([1 + MEMORY] * 12)
    found = records[-1].anomalies
    assert len(found.suspicion) == 12
    assert torch.tensor([*found.scores.values()]).isfinite().all()


def test_a_backdoor_does_not_get_into_a_run_and_its_events_say_who_tried(tmp_path):
    settings = {"rounds": 6, "clients": 20, "threads": 1, "evaluate_every": 6, "faults": "backdoor=0.2"}
    open_run = hcfl.run("hcfl+(fedrc)", out=tmp_path / "open", **settings)
    run = hcfl.run("hcfl+(fedrc)", out=tmp_path / "run", quarantine=3, **settings)
    rows = [run_folder.rows(one.path, "metrics.jsonl")[-1] for one in (open_run, run)]
    assert rows[0]["backdoor"] > 0.3
    assert rows[1]["backdoor"] < 0.1
    assert "anomalies" not in rows[0]
    assert set(rows[1]["anomalies"]) == {"client", "direction", "norm", "prototypes", "gain", "suspicion"}
    events = [row for row in run_folder.rows(run.path, "events.jsonl") if row["event"] == "quarantined"]
    assert attackers_of(from_flat(**settings), run_federation(run)) <= {row["client"] for row in events}
    assert all("deviations unlike others'" in row["reason"] for row in events)


def run_federation(run):
    return federation_of(run.config.data, run.config.seed)
