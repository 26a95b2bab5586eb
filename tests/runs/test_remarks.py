"""Sentences about results that look better than they are."""

import numpy as np
import torch

import hcfl
from hcfl import Federation
from hcfl.core.held_out import HeldOut
from hcfl.runs import remarks


def rows(*sizes):
    return [{"round": number, "cluster_sizes": list(each)} for number, each in enumerate(sizes, start=1)]


def test_a_method_that_collapsed_is_said_to_have():
    assert remarks.of_clusters("ifca", rows([36, 0], [36, 0])) == [
        "ifca collapsed: in every round, all clients are in one of its 2 clusters"
    ]
    assert remarks.of_clusters("ifca", rows([30, 6], [0, 36], [0, 36])) == [
        "ifca collapsed: since round 2, all clients are in one of its 2 clusters"
    ]
    assert remarks.of_clusters("ifca", rows([6, 6, 0], [6, 6, 0])) == [
        "1 of the 3 clusters of ifca have no clients, in every round"
    ]
    assert remarks.of_clusters("ifca", rows([6, 6])) == []
    assert remarks.of_clusters("fedem", rows([0, 0])) == [], "the server does not know who belongs where"


def test_few_clients_are_told_that_groups_have_two_or_more():
    (told,) = remarks.of_few_clients("hcfl++", 5)
    assert "among 5, a single client" in told
    assert remarks.of_few_clients("hcfl++", 6) == remarks.of_few_clients("hcfl++", 1) == []
    assert remarks.of_few_clients("hcfl+(fedrc)", 3) == []


def predictions(labels, predicted, clients):
    log_probs = torch.nn.functional.one_hot(torch.tensor(predicted), 2).float().clamp_min(1e-3).log()
    return HeldOut.of(torch.tensor(clients), torch.tensor(labels), log_probs).tally()


def test_a_model_that_knows_one_class_only_is_noticed():
    names, members = ("no", "yes"), torch.tensor([0, 1])
    everyone = predictions([0, 0, 1, 0], [0, 0, 0, 0], [0, 0, 1, 1])
    assert remarks.of_classes(everyone, members, (4, 7), names) == [
        "every held-out sample is predicted as class no: Val 75.0% is this class's share"
    ]
    one = predictions([0, 1, 1, 0], [0, 1, 0, 0], [0, 0, 1, 1])
    assert remarks.of_classes(one, members, (4, 7), names) == [
        "every held-out sample of cluster 7 is predicted as class no"
    ]
    assert remarks.of_classes(predictions([0, 1], [0, 1], [0, 1]), members, (4, 7), names) == []
    assert remarks.of_classes(None, members, (4, 7), names) == []


def test_a_run_on_rare_positives_says_so(tmp_path):
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(300, 4)).astype(np.float32), np.zeros(300, dtype=int)
    y[::25] = 1
    federation = Federation.from_arrays(x, y, client=np.arange(300) % 5)
    run = hcfl.run("fedavg", federation, rounds=2, lr=0.01, seed=1, out=tmp_path / "run")
    assert 0.9 < run.summary["val_last"] < 1
    assert run.summary["balanced_accuracy"] == 0.5
    (warning,) = run.summary["warnings"]
    assert warning.startswith("every held-out sample is predicted as class 0: Val ")


def test_refused_uploads_are_counted(tmp_path):
    run = hcfl.run("fedavg", clients=8, samples=160, rounds=2, faults="nan=0.25,drop=0.25", out=tmp_path / "run")
    assert (run.summary["clients_refused"], run.summary["clients_absent"]) == (4, 4)
    assert "4 uploads were refused, 8 counted; events.jsonl has the reasons" in run.summary["warnings"]
