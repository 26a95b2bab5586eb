"""Runs whose clients change: what is measured when, resuming, and how well clusters follow."""

import multiprocessing
import os
import signal
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.core.setting import Engine
from hcfl.errors import InputError
from hcfl.launch import execute, resume
from hcfl.methods.local_models import ClusterModels
from hcfl.report.tables import summary_table
from hcfl.runs import folder as run_folder
from hcfl.runs.over_time import Turn, false_moves, is_right, summary_over_time, turns
from hcfl.runs.prepare import prepare
from hcfl.tiers import SampleWiseEM, SplitOnContradiction
from interrupting import assert_same_end, without_seconds

STEPS = {"steps": 3, "rounds_per_step": 2, "drift": "sudden"}
DRIFTING = {"method": "hcfl++", "clients": 6, "epochs": 1, "samples": 300, **STEPS}


def rows_of(members, concepts, steps):
    """Rows of `metrics.jsonl` with the fields that matter here."""
    return [
        {"round": at + 1, "step": step, "client_clusters": list(mine), "client_concepts": list(true)}
        for at, (mine, true, step) in enumerate(zip(members, concepts, steps, strict=True))
    ]


def test_a_client_is_right_where_most_of_its_cluster_have_its_concept():
    members, concepts = np.array([0, 0, 0, 1, -1, 2, 2]), np.array([0, 0, 1, 1, 1, 2, 3])
    assert is_right(members, concepts).tolist() == [True, True, False, True, False, False, False]


def test_delays_and_false_moves_of_a_small_example():
    # Client 0 turns from concept 0 to 1 in round 3 and follows in round 4; client 1 moves for no reason in round 4.
    members = [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1, 2, 0, 1, 1]]
    concepts = [[0, 0, 0, 1, 1], [0, 0, 0, 1, 1], [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]]
    rows = rows_of(members, concepts, [1, 1, 2, 2])
    assert turns(rows) == [Turn(client=0, round=3, delay=1)]
    assert false_moves(rows) == 1 / 4


def test_a_turn_that_no_cluster_follows_is_missed():
    rows = rows_of([[0, 0, 0]] * 3, [[0, 0, 0], [1, 0, 0], [0, 0, 0]], [1, 2, 3])
    assert turns(rows) == [Turn(0, 2, None), Turn(0, 3, 0)]


@pytest.fixture(scope="module")
def drifting(tmp_path_factory):
    path = tmp_path_factory.mktemp("drifting") / "run"
    return execute(prepare(from_flat(**DRIFTING, checkpoint_every=1, checkpoints_kept=9)), path)


def test_a_step_is_measured_before_its_data_are_trained_on(drifting):
    assert [row["step"] for row in drifting.rows] == [1, 1, 2, 2, 3, 3]
    assert [row["round"] for row in drifting.rows if "prequential" in row] == [3, 5]
    found = summary_over_time(drifting.rows)
    assert found["prequential_mean"] == pytest.approx(np.mean([drifting.rows[at]["prequential"] for at in (2, 4)]))
    assert found["concept_changes"] == 3
    assert drifting.summary["steps"] == 3

    prepared = prepare(from_flat(**DRIFTING))
    *_, (state, _) = rounds.play(prepared.setting, prepared.state, 2)
    before = rounds.measure_before(prepared.setting.at(3), state, secret=False)
    assert before == drifting.rows[2]["prequential"]


def test_truth_is_that_of_the_step(drifting):
    timeline = prepare(from_flat(**DRIFTING)).setting.federation.timeline
    for row in drifting.rows:
        assert row["client_concepts"] == timeline[row["step"] - 1].truth.concept.tolist()


@pytest.mark.parametrize("rounds_done", [3, 4])
def test_a_run_stopped_within_and_between_steps_goes_on_as_if_it_had_not_been(drifting, tmp_path, rounds_done):
    path, played = tmp_path / "run", []

    def stop():
        played.append(1)
        return len(played) == rounds_done

    execute(prepare(from_flat(**DRIFTING, checkpoint_every=1, checkpoints_kept=9)), path, should_stop=stop)
    resume(path)
    assert without_seconds(path) == without_seconds(drifting.path)
    assert_same_end(path, drifting.path)


@dataclass(frozen=True)
class KilledIn:
    """An engine whose process is killed in the midst of a round: clients have trained, the server has not answered."""

    engine: Engine
    round: int

    def execute(self, task):
        done = self.engine.execute(task)
        if task.broadcast.round == self.round:
            os.kill(os.getpid(), signal.SIGKILL)
        return done


