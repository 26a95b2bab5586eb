"""From a configuration to a run folder: the stable contract (docs/run-folder.md)."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hcfl
from hcfl import Config, Federation, InputError
from hcfl.config import TrainingConfig
from hcfl.core.cluster_log import Split
from hcfl.launch import execute
from hcfl.methods import METHODS, build
from hcfl.runs.defaults import filled_training
from hcfl.runs.folder import event_row
from hcfl.runs.measured import Measured
from hcfl.runs.prepare import prepare
from hcfl.runs.tables import client_rows, describe_partition, summarise
from helpers import blobs, play

SMALL = {"rounds": 3, "clients": 6}

METRICS = {
    "round", "objective", "val", "test", "test_per_concept", "clusters", "cluster_sizes", "ari", "ari_affected",
    "nmi", "purity", "bytes_up", "bytes_down", "seconds",
}  # fmt: skip
SUMMARY = {
    "method", "data", "seed", "rounds", "val_best", "val_best_round", "test_best", "test_best_round", "val_last",
    "test_last", "test_at_best_val", "clusters_last", "clusters_max", "clusters_true", "ari_last",
    "ari_affected_last", "seconds_per_round", "bytes_up", "bytes_down", "epsilon", "delta",
}  # fmt: skip


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_the_default_data_and_leaves_a_run_folder(method, tmp_path):
    run = hcfl.run(method, out=tmp_path / "run", **SMALL)
    assert {path.name for path in run.path.iterdir()} == {
        "config.yaml", "metrics.jsonl", "events.jsonl", "splits.jsonl", "clients.csv", "classes.csv",
        "confusion.csv", "scores.csv", "summary.json", "checkpoint",
    }  # fmt: skip
    metrics = lines(run.path / "metrics.jsonl")
    assert metrics == run.rows
    assert [row["round"] for row in metrics] == [1, 2, 3]
    for row in metrics:
        assert row.keys() >= METRICS
        assert 0 <= row["val"] <= 1
        assert 0 <= row["test"] <= 1
        assert row["test"] == pytest.approx(sum(row["test_per_concept"]) / 3)
        assert sum(row["cluster_sizes"]) == 6
        assert len(row["cluster_sizes"]) == len(row["cluster_ids"])
        assert sum(size > 0 for size in row["cluster_sizes"]) == row["clusters"]
        assert row["bytes_up"] == sum(row["bytes_up_by_part"].values())
        assert row["seconds_by_phase"].keys() == {"clients", "server", "evaluation"}
        assert row["seconds"] == sum(row["seconds_by_phase"].values())
    summary = json.loads((run.path / "summary.json").read_text())
    assert summary == run.summary
    assert summary.keys() >= SUMMARY
    assert summary["method"] == method
    assert summary["clusters_true"] == 3
    assert summary["val_last"] == metrics[-1]["val"]
    assert summary["bytes_up"] == sum(row["bytes_up"] for row in metrics)
    with (run.path / "clients.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert [row["client"] for row in clients] == [str(i) for i in range(6)]
    assert {row["true_concept"] for row in clients} == {"0", "1", "2"}
    for row in clients:
        weights = [float(value) for key, value in row.items() if key.startswith("weight_")]
        assert sum(weights) == pytest.approx(1, abs=1e-4)
        assert f"weight_{row['cluster']}" in row


def test_the_summary_names_best_rounds_honestly(tmp_path):
    run = hcfl.run("fedavg", out=tmp_path / "run", rounds=6, clients=6)
    vals = [row["val"] for row in run.rows]
    tests = [row["test"] for row in run.rows]
    assert run.summary["val_best"] == max(vals)
    assert run.summary["val_best_round"] == vals.index(max(vals)) + 1
    assert run.summary["test_best_round"] == tests.index(max(tests)) + 1
    assert run.summary["test_at_best_val"] == tests[vals.index(max(vals))]


def timeless(path):
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in lines(path)]


def test_running_a_written_configuration_again_gives_the_same_metrics(tmp_path):
    settings = {"rounds": 4, "clients": 9, "participation": 0.7, "rho": 0.1, "seed": 3}
    first = hcfl.run("hcfl+(fedrc)", out=tmp_path / "one", **settings)
    config = Config.load(first.path / "config.yaml")
    assert None not in (config.training.batch, config.training.epochs, config.method.rho, config.data.alpha)
    again = execute(prepare(config), tmp_path / "two")
    assert timeless(first.path / "metrics.jsonl") == timeless(again.path / "metrics.jsonl")
    assert (first.path / "events.jsonl").read_text() == (again.path / "events.jsonl").read_text()
    assert (first.path / "clients.csv").read_text() == (again.path / "clients.csv").read_text()
    assert (first.path / "config.yaml").read_text() == (again.path / "config.yaml").read_text()


def test_events_tell_who_split_from_whom_and_why(planted, tmp_path):
    run = hcfl.run("hcfl+(fedrc)", planted, "mlp", out=tmp_path / "run", rounds=8)
    events = lines(run.path / "events.jsonl")
    assert any(event["event"] == "split" for event in events)
    for event in events:
        assert event.keys() == {
            "event", "round", "cluster", "new_cluster", "members", "max_distance", "mean_distance", "threshold",
        }  # fmt: skip
        if event["event"] == "split":
            assert set(event["members"]) == {str(event["cluster"]), str(event["new_cluster"])}
            assert all(event["members"].values())
            assert event["max_distance"] - event["mean_distance"] >= event["threshold"] == 0.3


def test_a_natural_federation_has_nulls_where_nobody_knows(tmp_path):
    x, y = blobs()
    path = tmp_path / "mine.npz"
    np.savez(path, x=x, y=y, client=np.array(["a", "b", "c", "d"])[np.arange(len(y)) % 4])
    run = hcfl.run("hcfl+(fedem)", str(path), out=tmp_path / "run", rounds=2)
    assert run.summary["data"] == str(path)
    for key in ("test_last", "test_best", "test_at_best_val", "clusters_true", "ari_last", "ari_affected_last"):
        assert run.summary[key] is None
    assert run.summary["val_last"] is not None
    assert run.rows[0]["test_per_concept"] is None
    assert "a,108,,0," in (run.path / "clients.csv").read_text()


@pytest.mark.parametrize(
    ("shape", "model"), [((10, 12), "cnn1d"), ((20, 20), "cnn"), ((18, 20, 3), "cnn"), ((8,), "mlp")]
)
def test_images_series_and_vectors_all_work(tmp_path, shape, model):
    generator = np.random.default_rng(0)
    y = np.arange(80) % 2
    x = generator.normal(size=(80, *shape)) + 2 * y.reshape(-1, *[1] * len(shape))
    run = hcfl.run("hcfl+(fedrc)", Federation.from_arrays(x, y, clients=2), out=tmp_path / "run", rounds=2)
    assert run.config.model.name == model
    assert run.summary["val_last"] > 0.5


def test_a_user_s_own_modules(planted, tmp_path):
    extractor = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1))
    pair = (extractor, nn.Linear(16, planted.classes))
    before = extractor[0].weight.detach().clone()
    runs = [hcfl.run("hcfl+(fedrc)", planted, pair, out=tmp_path / name, rounds=3) for name in ("one", "two")]
    assert runs[0].config.model.name == "custom"
    assert timeless(runs[0].path / "metrics.jsonl") == timeless(runs[1].path / "metrics.jsonl"), "dropout is seeded too"
    assert torch.equal(extractor[0].weight, before), "the user's module stays as it was"
    assert "1.running_mean" in runs[0].state.server.ensemble.extractors


@pytest.mark.parametrize("method", ["fedavg", "hcfl+(fedrc)", "fesem"])
def test_models_without_extractor_parameters_and_heads_with_dropout(planted, tmp_path, method):
    bare = (nn.Flatten(), nn.Linear(8, planted.classes))
    assert hcfl.run(method, planted, bare, out=tmp_path / "bare", rounds=2).summary["val_last"] > 0.2
    dropout = (nn.Linear(8, 8), nn.Sequential(nn.Dropout(0.2), nn.Linear(8, planted.classes)))
    hcfl.run(method, planted, dropout, out=tmp_path / "dropout", rounds=2)


def test_batch_normalisation_with_a_client_of_one_sample(tmp_path):
    x, y = blobs(per_class=10)
    federation = Federation.from_arrays(x, y, client=np.where(np.arange(len(y)) == 3, 1, 0))
    pair = (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), nn.Linear(8, 4))
    hcfl.run("fedavg", federation, pair, out=tmp_path / "run", rounds=2)


@pytest.mark.parametrize("method", ["fedem", "hcfl+(fedrc)"])
def test_training_that_diverges_stops_with_a_sentence_and_keeps_what_was_before(tmp_path, method):
    with pytest.raises(InputError, match=r"training.lr = 1000: training diverged in round \d"):
        hcfl.run(method, out=tmp_path / "run", rounds=30, clients=3, lr=1000)
    rows = lines(tmp_path / "run" / "metrics.jsonl")
    assert rows
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_run_that_completes_no_round_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(hcfl.core.rounds, "play", lambda *_: iter(int, None) and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hcfl.run("fedavg", out=tmp_path / "run", rounds=2, clients=3)
    assert not (tmp_path / "run").exists()


def test_a_federation_from_python_keeps_its_settings(tmp_path):
    x, y = blobs()
    dealt = Federation.from_arrays(x, y, clients=4, alpha=0.5, alpha_reading="total", beta=0.5)
    run = hcfl.run("fedavg", dealt, out=tmp_path / "dealt", rounds=1)
    assert run.summary["partition"] == "lda alpha=0.5 (total), 3 concepts beta=0.5 (plus-one)"
    natural = Federation.from_arrays(x, y, client=y % 2)
    assert hcfl.run("fedavg", natural, out=tmp_path / "natural", rounds=1).summary["partition"] == "natural"


def test_a_path_is_data_too(tmp_path):
    x, y = blobs()
    np.savez(tmp_path / "mine.npz", x=x, y=y, client=np.array([b"a", b"b"])[y % 2])
    run = hcfl.run("hcfl+(fedem)", tmp_path / "mine.npz", out=tmp_path / "run", rounds=1, rho=0.01)
    assert run.federation.client_names == ("a", "b")


def test_clients_train_as_the_configuration_says():
    wanted = {"lr": 0.5, "momentum": 0.1, "weight_decay": 0.2, "batch": 7, "epochs": 3, "order": "together"}
    wanted |= {"drop_last": True}
    sgd = prepare(Config.parse({"training": wanted})).setting.sgd
    assert {name: getattr(sgd, name) for name in wanted} == wanted


def test_small_clients_take_more_and_smaller_steps(planted):
    x, y = blobs(per_class=400)
    large = Federation.from_arrays(x, y, clients=2)
    config = TrainingConfig()
    small_steps, large_steps = (filled_training(config, f, build("fedavg")) for f in (planted, large))
    assert (small_steps.batch, small_steps.epochs) == (16, 5)
    assert (large_steps.batch, large_steps.epochs) == (128, 1)
    asked = filled_training(TrainingConfig(batch=7), planted, build("fedavg"))
    assert (asked.batch, asked.epochs) == (7, 5)


def test_the_order_is_the_method_s_unless_it_is_asked_for(planted):
    orders = [filled_training(TrainingConfig(), planted, build(name)).order for name in ("hcfl+(fedrc)", "hcfl++")]
    assert orders == ["heads-first", "auto"]
    assert filled_training(TrainingConfig(order="heads-first"), planted, build("hcfl++")).order == "heads-first"


def test_a_folder_that_holds_a_run_is_never_overwritten(tmp_path):
    hcfl.run("fedavg", out=tmp_path / "run", rounds=1, clients=3)
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(InputError, match="already holds a run"):
        hcfl.run("fedavg", out=tmp_path / "run", rounds=1, clients=3)
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def test_by_default_every_run_gets_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [str(hcfl.run("fedavg", rounds=1, clients=3).path) for _ in range(2)]
    assert paths == ["runs/digits-fedavg-seed0", "runs/digits-fedavg-seed0-2"]


def test_an_interruption_leaves_a_folder_that_is_whole_up_to_its_last_round(tmp_path):
    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hcfl.run("fedavg", out=tmp_path / "run", rounds=5, clients=3, on_round=stop)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2
    assert (tmp_path / "run" / "checkpoint" / "round-2.safetensors").exists()


def test_the_process_s_own_number_of_threads_comes_back(tmp_path):
    torch.set_num_threads(2)
    hcfl.run("fedavg", out=tmp_path / "run", rounds=1, clients=3, threads=1)
    assert torch.get_num_threads() == 2


def test_what_cannot_be_is_refused(planted):
    with pytest.raises(InputError, match=r"alpha = 1: the data that was passed is already built"):
        hcfl.run("fedavg", planted, alpha=1)
    with pytest.raises(InputError, match="data = None: must be a name or a Federation"):
        hcfl.run("fedavg", None)
    with pytest.raises(InputError, match="model: must be a pair of modules"):
        hcfl.run("fedavg", planted, nn.Linear(8, 4))
    with pytest.raises(InputError, match=r"model: building it failed .TypeError"):
        hcfl.run("fedavg", planted, lambda: None)
    with pytest.raises(InputError, match=r"device = 'tpu9': is not a device of this machine"):
        hcfl.run("fedavg", device="tpu9")
    with pytest.raises(InputError, match=r"output has 3 values per sample, but the data need 4"):
        hcfl.run("fedavg", planted, (nn.Linear(8, 5), nn.Linear(5, 3)))


def test_the_summary_by_hand():
    columns = {
        "round": [1, 2, 3, 4],
        "val": [0.5, 0.7, 0.7, 0.6],
        "test": [0.9, 0.4, 0.8, 0.8],
        "clusters": [1, 4, 3, 2],
        "cluster_ids": [[0], [0, 1, 2, 3], [0, 1, 2], [0, 1, 2]],
        "likelihood": [-3.0, -1.0, -2.0, None],
        "refused": [0, 2, 0, 1],
        "ari": [0.0, 0.1, 0.2, 0.3],
        "ari_affected": [None] * 4,
        "seconds": [1.0, 2.0, 3.0, 6.0],
        "bytes_up": [1, 2, 3, 4],
        "bytes_down": [10, 20, 30, 40],
    }
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    summary = summarise("mine", Config(), 3, rows)
    assert (summary["val_best"], summary["val_best_round"]) == (0.7, 2), "the first of equals"
    assert (summary["test_best"], summary["test_best_round"]) == (0.9, 1)
    assert summary["test_at_best_val"] == 0.4
    assert (summary["clusters_last"], summary["clusters_max"], summary["clusters_empty_last"]) == (2, 4, 1)
    assert summary["test_served"] == 0.4, "of the round with the largest likelihood"
    assert (summary["clients_refused"], summary["clients_absent"]) == (3, 0)
    assert summary["seconds_per_round"] == 3.0
    assert (summary["bytes_up"], summary["bytes_down"]) == (10, 100)


def test_clients_csv_names_clusters_by_id_and_concepts_by_name(planted):
    state, _ = play(planted, hcfl.methods.build("fedem", clusters=2), 1)
    members = torch.tensor([1, -1] + [0] * 10)
    state = replace(state, server=replace(state.server, clusters=(5, 8), members=members))
    federation = replace(planted, truth=replace(planted.truth, names=("a", "b", "c")))
    header, first, second, third, *_ = client_rows(federation, state, Measured())
    assert header[-2:] == ["weight_5", "weight_8"]
    assert [row[3] for row in (first, second, third)] == [8, "", 5]
    assert first[2] == "abc"[planted.truth.concept[0]]


def test_an_event_names_the_clients_of_both_parts():
    row = event_row(Split(2, 5, 8, (0, 1), (2,), "halve", 0.9, 0.2, 0.3), ["ann", "bob", "cat"])
    assert row["members"] == {5: ["ann", "bob"], 8: ["cat"]}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"partition": "lda", "alpha": 0.5, "alpha_reading": "total", "beta": 0.2, "concepts": 3},
            "lda alpha=0.5 (total), 3 concepts beta=0.2 (plus-one)",
        ),
        (
            {"partition": "classes", "classes_per_client": 2, "grouping": "random", "noise": "pair", "noise_rate": 0.1},
            "2 classes per client (random), pair noise 0.1",
        ),
    ],
)
def test_a_partition_is_described_with_its_readings(data, words):
    assert describe_partition(Config.parse({"data": data})) == words
