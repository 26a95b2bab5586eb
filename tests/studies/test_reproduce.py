"""The paper's tables as configurations: complete, valid, resumable, ours beside theirs."""

import csv
import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

import hcfl
from hcfl.cli import main
from hcfl.config import Config, from_flat
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.runs.prepare import method_of
from hcfl.studies import jobs, paper_tables, pool, reproduce
from hcfl.studies.paper_tables import Column, Row, Table

TABLES = paper_tables.names()
ON_DIGITS = ["--set", "data.source=digits", "--set", "data.scenario=null", "--set", "data.resize=null"]
ON_DIGITS += ["--set", "data.clients=6", "--set", "data.samples=300", "--set", "training.rounds=2"]


def test_all_tables_of_the_paper_are_there():
    with (paper_tables.HERE / "paper.csv").open(encoding="utf-8") as file:
        printed = {row["table"] for row in csv.DictReader(file)}
    ours = {paper_tables.load(name).paper for name in TABLES}
    assert printed <= ours
    assert ours - printed == {"figure"}


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_is_a_valid_configuration_of_a_known_method(name, tmp_path):
    table = paper_tables.load(name)
    for scale in ("paper", "small"):
        for cell in reproduce.cells_of(table, table.rows, 1, scale, (), tmp_path):
            config = cell.tasks[0].config
            assert isinstance(method_of(config.method), Method)
            assert config.training.rounds == (200 if scale == "paper" else 12)
            assert config.data.clients == (100 if scale == "paper" else 20)


@pytest.mark.parametrize("name", [name for name in TABLES if name != "clusters-over-rounds"])
def test_every_printed_number_of_the_paper_has_its_place(name):
    table = paper_tables.load(name)
    with (paper_tables.HERE / "paper.csv").open(encoding="utf-8") as file:
        printed = [row for row in csv.DictReader(file) if row["table"] == table.paper]
    found = {
        (row.paper["method"], row.paper["setting"], column.paper["dataset"], column.paper["scenario"], metric)
        for row in (*table.rows, *table.quoted)
        for column in table.columns
        for metric in table.metrics
        if paper_tables.paper_value(table, row, column, metric) is not None
    }
    for row in printed:
        key = tuple(row[part] for part in ("method", "setting", "dataset", "scenario", "metric"))
        if row["metric"] != "samples":  # the class table, below
            assert key in found, key


def test_the_paper_s_class_table_has_each_pair_of_classes_whole_in_one_cluster():
    table = paper_tables.paper_class_table()
    assert [len(row) for row in table] == [10] * 5
    assert sorted(sum(row) for row in table) == [9000] * 5
    assert all(sum(count > 0 for count in row) == 2 for row in table)
    assert all(sum(count > 0 for count in column) == 1 for column in zip(*table, strict=True))


def test_rows_that_stand_in_another_table_are_quoted_and_not_run(tmp_path):
    table = paper_tables.load("small-rho")
    quoted = reproduce.numbers(table, [])
    assert {number.method for number in quoted} == {"Baselines (best)", "HCFL+ (best in main)"}
    assert str(quoted[0]) == "– [69.76]"
    assert len(reproduce.cells_of(table, table.rows, 1, "paper", (), tmp_path)) == 2


def test_two_who_run_the_same_take_turns(tmp_path):
    task = jobs.task_of(from_flat(method="fedavg", clients=3, rounds=2), tmp_path)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(jobs.run, [task, task]))
    rounds = [json.loads(line)["round"] for line in (task.folder / "metrics.jsonl").read_text().splitlines()]
    assert rounds == [1, 2]
    assert task.done
    (task.folder / jobs.RESULT).write_text("{")
    assert not task.done, "what cannot be read is no result"


def test_the_paper_s_numbers_are_looked_up_by_row_and_column():
    table = paper_tables.load("main")
    row = next(row for row in table.rows if row.label == "HCFL+ (FedRC), ρ = 0.3")
    found = [paper_tables.paper_value(table, row, table.columns[0], metric) for metric in table.metrics]
    assert found == [69.33, 69.67, 3.0]
    assert [paper_tables.paper_value(table, row, column, "val") for column in table.columns] == [69.33, 39.97, 42.6]
    published = [row for row in table.rows if row.label.startswith("CFL (0.4, 1.6)")]
    assert [dict(row.settings["method"]).get("max_coordinate", False) for row in published] == [True, False]
    assert {paper_tables.paper_value(table, row, table.columns[0], "val") for row in published} == {61.55}


