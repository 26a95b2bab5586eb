"""What clients say of themselves before the first round: who lies is refused, and the others begin without it."""

import re
from dataclasses import replace

import pytest
import torch
from fake_grid import FakeGrid, _a_run  # noqa: F401
from flwr.app import Array, Message
from test_own_data import NAMES, node, told, write

from hcfl.engines.flower import records
from hcfl.engines.flower.messages import Introduction
from hcfl.errors import InputError
from hcfl.flower import server_app
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder

FOUR = (*NAMES, "zenith")


class Lying(FakeGrid):
    """A grid on which one node's introduction is changed on its way; `how` gets the message and what was said."""

    def __init__(self, folder, names, node_id, how):
        super().__init__({100 + number: node(folder, name) for number, name in enumerate(names)})
        self.liar, self.how = node_id, how

    def _answer(self, name, node, message):
        super()._answer(name, node, message)
        if node == self.liar and message.metadata.message_type == "query":
            said = records.unpack(Introduction, self.replies[name].content)
            self.replies[name] = self.how(message, said)


def saying(**parts):
    return lambda message, said: Message(records.pack(replace(said, **parts)), reply_to=message)


def unreadable(message, said):
    content = records.pack(said)
    content.array_records["arrays"]["total"] = Array("float64", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00\x02\x00((")
    return Message(content, reply_to=message)


def refused(out):
    rows = [row for row in run_folder.rows(out, "events.jsonl") if row["event"] == "refused"]
    return [(row["round"], row["client"], row["reason"]) for row in rows]


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        (saying(client=0), "says that it is client 0, but its key is that of client 3"),
        (saying(client=-1), "says that it is client -1, but its key is that of client 3"),
        (saying(train=-5), "says that it has -5 samples for training"),
        (saying(train=10**10, values=10**10 * 8 * 8), "says that it has 10000000000 samples for training"),
        (saying(held_out=-1), "says that it holds out -1 samples"),
        (saying(values=1), "sent sums over 1 values, but 90 samples of this shape have 5760"),
        (saying(total=None), "sent no sums"),
        (saying(total=torch.ones(1, dtype=torch.complex128)), "sent total as complex128"),
        (saying(total=torch.ones(2).double()), r"sent total of shape \(2,\), but \(1,\) is needed"),
        (saying(total=torch.tensor([torch.nan]).double()), "sent sums that are not finite"),
        (saying(squares=torch.tensor([torch.inf]).double()), "sent sums that are not finite"),
        (saying(squares=torch.tensor([-1.0]).double()), "sent sums that no values can have"),
        (saying(total=torch.tensor([1e9]).double()), "sent sums that no values can have"),
        (
            saying(total=torch.tensor([5760e9]).double(), squares=torch.tensor([5760e18]).double()),
            "has inputs that are 1.* times as large as those of most others",
        ),
        (
            saying(shape=(4, 4, 1), values=90 * 16, total=torch.ones(1).double()),
            r"has inputs of shape \(4, 4, 1\), but most have \(8, 8, 1\)",
        ),
        (saying(shape=()), "sent a shape that inputs cannot have"),
        (saying(shape=(10**9, 10**9, 1)), "sent a shape that inputs cannot have"),
        (saying(class_names=()), "sent names of classes that cannot be"),
        (saying(class_names=tuple(map(str, range(10**5)))), "sent names of classes that cannot be"),
        (unreadable, "sent what cannot be read"),
    ],
)
def test_a_bad_introduction_is_refused_and_the_others_begin(tmp_path, how, reason):
    write(tmp_path, FOUR)
    grid = Lying(tmp_path, FOUR, 103, how)
    server_app.play(grid, told(tmp_path / "lied", FOUR, rounds=1, wait=3.0, timeout=0.4))
    ((round_, client, why),) = refused(tmp_path / "lied")
    assert (round_, client) == (0, "zenith")
    assert re.search(reason, why)

    grid = Lying(tmp_path, FOUR, 103, saying())
    del grid.nodes[103]
    server_app.play(grid, told(tmp_path / "without", FOUR, rounds=1, wait=3.0, timeout=0.4))
    one, two = (checkpoint.load(tmp_path / run / "checkpoint")[0].server.ensemble for run in ("lied", "without"))
    assert all(torch.equal(one.heads[name], two.heads[name]) for name in one.heads)


def test_where_too_few_are_left_the_reasons_are_said(tmp_path):
    write(tmp_path)
    grid = Lying(tmp_path, NAMES, 102, saying(train=-5))
    with pytest.raises(InputError, match=r"2 of 3 came \(missing: west\); refused: west \(says that it has -5"):
        server_app.play(grid, told(tmp_path / "run", quorum=1.0, wait=2.0, timeout=1.0))