def play_until_killed(path, round_):
    prepared = prepare(from_flat(**DRIFTING, checkpoint_every=1, checkpoints_kept=9))
    setting = replace(prepared.setting, engine=KilledIn(prepared.setting.engine, round_))
    execute(replace(prepared, setting=setting), path)


@pytest.mark.parametrize("round_", [3, 4])
def test_a_run_that_is_killed_in_the_midst_of_a_step_goes_on_as_if_it_had_not_been(drifting, tmp_path, round_):
    path = tmp_path / "run"
    process = multiprocessing.get_context("fork").Process(target=play_until_killed, args=(path, round_))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert [row["round"] for row in run_folder.rows(path, run_folder.METRICS)] == list(range(1, round_))
    resume(path, on_note=lambda note: None)
    assert_same_end(path, drifting.path)


@pytest.mark.parametrize("method", ["hcfl++", "feddrift", "feddaa"])
def test_engines_agree_over_time(tmp_path, method):
    settings = {**DRIFTING, "method": method, "participation": 0.7}
    one, two = (
        execute(prepare(from_flat(**settings, engine=engine)), tmp_path / engine)
        for engine in ("sequential", "batched")
    )
    for mine, theirs in zip(one.rows, two.rows, strict=True):
        assert mine["val"] == pytest.approx(theirs["val"], abs=0.02)
        assert mine["client_clusters"] == theirs["client_clusters"]


def test_rounds_of_steps():
    training = prepare(from_flat(method="fedavg", clients=4, steps=3, rounds=10)).config.training
    assert (training.rounds, training.rounds_per_step) == (10, 3)
    with pytest.raises(InputError, match=r"training.rounds = 2: must be at least data.steps = 3"):
        prepare(from_flat(method="fedavg", clients=4, steps=3, rounds=2))
    with pytest.raises(InputError, match=r"rounds_per_step = 2: needs data.steps above 1"):
        prepare(from_flat(method="fedavg", clients=4, rounds_per_step=2))


def test_hcfl_plus_plus_follows_clients_where_there_are_steps_and_only_there(tmp_path):
    settings = {"method": "hcfl++", "clients": 6, "epochs": 1, "samples": 300}
    assert prepare(from_flat(**settings, **STEPS)).config.method.follows is True
    assert prepare(from_flat(**settings)).config.method.follows is False
    assert isinstance(prepare(from_flat(**settings)).setting.method.weighting, SampleWiseEM)
    # With the same rule, order and averages, runs without steps are the same whether they follow or not.
    for follows in (False, True):
        prepared = prepare(from_flat(**settings, rounds=2, follows=follows, order="heads-first"))
        rule = SplitOnContradiction(0.4, remembers=follows)
        method = replace(prepared.setting.method, adaptation=rule, local=ClusterModels(by_weight=True))
        execute(replace(prepared, setting=replace(prepared.setting, method=method)), tmp_path / str(follows))
    assert without_seconds(tmp_path / "True") == without_seconds(tmp_path / "False")


def test_a_concept_that_comes_back_finds_its_cluster(tmp_path):
    settings = {"method": "hcfl++", "clients": 9, "steps": 3, "rounds_per_step": 3, "drift": "recurring"}
    run = execute(prepare(from_flat(**settings, epochs=3, val_share=0.25)), tmp_path / "run")
    ends = {row["step"]: row["client_clusters"] for row in run.rows}
    left = [client for client in range(9) if ends[1][client] != ends[2][client]]
    assert len(left) == 3
    (cluster,) = {ends[1][client] for client in left}
    assert cluster not in ends[2], "its clients are gone"
    assert all(cluster in row["cluster_ids"] for row in run.rows if row["step"] >= 2), "but it is remembered"
    assert ends[3] == ends[1]


def test_the_table_of_a_run_with_steps_tells_how_well_clusters_followed(drifting):
    labels, cells = (list(column.cells) for column in summary_table([drifting]).columns)
    shown, summary = dict(zip(labels, cells, strict=True)), drifting.summary
    before, ends = summary["prequential_mean"], summary["val_step_mean"]
    assert shown["steps of time: prequential Val, Val at their ends"] == f"{before:.1%}, {ends:.1%}"
    assert shown["changes of concept (missed), rounds until followed"].startswith(f"{summary['concept_changes']} (")
    assert shown["clients that moved without a change, each step"] == f"{summary['false_moves']:.1%}"