def test_the_paper_s_rows_do_what_the_code_behind_its_numbers_does():
    wanted = {
        "ifca": {"zero_empty": True},
        "fesem": {"zero_empty": True, "independent_start": True},
        "icfl": {"cosine_of": "parameters"},
    }
    found = set()
    for name in paper_tables.names():
        for row in paper_tables.load(name).rows:
            method = dict(row.settings["method"])
            if "as published" in row.label:
                assert (method["max_coordinate"], method["lost_ids"]) == (True, True)
            switches = wanted.get(method["name"], {})
            assert {key: method.get(key) for key in switches} == switches, (name, row.label)
            found |= {method["name"]}
    assert set(wanted) < found


def test_best_rounds_and_one_round_for_all():
    result = {"val": [0.1, 0.5, 0.3], "test": [0.4, 0.2, 0.3], "clusters": [1, 4, 3], "memory_mb": 7}
    shown = {
        at: [reproduce._measure(result, at, metric) for metric in ("val", "test")]
        for at in ("best", "best-val", "best-test")
    }
    assert shown == {"best": [50.0, 40.0], "best-val": [50.0, 20.0], "best-test": [10.0, 40.0]}
    assert reproduce._measure(result, "best", "clusters") == 3
    assert reproduce._measure(result, "best", "max_clusters") == 4
    assert reproduce._measure(result, "best", "memory_mb") == 7


