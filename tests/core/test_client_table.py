"""The table of clients' states is the dictionary that it stands for, whatever its blocks are."""

from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from hcfl.core.client_table import Block, ClientTable
from hcfl.core.state import ClientState
from hcfl.models.ensemble import Ensemble
from hcfl.tiers import Weights


def model(value):
    return Ensemble({"w": torch.full((1, 2), value)}, {"b": torch.full((1, 3), value)}, "split")


def state(draw, round_, clusters=(0, 1), sampled=True, kept=False):
    """A state whose numbers nobody else has."""
    samples = draw.integers(0, 4)
    weights = Weights(torch.rand(1, len(clusters)), torch.rand(samples, len(clusters)) if sampled else None)
    noted = {"head": torch.rand(2)} if kept else {}
    return ClientState(round_, clusters, weights, model(float(round_)) if kept else None, noted=noted)


def same_state(one, two):
    assert (one.round, one.clusters) == (two.round, two.clusters)
    for part in ("client", "sample", "components"):
        mine, theirs = getattr(one.weights, part), getattr(two.weights, part)
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine, theirs)
    assert one.own is two.own
    assert one.noted.keys() == two.noted.keys()
    assert all(torch.equal(tensor, two.noted[name]) for name, tensor in one.noted.items())
    assert one.velocity is two.velocity


def same_table(table, expected):
    assert list(table) == sorted(expected)
    assert len(table) == len(expected)
    for client, known in expected.items():
        same_state(table[client], known)
    found = table.some([*expected, 10**6])
    assert found.keys() == expected.keys()


def rounds(number, clients, seed=0):
    """States of random participants; clusters change, and some clients keep a model, in some rounds."""
    torch.manual_seed(seed)
    draw = np.random.default_rng(seed)
    for round_ in range(1, number + 1):
        some = draw.choice(clients, draw.integers(1, clients // 2), replace=False).tolist()
        clusters = (0, 1) if round_ % 7 < 5 else (0, 2, 3)
        kept = round_ % 3 == 0
        yield {
            client: state(draw, round_, clusters, sampled=round_ % 5 > 0, kept=kept and client % 2) for client in some
        }


def test_it_is_the_dictionary_of_the_newest_states():
    table, expected = ClientTable(), {}
    for new in rounds(60, 30):
        table, expected = table.after(new), {**expected, **new}
        same_table(table, expected)
        rows, live = sum(len(block.ids) for block in table.blocks), len(expected)
        assert rows <= 2 * live, "stale rows are dropped"
    same_table(ClientTable.of(expected), expected)
    same_table(ClientTable.of_blocks(table.blocks), expected)


def test_a_block_has_all_that_a_client_keeps():
    kept = {field.name for field in fields(ClientState)} - {"round"}
    assert kept == {field.name for field in fields(Block)} - {"clients", "rounds", "samples"}


def test_a_table_stays_what_it_was():
    first, second = (new for new in rounds(2, 10))
    table = ClientTable.of(first)
    table.after(second)
    same_table(table, first)


def test_there_are_few_blocks_and_a_state_is_copied_a_few_times(monkeypatch):
    draw, table, copied = np.random.default_rng(0), ClientTable(), []
    made = Block.__post_init__
    monkeypatch.setattr(Block, "__post_init__", lambda self: (copied.append(len(self.clients)), made(self)))
    for round_ in range(1, 257):
        mine = range(4 * round_, 4 * round_ + 4)
        table = table.after({client: state(draw, round_, sampled=False) for client in mine})
    assert len(table) == 1024
    assert len(table.blocks) <= 9  # log2 of 256, and one
    assert sum(copied) <= 1024 * 10


def test_when_all_take_part_there_is_one_block():
    draw, table = np.random.default_rng(0), ClientTable()
    for round_ in (1, 2, 3):
        table = table.after({client: state(draw, round_) for client in range(20)})
    assert [len(block.ids) for block in table.blocks] == [20]
    assert {known.round for known in table.values()} == {3}


def test_rows_of_clients_without_samples_are_empty():
    weights = [Weights(torch.ones(1, 1), torch.arange(n).float().unsqueeze(1)) for n in (2, 0, 3)]
    table = ClientTable.of({client: ClientState(1, (0,), one) for client, one in zip((5, 1, 3), weights, strict=True)})
    assert {client: known.weights.sample.flatten().tolist() for client, known in table.items()} == {
        1: [],
        3: [0, 1, 2],
        5: [0, 1],
    }


def test_the_digest_is_of_everything():
    def block(**changes):
        columns = {
            "clusters": (0,),
            "clients": torch.tensor([1, 2]),
            "rounds": torch.tensor([1, 1]),
            "weights": Weights(torch.ones(2, 1)),
        }
        return Block(**{**columns, **changes})

    others = [
        block(clusters=(1,)),
        block(clients=torch.tensor([1, 3])),
        block(rounds=torch.tensor([1, 2])),
        block(weights=Weights(torch.zeros(2, 1))),
        block(weights=Weights(torch.ones(2, 1), torch.ones(2, 1)), samples=torch.tensor([1, 1])),
        block(own=(model(1.0), None)),
        block(velocity=(model(1.0), None)),
        block(own=(None, model(1.0))),
        block(noted=({}, {"head": torch.ones(1)})),
    ]
    assert len({one.digest for one in (block(), *others)}) == 10
    assert block().digest == block().digest


@pytest.mark.parametrize(
    "changes",
    [
        {"clients": torch.tensor([2, 1])},
        {"clients": torch.tensor([1, 1])},
        {"clients": torch.tensor([1.0, 2.0])},
        {"rounds": torch.tensor([1])},
        {"weights": Weights(torch.ones(3, 1))},
        {"weights": Weights(torch.ones(2, 1), torch.ones(2, 1))},
        {"samples": torch.tensor([1, 1])},
        {"weights": Weights(torch.ones(2, 1), torch.ones(2, 1)), "samples": torch.tensor([3, -1])},
        {"weights": Weights(torch.ones(2, 1), torch.ones(2, 1)), "samples": torch.tensor([1, 2])},
        {"weights": Weights(torch.ones(2, 1), components=torch.ones(1, 1, 1))},
        {"own": (None,)},
        {"velocity": (None,) * 3},
        {"noted": ({},)},
        {"clients": torch.tensor([], dtype=torch.int64), "rounds": torch.tensor([], dtype=torch.int64)},
    ],
)
def test_columns_that_do_not_fit_are_refused(changes):
    block = Block((0,), torch.tensor([1, 2]), torch.tensor([1, 1]), Weights(torch.ones(2, 1)))
    with pytest.raises(ValueError, match="do not fit each other"):
        replace(block, **changes)
