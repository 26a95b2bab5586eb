"""Scenarios by name: all that the paper uses, below flags and files, resolved in what a run leaves."""

import csv

import numpy as np
import pytest
import yaml

from hcfl.cli import main
from hcfl.config import Config, from_flat, scenarios
from hcfl.data import Federation
from hcfl.errors import InputError
from image_files import hub_folder, pictures

SHIFTED = {
    "partition": "lda",
    "alpha": 1.0,
    "alpha_reading": "total",
    "corruptions": "random",
    "beta": 0.2,
    "copies": 3,
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("diverse", SHIFTED),
        *((f"diverse-{beta}", {**SHIFTED, "beta": beta}) for beta in (0.1, 0.4, 0.9)),
        *((f"pair-{rate}", {**SHIFTED, "noise": "pair", "noise_rate": rate}) for rate in (0.1, 0.2)),
        *((f"symmetric-{rate}", {**SHIFTED, "noise": "symmetric", "noise_rate": rate}) for rate in (0.2, 0.4)),
        ("c2", {"classes_per_client": 2, "grouping": "grouped", "corruptions": "none", "beta": 0.0}),
        ("c4", {"classes_per_client": 4, "grouping": "random", "corruptions": "none", "beta": 0.0}),
        ("natural", {"partition": "natural"}),
    ],
)
def test_what_each_scenario_is(name, settings):
    data = from_flat(scenario=name).data.model_dump()
    assert {key: data[key] for key in settings} == settings
    assert data["clients"] == (None if name == "natural" else 100)


def test_every_scenario_is_tested_and_described(capsys):
    assert len(scenarios.names()) == 11
    assert main(["scenarios"]) == 0
    shown = capsys.readouterr().out
    for name in scenarios.names():
        assert name in shown
        assert "\n" not in scenarios.load(name)["description"]


@pytest.mark.parametrize("name", [name for name in scenarios.names() if name != "natural"])
def test_every_scenario_makes_a_federation(name):
    x, y = pictures(300), np.arange(300) % 10
    federation = Federation.from_arrays(x, y, scenario=name, clients=10, seed=0)
    assert federation.clients == 10
    assert (federation.corruptions is None) == name.startswith("c")


def test_what_is_given_wins():
    data = from_flat(scenario="diverse", beta=0.9, clients=7, corruptions="none").data
    assert (data.beta, data.clients, data.corruptions, data.alpha) == (0.9, 7, "none", 1.0)
    assert from_flat(scenario="pair-0.2", noise="none").data.noise_rate == 0
    other = from_flat(scenario="diverse", classes_per_client=2).data
    assert (other.partition, other.alpha, other.alpha_reading, other.beta) == (None, None, None, 0.2)
    other = from_flat(scenario="c2", partition="iid").data
    assert (other.partition, other.classes_per_client, other.grouping) == ("iid", None, None)
    assert Config.parse({"data": {"scenario": "diverse", "corruptions": "none", "alpha": None}}).data.alpha is None


def test_a_scenario_of_one_s_own(tmp_path):
    (tmp_path / "mine.yaml").write_text("description: mine\ndata: {alpha: 0.3, clients: 4}\n")
    data = from_flat(scenario=str(tmp_path / "mine.yaml")).data
    assert (data.alpha, data.clients) == (0.3, 4)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("data: {alpha: 0}", r"data.alpha = 0: should be greater than 0"),
        ("data: {aplha: 1}", r"data.aplha = 1: there is no such setting; did you mean data.alpha\?"),
        ("training: {rounds: 1}", r"scenario .*s.yaml: must hold `description:` and `data:`"),
        ("data: {scenario: diverse}", r"no other scenario"),
        ("data: [", r"scenario .*s.yaml: is not valid YAML"),
    ],
)
def test_bad_scenarios(tmp_path, text, sentence):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=sentence):
        from_flat(scenario=str(path))


def test_unknown_scenarios_are_refused_with_the_list(tmp_path):
    with pytest.raises(InputError, match=r"data.scenario = 'divers': must be c2, c4, .*did you mean diverse\?"):
        from_flat(scenario="divers")
    with pytest.raises(InputError, match=r"scenario no.yaml: cannot be read"):
        from_flat(scenario="no.yaml")


def test_a_run_keeps_the_resolved_values_and_the_clients_corruptions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hub_folder(tmp_path / "pets", 60, 20, classes=("cat", "dog", "emu"))
    (tmp_path / "own.yaml").write_text("data: {partition: lda, alpha: 1.0, corruptions: random, beta: 0.2}\n")
    arguments = ["--data", "pets", "--clients", "4", "--rounds", "1", "--model", "mlp"]
    assert main(["run", "fedavg", *arguments, "--scenario", "own.yaml", "--beta", "0.5", "--out", "one"]) == 0
    data = yaml.safe_load((tmp_path / "one" / "config.yaml").read_text())["data"]
    assert (data["scenario"], data["alpha"], data["beta"], data["clients"]) == ("own.yaml", 1.0, 0.5, 4)
    assert data["corruptions"] == "random"
    with (tmp_path / "one" / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert all(row["corruption"] and 1 <= int(row["severity"]) <= 5 for row in rows)
    assert "random corruptions" in (tmp_path / "one" / "summary.json").read_text()

    (tmp_path / "own.yaml").unlink()  # the folder says everything by itself
    assert main(["run", "--config", "one/config.yaml", "--out", "two"]) == 0
    metrics = [(tmp_path / run / "metrics.jsonl").read_text().split('"seconds"')[0] for run in ("one", "two")]
    assert metrics[0] == metrics[1]

    capsys.readouterr()
    assert main(["run", "--config", "one/config.yaml", "--scenario", "c2"]) == 2
    assert "data.scenario = 'c2': one/config.yaml has the settings of own.yaml" in capsys.readouterr().err


def test_the_table_shows_corruptions(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    hub_folder(tmp_path / "pets", 40, 10)
    assert main(["data", "pets", "--clients", "3", "--scenario", "diverse"]) == 0
    shown = capsys.readouterr().out
    assert "corruption" in shown
    federation_rows = [line for line in shown.splitlines() if line.strip().startswith(("0 ", "1 ", "2 "))]
    assert len(federation_rows) == 3