def test_a_table_runs_resumes_and_shows_ours_beside_the_paper_s(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["reproduce", "cluster-quality", "--seeds", "2", "--workers", "2", "--out", "r", *ON_DIGITS]
    command += ["--set", "data.classes_per_client=2"]
    assert main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Scale: small. Not mobilenet-v2, 200 rounds" in text
    assert "but mlp, 2 rounds and 6 clients with 300 samples" in text, "what --set says, not what the scale would"
    assert "Runs: 2, 2 of them still to do" in text
    assert "training samples by cluster" in text
    folders = sorted(path for path in (tmp_path / "r" / "small").iterdir() if path.is_dir())
    assert len(folders) == 2
    result = json.loads((folders[0] / jobs.RESULT).read_text())
    config = Config.load(folders[0] / "config.yaml")
    assert len(result["val"]) == 2
    assert result["memory_mb"] > 10
    per_class = [sum(row[label] for row in result["class_table"]) for label in range(10)]
    assert sum(per_class) < config.data.samples
    assert all(per_class), "every class is some cluster's"

    # What is there stays; what an interruption left is begun anew.
    (folders[1] / jobs.RESULT).unlink()
    before = (folders[0] / "metrics.jsonl").stat().st_mtime_ns
    assert main(command) == 0
    assert "Runs: 2, 1 of them still to do" in capsys.readouterr().out
    assert (folders[0] / "metrics.jsonl").stat().st_mtime_ns == before
    with (tmp_path / "r" / "cluster-quality-small.csv").open(encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["metric"], row["data"]) == ("clusters", "C = 2")
    assert float(row["ours"]) >= 1
    assert row["std"] != ""


def test_tables_share_runs_and_seeds_do_not(tmp_path):
    main_table, ablation = paper_tables.load("main"), paper_tables.load("ablation-distance")
    cells = reproduce.cells_of(main_table, main_table.rows, 2, "paper", (), tmp_path)
    others = reproduce.cells_of(ablation, ablation.rows[:1], 1, "paper", (), tmp_path)
    folders = {task.folder for cell in cells for task in cell.tasks}
    assert len(folders) == 2 * len(main_table.rows) * 3
    assert others[0].tasks[0].folder in folders
    faster = reproduce.cells_of(ablation, ablation.rows[:1], 1, "paper", [("device", "cuda")], tmp_path)
    assert faster[0].tasks[0].folder == others[0].tasks[0].folder, "where it runs is no setting of the experiment"
    alone = reproduce.cells_of(ablation, ablation.rows[:1], 1, "paper", [("threads", 1)], tmp_path)
    assert alone[0].tasks[0].folder == others[0].tasks[0].folder


def test_numbers_are_means_over_seeds_with_their_sample_deviation(tmp_path):
    table = paper_tables.load("main")
    row = next(row for row in table.rows if row.label == "HCFL+ (FedRC), ρ = 0.3")
    cells = reproduce.cells_of(table, [row], 3, "paper", (), tmp_path)[:1]
    for task, val in zip(cells[0].tasks, (0.25, 0.5, 0.75), strict=True):
        task.folder.mkdir(parents=True)
        result = {"val": [0.125, val], "test": [None, None], "clusters": [2, 3]}
        (task.folder / jobs.RESULT).write_text(json.dumps(result))
    val, _, clusters = reproduce.numbers(table, cells)
    assert (val.ours, val.std, val.paper, str(val)) == (50.0, 25.0, 69.33, "50.0 ± 25.0 [69.33]")
    assert (clusters.ours, clusters.std) == (3.0, 0.0)
    (one,) = reproduce.cells_of(table, [row], 1, "paper", (), tmp_path)[:1]
    assert reproduce.numbers(table, [one])[0].std is None


def test_threads_that_were_asked_for_stay_and_what_was_left_unfinished_is_begun_anew(tmp_path):
    values = {"method": {"name": "fedavg"}, "data": {"source": "digits", "clients": 4}, "training": {"rounds": 1}}
    for asked, used in ((2, 2), (None, 1)):
        task = jobs.Task(Config.parse({**values, "threads": asked}), tmp_path / str(asked))
        task.folder.mkdir()
        (task.folder / "stale").touch()
        jobs.run(task, threads=1)
        assert Config.load(task.folder / "config.yaml").threads == used
        assert task.done
        assert not (task.folder / "stale").exists()


def test_the_class_table_counts_every_client_that_has_a_cluster(tmp_path):
    run = hcfl.run("fedavg", clients=6, rounds=1, out=tmp_path / "run")
    federation, state = run.federation, run.state

    def counts(clients):
        return torch.bincount(torch.cat([federation.y[federation.train[c]] for c in clients]), minlength=10).tolist()

    assert jobs._class_table(run) == [counts(range(6))]
    absent = torch.where(torch.arange(6) < 4, state.server.members, -1)
    fewer = replace(run, state=replace(state, server=replace(state.server, members=absent)))
    assert jobs._class_table(fewer) == [counts(range(4))]


def test_a_row_s_settings_go_before_its_column_s_and_those_before_the_table_s():
    column = Column("c", {"data": {"alpha": 2, "beta": 2}}, {})
    row = Row("r", {"data": {"alpha": 3}}, {})
    settings = {"data": {"alpha": 1, "beta": 1, "clients": 1}, "model": {"name": "mobilenet-v2", "norm": "group"}}
    table = Table("t", "", "", "", ("val",), settings, (column,), (row,))
    paper = paper_tables.settings_of(table, row, column, "paper")
    assert paper == {
        "data": {"alpha": 3, "beta": 2, "clients": 1, "test_on": "tenth"},
        "model": settings["model"],
    }
    small = paper_tables.settings_of(table, row, column, "small")
    assert small["model"] == paper_tables.small_scale()["model"], "another model has other settings"
    assert small["data"]["clients"] == paper_tables.small_scale()["data"]["clients"]
    assert settings["data"]["alpha"] == 1, "what was passed in stays as it is"


def test_rows_are_chosen_by_name():
    table = paper_tables.load("main")
    assert [row.label for row in paper_tables.chosen_rows(table, ["icfl"])] == ["ICFL (0.85)", "ICFL (0.98)"]
    assert len(paper_tables.chosen_rows(table, ["fedavg", "hcfl+*0.3"])) == 4
    assert paper_tables.chosen_rows(table, []) == table.rows
    with pytest.raises(InputError, match=r"--rows 'fedprox': no row of main has this name; its rows are FedAvg; FeSEM"):
        paper_tables.chosen_rows(table, ["fedprox"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["maim"], r"table = 'maim': must be one of .*did you mean main\?"),
        (["main", "--scale", "huge"], "--scale huge: must be small or paper"),
        (["main", "--seeds", "0"], "--seeds 0: must be a whole number from 1 on"),
        (["main", "--workers", "x"], "--workers x: must be a whole number from 1 on"),
        (["main", "--set", "training.rounds"], "must look like data.alpha=0.5"),
        (["main", "--set", "training.lr=-1"], "training.lr = '-1': should be greater than 0"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path):
    assert main(["reproduce", *arguments, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(words, error), error


def test_a_run_that_fails_is_told_in_one_sentence(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HCFL_DATA", str(tmp_path / "nowhere"))
    assert main(["reproduce", "icfl-rounds", "--out", str(tmp_path / "r")]) == 2
    error = capsys.readouterr().err
    assert "cifar100" in error
    assert "Traceback" not in error


def test_a_process_that_dies_is_told_not_waited_for(tmp_path):
    (tmp_path / "die.py").write_text("import os\n\ndef build(shape, classes):\n    os._exit(3)\n")
    config = from_flat(method="fedavg", clients=3, model=f"{tmp_path / 'die.py'}:build")
    with pytest.raises(InputError, match="its process ended with code 3 before the run was complete"):
        pool.run_apart(jobs.task_of(config, tmp_path / "r"), threads=1)


def test_tables_are_listed(capsys):
    assert main(["reproduce"]) == 0
    text = capsys.readouterr().out
    for name in TABLES:
        assert name in text
