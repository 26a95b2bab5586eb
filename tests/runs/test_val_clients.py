"""Val of a sample of the clients."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import hcfl
from hcfl.config import from_flat
from hcfl.core import rounds, server
from hcfl.errors import InputError
from hcfl.runs.prepare import prepare

SMALL = {"data": "digits", "clients": 8, "lr": 0.05, "epochs": 1, "samples": 200}


def played(config, **changes):
    prepared = prepare(config)
    setting = replace(prepared.setting, federation=replace(prepared.setting.federation, **changes))
    return [record for _, record in rounds.play(setting, prepared.state, 2)]


def test_a_sample_of_all_clients_is_the_same_as_all():
    config = from_flat(method="hcfl+(fedrc)", **SMALL)
    whole, sampled = played(config), played(config, val_clients=np.arange(8))
    for one, other in zip(whole, sampled, strict=True):
        assert (one.val, one.likelihood, one.by_class) == (other.val, other.likelihood, other.by_class)
        assert one.val_error is None
        assert other.val_error == 0


def test_val_is_measured_on_the_clients_drawn_and_a_resumed_run_goes_on_with_them(tmp_path):
    run = hcfl.run("fedavg", **SMALL, val_clients=3, rounds=2, out=tmp_path / "run")
    drawn = run.federation.val_clients
    assert len(drawn) == 3
    lines = [line.split(",") for line in (tmp_path / "run" / "clients.csv").read_text().splitlines()]
    held_out, accuracy = lines[0].index("held_out"), lines[0].index("accuracy")
    measured = {int(line[0]): (int(line[held_out]), line[accuracy]) for line in lines[1:]}
    assert sorted(client for client, (samples, _) in measured.items() if samples) == sorted(drawn.tolist())
    right = sum(measured[client][0] * float(measured[client][1]) for client in drawn.tolist())
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["val"] == pytest.approx(right / sum(measured[client][0] for client in drawn.tolist()), abs=1e-5)
    assert rows[-1]["val_error"] > 0
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2\n", "rounds: 3\n"))
    hcfl.resume(tmp_path / "run")
    whole = hcfl.run("fedavg", **SMALL, val_clients=3, rounds=3, out=tmp_path / "whole")
    again = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["val"] for row in again] == whole.metrics["val"].tolist()


def test_personal_parts_are_measured_on_all_clients():
    with pytest.raises(InputError, match="val_clients = 3: personal parts"):
        prepare(from_flat(method="fedavg", **SMALL, val_clients=3, personal="head"))


def test_counts_of_the_clients_that_reported_are_those_of_the_whole_table(monkeypatch):
    config = from_flat(method="hcfl+(fedrc)", **SMALL, clusters=2, participation=0.4)
    states = []
    for dense in (2000, 1):
        monkeypatch.setattr(server, "DENSE_CLIENTS", dense)
        prepared = prepare(config)
        states.append([state.server for state, _ in rounds.play(prepared.setting, prepared.state, 3)])
    for whole, compact in zip(*states, strict=True):
        assert whole.counted is None
        assert len(compact.counts) == len(compact.counted) <= 8
        table = torch.zeros_like(whole.counts).index_copy(0, compact.counted, compact.counts)
        torch.testing.assert_close(table, whole.counts)


def test_participants_of_very_many_clients_are_drawn_without_repetition(monkeypatch):
    prepared = prepare(from_flat(method="fedavg", **SMALL, participation=0.5))
    monkeypatch.setattr(rounds, "MANY", 7)
    drawn = [rounds.sample_clients(prepared.setting, number) for number in (1, 1, 2)]
    assert drawn[0] == drawn[1] == sorted(set(drawn[0]))
    assert len(drawn[0]) == 4
    assert drawn[0] != drawn[2]
