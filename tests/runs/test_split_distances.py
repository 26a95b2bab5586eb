"""What a run keeps of the distances that its splits were decided by."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import hcfl
from hcfl.core.cluster_log import Split
from hcfl.runs import folder as run_folder
from hcfl.runs.tables import SPLIT_CLIENTS, split_row
from hcfl.tiers.distance import Distances


def split_of(first, second):
    return Split(4, 7, 9, tuple(first), tuple(second), "halve", 0.9, 0.2, 0.3)


def test_a_row_by_hand():
    # Clients 2, 5, 6 and 8 took part; 3 was in the split's cluster and did not.
    matrix = torch.tensor([[0, 0.1, 0.2, 0.3], [0.1, 0, 0.123456, 0.5], [0.2, 0.123456, 0, 0.6], [0.3, 0.5, 0.6, 0]])
    row = split_row(split_of([8, 3, 2], [5]), Distances((2, 5, 6, 8), matrix), list("abcdefghi"))
    assert row == {
        "round": 4,
        "cluster": 7,
        "new_cluster": 9,
        "clients_compared": 3,
        "clients": ["i", "c", "f"],
        "in_first_part": 2,
        "distances": [[], [0.3], [0.5, 0.1]],
    }


def test_distances_have_four_digits():
    matrix = torch.tensor([[0, 0.123456], [0.123456, 0]])
    assert split_row(split_of([0], [1]), Distances((0, 1), matrix), "ab")["distances"] == [[], [0.1235]]


@given(st.integers(SPLIT_CLIENTS + 1, 3 * SPLIT_CLIENTS), st.integers(1, SPLIT_CLIENTS), st.integers(0, 99))
def test_of_too_many_clients_some_of_each_part_and_the_farthest_pair_stay(clients, second, seed):
    values = np.random.default_rng(seed).random((clients, clients), dtype=np.float32)
    matrix = torch.from_numpy(np.triu(values, 1) + np.triu(values, 1).T)
    split = split_of(range(second, clients), range(second))
    row = split_row(split, Distances(tuple(range(clients)), matrix), range(clients))
    assert SPLIT_CLIENTS - 2 <= len(row["clients"]) <= SPLIT_CLIENTS
    assert row["clients_compared"] == clients
    assert len(set(row["clients"])) == len(row["clients"])
    assert 0 < row["in_first_part"] < len(row["clients"])
    assert all(client >= second for client in row["clients"][: row["in_first_part"]])
    assert all(client < second for client in row["clients"][row["in_first_part"] :])
    assert max(map(max, row["distances"][1:])) == pytest.approx(float(matrix.max()), rel=1e-3)
    share = row["in_first_part"] / len(row["clients"])
    assert share == pytest.approx((clients - second) / clients, abs=0.02)


@pytest.mark.parametrize("method", ["hcfl+(fedrc)", "icfl", "pacfl"])
def test_every_split_of_a_run_has_its_distances(planted, tmp_path, method):
    settings = {"pacfl": {"threshold": 1.0}, "icfl": {"from_start": True}}.get(method, {})
    hcfl.run(method, planted, out=tmp_path / "run", rounds=6, participation=0.9, epochs=2, **settings)
    splits = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "split"]
    kept = run_folder.rows(tmp_path / "run", "splits.jsonl")
    assert splits
    for event, row in zip(splits, kept, strict=True):
        names = ("round", "cluster", "new_cluster")
        assert [event[name] for name in names] == [row[name] for name in names]
        parts = [event["members"][str(event[name])] for name in names[1:]]
        assert row["clients"] == [client for part in parts for client in part]
        assert row["in_first_part"] == len(parts[0])
        if method == "hcfl+(fedrc)":
            assert max(map(max, row["distances"][1:])) == pytest.approx(event["max_distance"], rel=1e-3)


def test_engines_keep_the_same(planted, tmp_path):
    for engine in ("sequential", "batched"):
        hcfl.run("hcfl+(fedem)", planted, out=tmp_path / engine, rounds=5, engine=engine)
    one, two = (run_folder.rows(tmp_path / engine, "splits.jsonl") for engine in ("sequential", "batched"))
    assert one
    for first, second in zip(one, two, strict=True):
        assert first["clients"] == second["clients"]
        flat = [np.concatenate(row["distances"]) for row in (first, second)]
        np.testing.assert_allclose(*flat, rtol=0.02, atol=1e-4)


def test_methods_that_group_without_distances_keep_none(planted, tmp_path):
    hcfl.run("wecfl", planted, out=tmp_path / "run", rounds=2)
    assert any(row["event"] == "split" for row in run_folder.rows(tmp_path / "run", "events.jsonl"))
    assert (tmp_path / "run" / "splits.jsonl").read_text() == ""
