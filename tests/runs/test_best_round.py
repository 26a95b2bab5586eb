"""The round that is served: chosen by held-out likelihood, kept beside the last, the same after a resume."""

import csv
from dataclasses import replace

import numpy as np
import pytest

import hcfl
from hcfl.config import Config
from hcfl.core.evaluation import predict_held_out
from hcfl.launch import resume
from hcfl.runs import best_round
from helpers import same

SETTINGS = {"rounds": 5, "lr": 0.8, "batch": 16, "epochs": 3, "seed": 1, "checkpoint_every": 1}
"""Steps so long that the last round is not the best one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def digits(folder):
    run = hcfl.run("fedgmm", clients=6, samples=240, out=folder / "run", **SETTINGS)
    assert run.summary["served_round"] < 5, "else these tests show nothing"
    return run


def _same_numbers(one, two):
    assert [{**row, "seconds": 0, "seconds_by_phase": 0} for row in one] == [
        {**row, "seconds": 0, "seconds_by_phase": 0} for row in two
    ]


def test_the_round_with_the_largest_likelihood_is_served(digits):
    likelihoods = [row["likelihood"] for row in digits.rows]
    served = digits.summary["served_round"]
    assert served == 1 + likelihoods.index(max(likelihoods))
    assert digits.served.server.round == served
    assert digits.summary["test_served"] == digits.rows[served - 1]["test"]


def test_serving_changes_nothing_of_the_training(digits, folder):
    last = hcfl.run("fedgmm", clients=6, samples=240, serve="last", out=folder / "last", **SETTINGS)
    _same_numbers(last.rows, digits.rows)
    same(last.state.server.ensemble.heads, digits.state.server.ensemble.heads)
    assert last.summary["served_round"] == 5
    assert last.summary["served_bytes"] == 0
    assert not (last.path / "checkpoint" / best_round.FILE).exists()


def test_val_of_what_is_served_is_measured_on_samples_that_did_not_choose_it(digits):
    server = digits.served.server
    found = predict_held_out(digits.federation, digits.network, digits.method, server, digits.served.clients)
    others = found.right[1::2]
    assert digits.summary["val_served"] == pytest.approx(others.double().mean().item())


def test_a_folder_opens_with_its_best_round_or_with_its_last(digits):
    x = digits.federation.x[:20].numpy()
    best, last = hcfl.load(digits.path), hcfl.load(digits.path, serve="last")
    assert np.array_equal(best.predict_proba(x, client=2), digits.predict_proba(x, client=2))
    assert not np.array_equal(best.predict_proba(x, client=2), last.predict_proba(x, client=2))
    assert last.served is last.state
    assert best.assign(x).note == digits.assign(x).note
    with pytest.raises(hcfl.InputError, match="serve = 'first': must be best or last"):
        hcfl.load(digits.path, serve="first")


def test_a_run_that_was_interrupted_after_its_best_round_still_serves_it(digits, folder):
    served = digits.summary["served_round"]
    short = {**SETTINGS, "rounds": served + 1}
    hcfl.run("fedgmm", clients=6, samples=240, out=folder / "short", **short)
    config = (folder / "short" / "config.yaml").read_text(encoding="utf-8")
    longer = Config.from_yaml(config).updated("training", rounds=5).to_yaml()
    (folder / "short" / "config.yaml").write_text(longer, encoding="utf-8")
    again = resume(folder / "short")
    assert again.summary["served_round"] == served
    same(again.served.server.ensemble.heads, digits.served.server.ensemble.heads)
    assert again.summary["val_served"] == digits.summary["val_served"]


def test_the_best_round_may_be_the_one_a_run_goes_on_from(digits):
    rows = [{"round": 1, "likelihood": -2.0}, {"round": 2, "likelihood": -1.0}, {"round": 3, "likelihood": None}]
    state = replace(digits.state, server=replace(digits.state.server, round=2))
    assert best_round.restored(digits.path / "nowhere", rows, state).likelihood == -1.0
    assert best_round.restored(digits.path / "nowhere", rows, digits.state) is None, "its file is lost"
    assert best_round.restored(digits.path / "nowhere", [{"round": 1}], state) is None, "rows of an older version"


def test_noise_that_protects_clients_is_not_undone_by_a_choice(folder):
    run = hcfl.run("fedavg", clients=4, samples=120, rounds=2, privacy="central-dp", out=folder / "private")
    assert [row["likelihood"] for row in run.rows] == [None, None]
    assert run.summary["served_by"] == "last"


def test_files_have_accuracy_by_client_and_by_class(digits):
    with (digits.path / "clients.csv").open(encoding="utf-8", newline="") as file:
        clients = list(csv.DictReader(file))
    held_out = [int(row["held_out"]) for row in clients]
    accuracy = [float(row["accuracy"]) for row in clients]
    assert np.average(accuracy, weights=held_out) == pytest.approx(digits.summary["val_last"], abs=1e-5)
    assert min(accuracy) == pytest.approx(digits.summary["val_worst_client"], abs=1e-5)
    with (digits.path / "confusion.csv").open(encoding="utf-8", newline="") as file:
        counts = list(csv.DictReader(file))
    right = sum(int(row["samples"]) for row in counts if row["label"] == row["predicted"])
    assert right / sum(held_out) == pytest.approx(digits.summary["val_last"])
    assert sum(int(row["samples"]) for row in counts) == sum(held_out)
