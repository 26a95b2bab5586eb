"""Runs that begin with groups which the user gives: how they start, where they go, what they say."""

import csv

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl import methods
from hcfl.config import Config, from_flat
from hcfl.core import rounds
from hcfl.core.given_start import how_far
from hcfl.data.given_groups import GivenGroups
from hcfl.errors import InputError
from hcfl.launch import execute
from hcfl.runs.prepare import prepare
from hcfl.tiers import Participants
from hcfl.tiers.adaptation.group import regroup

CLIENTS = 9
WRONG = {2: "b", 5: "a"}
"""Clients whose given group is not their concept's."""


def arrays():
    """Two concepts with opposite labels; the clients 0-4 have the first, 5-8 the second."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(CLIENTS), 40)
    x = draw.normal(size=(len(client), 3)).astype(np.float32)
    y = ((x[:, 0] > 0) ^ (client >= 5)).astype(int)
    return x, y, client


def given():
    return {client: WRONG.get(client, "a" if client < 5 else "b") for client in range(CLIENTS)}


@pytest.fixture
def federation():
    x, y, client = arrays()
    return hcfl.Federation.from_arrays(x, y, client=client, concept=(client >= 5).astype(int), groups=given())


@pytest.mark.parametrize("name", [name for name in methods.METHODS if name != "local"])
def test_every_method_begins_with_the_groups_in_both_engines(federation, name):
    states = []
    for engine in ("sequential", "batched"):
        prepared = prepare(from_flat(method=name, rounds=2, epochs=1, engine=engine, model="mlp"), federation)
        begun = prepared.state.server
        assert begun.members.tolist() == federation.groups.of.tolist()
        assert begun.weights.argmax(dim=1).tolist() == begun.members.tolist()
        own = begun.weights.max(dim=1).values
        assert_close(own, torch.full_like(own, 1.0 if prepared.setting.method.weighting.hard else 0.9))
        *_, (after, _) = rounds.play(prepared.setting, prepared.state, 2)
        states.append(after.server)
    assert states[0].members.tolist() == states[1].members.tolist()
    assert_close(states[0].weights, states[1].weights, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["ifca", "fesem", "fedem", "wecfl", "hcfl+(fedem)"])
def test_methods_move_clients_that_were_given_the_wrong_group(federation, name, tmp_path):
    run = hcfl.run(name, data=federation, rounds=10, lr=0.2, model="mlp", out=tmp_path / "run")
    assert run.summary["ari_last"] == 1.0
    assert run.summary["groups_moved"] == 2
    assert run.summary["groups_ari"] == pytest.approx(how_far(federation.groups, federation.truth.concept).ari)
    assert run.summary["val_groups"] < run.summary["val_last"] - 0.1
    assert "2 of 9 clients moved" in run.summary["groups"]
    assert run.summary["groups"].endswith("the method paid")
    rows = list(csv.DictReader((tmp_path / "run" / "clients.csv").read_text().splitlines()))
    assert [row["given_group"] for row in rows] == list(given().values())


def test_val_of_the_groups_is_that_of_fedavg_in_them(federation, tmp_path):
    settings = {"data": federation, "rounds": 3, "model": "mlp"}
    moved = hcfl.run("ifca", **settings, out=tmp_path / "ifca")
    kept = hcfl.run("fedavg", **settings, out=tmp_path / "fedavg")
    assert kept.summary["groups_moved"] == 0
    assert kept.state.server.ensemble.clusters == 2
    assert moved.summary["val_groups"] == kept.summary["val_last"]
    alone = hcfl.run("ifca", **settings, groups_kept=False, out=tmp_path / "alone")
    assert alone.summary["val_groups"] is None
    assert alone.summary["val_last"] == moved.summary["val_last"]


def test_a_killed_run_goes_on_to_the_same_end(tmp_path):
    x, y, client = arrays()
    np.savez(tmp_path / "data.npz", x=x, y=y, client=client)
    settings = {"method": "hcfl+(fedem)", "data": str(tmp_path / "data.npz"), "groups": given(), "rounds": 4}
    whole = hcfl.run(**settings, out=tmp_path / "whole")
    prepared = prepare(from_flat(**settings))
    execute(prepared, tmp_path / "killed", should_stop=iter([False, True]).__next__)
    resumed = hcfl.resume(tmp_path / "killed")
    for key in ("val_last", "groups_ari", "groups_moved", "val_groups", "groups"):
        assert resumed.summary[key] == whole.summary[key]


def test_distance_from_the_groups_by_hand():
    groups = GivenGroups.named(["x", "x", "x", "y", "y", None])
    same = how_far(groups, np.array([4, 4, 4, 2, 2, 0]))  # other numbers, the same groups
    assert (same.ari, same.moved, same.clients) == (1.0, 0, 5)
    assert how_far(groups, np.array([0, 0, 1, 1, 1, 0])).moved == 1
    assert how_far(groups, np.zeros(6, dtype=np.int64)).moved == 2
    assert how_far(groups, np.full(6, -1)) is None


def test_grouping_once_from_given_clusters_keeps_their_columns_where_it_can():
    members = torch.tensor([0, 0, 0, 1, 1, 1])
    seen = Participants(clients=(10, 11, 12, 13, 14, 15), members=members, weights=torch.ones(6))
    found = regroup(seen, np.array([1, 1, 1, 0, 0, 2]), 2, 1.0, 0.5, 0.0)
    assert [(move.client, move.to) for move in found.moves] == [(10, 0), (11, 0), (12, 0), (13, 1), (14, 1), (15, 1)]
    [split] = found.splits
    assert (split.parent, split.first, split.second) == (1, (13, 14), (15,))


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ({**given(), 9: "a"}, "data.groups = 9=a: there is no client '9'"),
        ({0: "a", 1: "b"}, "data.groups: has no group for client '2'"),
        (dict.fromkeys(range(CLIENTS), "a"), "data.groups: has 1 groups, but clusters to begin with are at least 2"),
        ("ward", "data.groups = 'ward': arrays has no columns; give CLIENT=GROUP,…"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups, told):
    x, y, client = arrays()
    with pytest.raises(InputError) as error:
        hcfl.Federation.from_arrays(x, y, client=client, groups=groups)
    assert str(error.value) == told


def test_methods_without_groups_are_refused(federation):
    with pytest.raises(InputError, match="local has a cluster for each client"):
        prepare(from_flat(method="local"), federation)
    with pytest.raises(InputError, match="begins with one cluster"):
        prepare(from_flat(method="cfl", lost_ids=True), federation)


def test_a_column_has_one_group_for_each_client():
    from pandas import DataFrame

    x, y, client = arrays()
    table = DataFrame(x, columns=list("abc")).assign(y=np.where(y, "yes", "no"), site=client, ward=client % 2)
    built = hcfl.Federation.from_frame(table, label="y", client="site", groups="ward")
    assert built.groups.of.tolist() == [0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert built.shape == (3,)
    table.loc[0, "ward"] = 7
    with pytest.raises(InputError, match=r"data.groups = 'ward': client 0 has rows of 2 groups \(0, 7\)"):
        hcfl.Federation.from_frame(table, label="y", client="site", groups="ward")


def test_groups_are_read_from_a_flag_and_old_files_stay_readable():
    assert from_flat(groups="a=x, b = y").data.groups == {"a": "x", "b": "y"}
    assert from_flat(groups="ward").data.groups == "ward"
    old = Config.parse({"method": {"name": "wecfl", "groups": 4}})
    assert old.method.clusters == 4
    assert Config.from_yaml(from_flat(groups={1: "x"}).to_yaml()).data.groups == {"1": "x"}
