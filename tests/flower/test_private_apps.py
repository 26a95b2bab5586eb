"""Private runs on a transport without processes: the same averages, and nothing of a single client in what arrives."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, _a_run  # noqa: F401
from flwr.app import Error, Message
from test_own_data import NAMES, grid_of, write
from torch.testing import assert_close

from hcfl.config import from_flat
from hcfl.engines.flower import records
from hcfl.engines.flower.messages import Introduction
from hcfl.engines.flower.secagg import PublicKeys, Revealed
from hcfl.engines.flower.sum_messages import Shares, Upload, joined
from hcfl.errors import InputError
from hcfl.flower import server_app
from hcfl.flower.client_store import ClientStore
from hcfl.flower.run_settings import read
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder

SMALL = {"data": "digits", "clients": 6, "beta": 0.9, "concepts": 2, "rounds": 2, "epochs": 1, "engine": "flower"}
TYPES = ("query.keys", "query.shares", "train.sealed", "query.reveal")


def play(out, grid=None, quorum=1.0, **settings):
    grid = grid or FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    config = from_flat(**{**SMALL, **settings})
    server_app.play(grid, read({"experiment": config.to_yaml(), "out": str(out), "timeout": 2.0, "quorum": quorum}))
    return grid, checkpoint.load(out / "checkpoint")[0]


def own_weights(out, client, round_):
    """What a simulated client keeps to itself."""
    (folder,) = out.glob("client-states/experiment-*")
    experiment = folder.name.removeprefix("experiment-")
    return ClientStore(out / "client-states", experiment, str(client)).load(round_).weights.client


@pytest.mark.parametrize("method", ["fedavg", "fedrc", "ifca", "fedgmm", "fedsoft"])
def test_a_sum_gives_what_all_updates_give(tmp_path, method):
    _, plain = play(tmp_path / "plain", method=method)
    grid, private = play(tmp_path / "private", method=method, privacy="secagg")
    assert private.server.clusters == plain.server.clusters
    for part in ("heads", "extractors"):
        one, two = (getattr(state.server.ensemble, part) for state in (private, plain))
        assert_close(one, two, rtol=0, atol=1e-5)
    for client in range(6):
        mine = own_weights(tmp_path / "private", client, 2)
        assert_close(mine, plain.server.weights[[client]], rtol=0, atol=1e-4)
        assert int(mine.argmax()) == int(plain.server.members[client])
    rows = [run_folder.rows(tmp_path / run, "metrics.jsonl") for run in ("private", "plain")]
    for mine, theirs in zip(*rows, strict=True):
        for key in ("val", "test", "participants"):
            assert mine[key] == pytest.approx(theirs[key], rel=1e-4)
        assert (mine["objective"] or 0) == pytest.approx(theirs["objective"] or 0, rel=1e-4)
        assert mine["bytes_up_by_part"].keys() == {"sums"}
    kinds = [message.metadata.message_type for message in grid.sent[6:]]
    assert kinds == [kind for _ in range(2) for kind in TYPES for _ in range(6)]


def test_the_server_sees_keys_ciphertexts_and_masked_vectors(tmp_path):
    plain, _ = play(tmp_path / "plain", method="fedrc", rounds=1)
    grid, state = play(tmp_path / "private", method="fedrc", rounds=1, privacy="secagg")
    _, *answers = (grid.answered[start : start + 6] for start in range(0, 30, 6))
    for kind, some in zip((PublicKeys, Shares, Upload, Revealed), answers, strict=True):
        read_ = [records.unpack(kind, message.content) for message in some]
        if kind is Upload:
            uploads = read_
        else:
            assert not any(message.content.array_records["arrays"] for message in some)
    for upload in uploads:
        assert (upload.problem, upload.lost) == ("", False)
        values = joined({name: part.double() / 2.0**63 for name, part in upload.parts.items()})
        assert abs(values.mean()) < 0.02
        assert values.std() == pytest.approx(3**-0.5, abs=0.01)  # uniform from −1 to 1, also where nothing changed
    assert state.server.weights.unique().tolist() == [pytest.approx(1 / 3)]
    assert (state.server.members == -1).all()
    assert len(state.server.sizes.unique()) == 1
    assert plain  # the plain run has told all of it


def failing(*which):
    """Fail in the steps of these numbers, counting a client's training messages."""
    return [error if number in which else None for number in range(1 + max(which))]


def error(message, reply):
    return Message(Error(8, "the process was killed"), reply_to=message)


def test_who_drops_out_after_sharing_is_left_out_of_the_sum(tmp_path):
    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    grid.before[102] = failing(1)
    _, private = play(tmp_path / "private", grid, 0.5, method="fedem", privacy="secagg")
    again = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    again.before[102] = failing(1)
    _, plain = play(tmp_path / "plain", again, 0.5, method="fedem")
    assert_close(private.server.ensemble.heads, plain.server.ensemble.heads, rtol=0, atol=1e-5)
    rows = [row for row in run_folder.rows(tmp_path / "private", "events.jsonl") if row["event"] == "absent"]
    assert [(row["round"], row["client"], row["reason"]) for row in rows] == [(2, 2, "error 8: the process was killed")]


def test_where_too_many_drop_out_the_round_is_asked_for_again(tmp_path):
    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    for node in (100, 101, 102):
        grid.before[node] = failing(1)
    _, private = play(tmp_path / "private", grid, 0.5, method="fedavg", privacy="secagg")
    _, plain = play(tmp_path / "plain", method="fedavg")
    assert_close(private.server.ensemble.heads, plain.server.ensemble.heads, rtol=0, atol=1e-5)
    assert [row["participants"] for row in run_folder.rows(tmp_path / "private", "metrics.jsonl")] == [6, 6]


def test_a_sum_that_will_not_count_is_not_opened(tmp_path):
    """Its difference to the one that does count would be one client's own."""
    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    grid.before[102] = failing(1)
    play(tmp_path / "private", grid, 1.0, method="fedavg", privacy="secagg")
    kinds = [message.metadata.message_type for message in grid.sent[6:]]
    assert kinds == [kind for steps in (TYPES, TYPES[:3], TYPES) for kind in steps for _ in range(6)]


def forge_shares(message, reply):
    """Send every neighbour a ciphertext that it cannot read."""
    sent = records.unpack(Shares, reply.content)
    forged = {peer: text[:-9] + "AAAAAAAA=" for peer, text in sent.ciphertexts.items()}
    return Message(records.pack(replace(sent, ciphertexts=forged)), reply_to=message)


def forge_commitment(message, reply):
    """Say of the seed what fits none of its shares."""
    return Message(records.pack(replace(records.unpack(Shares, reply.content), commitment="00")), reply_to=message)


def accuse_all(message, reply):
    sent = records.unpack(Upload, reply.content)
    lie = replace(sent, parts={}, problem="no", unreadable=(0, 1, 3, 4, 5, 77, -1))
    return Message(records.pack(lie), reply_to=message)


@pytest.mark.parametrize(
    ("kind", "forge", "reason", "tries"),
    [
        (
            "query.shares",
            forge_shares,
            r"sent shares that its neighbours cannot read \(clients 0, 1, 3, 4, 5 say so",
            2,
        ),
        ("query.shares", forge_commitment, "gave shares of its secrets that do not fit together", 2),
        ("train.sealed", accuse_all, r"says of too many neighbours that it cannot read their shares \(0, 1, 3", 1),
    ],
)
def test_a_client_that_spoils_sums_is_left_out_of_them(tmp_path, kind, forge, reason, tries):
    """Before, its neighbours failed in every try until `wait` was over, and the run ended there."""
    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    grid.always[102, kind] = forge
    play(tmp_path / "run", grid, 0.5, method="fedavg", privacy="secagg")
    assert [row["participants"] for row in run_folder.rows(tmp_path / "run", "metrics.jsonl")] == [5, 5]
    rows = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "refused"]
    assert {row["client"] for row in rows} == {2}, "no other client is refused"
    assert rows[-1]["round"] == 2
    assert re.match(reason, rows[-1]["reason"])
    asked = [message for message in grid.sent if message.metadata.message_type == "query.keys"]
    assert len(asked) == {2: 6 + 5 + 5, 1: 6 + 5}[tries], "it is not asked again"


def test_where_too_few_are_left_the_run_ends_at_once(tmp_path):
    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    grid.always[102, "query.shares"] = forge_shares
    sentence = r"^quorum = 1: 0 of 6 clients are in the sum of round 1, but 6 are needed; resume when more are there"
    with pytest.raises(InputError, match=sentence):
        play(tmp_path / "run", grid, 1.0, method="fedavg", privacy="secagg")
    assert len([message for message in grid.sent if message.metadata.message_type == "query.keys"]) == 6


def test_a_sum_of_two_is_refused(tmp_path):
    with pytest.raises(InputError, match="2 clients take part in a round, but a sum needs 3"):
        play(tmp_path / "run", method="fedavg", privacy="secagg", participation=0.3)


def test_an_upload_without_masks_is_not_to_be_had_from_clients(tmp_path, monkeypatch):
    """Not even by a server that asks for it as if noise were enough."""
    monkeypatch.setattr("hcfl.engines.flower.private_engine.secagg.FEWEST", 1)
    from hcfl.engines.flower.private_engine import Private

    def plainly(self, tasks, nodes, needed, round_, seed):
        found = self._uploads(tasks, tasks, nodes, "train", torch.float32)
        assert not found.counted
        raise InputError("; ".join({one.reason for one in found.failed.values()}))

    monkeypatch.setattr(Private, "_sealed", plainly)
    with pytest.raises(InputError, match=r"^could not do its part; its own log says why$"):
        play(tmp_path / "run", method="fedavg", privacy="secagg")


@pytest.mark.parametrize("mode", ["local-dp", "central-dp"])
@pytest.mark.parametrize("method", ["fedavg", "fedrc", "ifca", "fedsoft"])
def test_runs_with_noise(tmp_path, mode, method):
    grid, state = play(tmp_path / "run", method=method, privacy=mode, clip=0.5)
    assert all(tensor.isfinite().all() for tensor in state.server.ensemble.heads.values())
    assert (state.server.members == -1).all()
    assert set(state.server.sizes.tolist()) == {1.0}
    allowed = {"fedavg": set(), "fedrc": {"counts"}}.get(method, {"mass"})
    uploads = [records.unpack(Upload, message.content) for message in grid.answered[6:]]
    assert len(uploads) == 12
    for upload in uploads:
        assert {name for name in upload.parts if not name.startswith(("extractor.", "head."))} == allowed
        limit = 0.5 * (1 + len(allowed)) ** 0.5
        size = np.linalg.norm(joined(upload.parts))
        assert size <= limit + 1e-6 if mode == "central-dp" else size > 50 * limit
    rows = run_folder.rows(tmp_path / "run", "metrics.jsonl")
    assert [(row["val"], row["objective"]) for row in rows] == [(None, None)] * 2
    summary = (tmp_path / "run" / "summary.json").read_text()
    assert '"epsilon": null' not in summary
    assert '"delta": 1e-05' in summary


@pytest.mark.parametrize("mode", ["local-dp", "central-dp"])
@pytest.mark.parametrize("part", ["head.", "counts", "size"])
def test_an_upload_beyond_what_clipping_leaves_is_refused(tmp_path, mode, part):
    """Its sum with others hides nothing here: the server sees each upload."""

    def longer(message, reply):
        sent = records.unpack(Upload, reply.content)
        parts = {name: tensor * (1e6 if name.startswith(part) else 1) for name, tensor in sent.parts.items()}
        parts |= {"size": torch.ones(1)} if part == "size" else {}
        return Message(records.pack(replace(sent, parts=parts)), reply_to=message)

    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    grid.before[102] = [longer]
    play(tmp_path / "run", grid, 0.5, method="fedrc", privacy=mode, clip=0.5, rounds=1)
    (row,) = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] in ("absent", "refused")]
    assert (row["client"], row["event"]) == (2, "refused")
    words = "sent size of shape" if part == "size" else "sent an upload of norm .*, but at most .* is possible"
    assert re.match(words, row["reason"])


def test_noise_that_is_too_much_is_said(tmp_path):
    sentence = (
        r"^training.lr = 0.06: training diverged in round 2; try a smaller one, more clients or a smaller privacy"
    )
    with pytest.raises(InputError, match=sentence):
        play(tmp_path / "run", method="fedavg", privacy="local-dp", clip=1e9)


def test_noise_of_a_client_is_drawn_once_for_a_round(tmp_path):
    """A reply that is lost, and asked for again, does not give the server two draws to take the mean of."""
    grid = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)})
    seen = []

    def lost(message, reply):
        seen.append(records.unpack(Upload, reply.content))
        return Message(Error(8, "lost on the way"), reply_to=message)

    grid.before[100] = [None, lost]
    play(tmp_path / "run", grid, method="fedavg", privacy="local-dp")
    arrived = [records.unpack(Upload, message.content) for message in grid.answered[6:] if message.has_content()]
    (again,) = [upload for upload in arrived if (upload.client, upload.round) == (0, 2)]
    assert_close(dict(again.parts), dict(seen[0].parts), rtol=0, atol=0)


def test_a_client_that_lost_its_state_starts_anew_in_the_next_round(tmp_path):
    grid, out = FakeGrid({100 + c: ("", {"partition-id": c, "num-partitions": 6}) for c in range(6)}), tmp_path / "run"

    def forget(message, reply):
        shutil.rmtree(next(out.glob("client-states/*/client-3")))
        return reply

    grid.before[103] = [forget]
    play(out, grid, 0.5, method="fedem", privacy="secagg", rounds=3)
    assert [row["participants"] for row in run_folder.rows(out, "metrics.jsonl")] == [6, 5, 6]


DEPLOYED = {"rounds": 2, "batch": 16, "epochs": 1, "model": "mlp", "method": "fedrc", "mean": 8.0, "std": 6.0}


def told(out, **more):
    return read({"names": ", ".join(NAMES), "out": str(out), "timeout": 2.0, "wait": 3.0, **DEPLOYED, **more})


@pytest.mark.parametrize("mode", ["secagg", "local-dp"])
def test_clients_with_their_own_files_say_nothing_of_them_but_the_shape(tmp_path, mode):
    write(tmp_path)
    grid, out = grid_of(tmp_path), tmp_path / "run"
    server_app.play(grid, told(out, privacy=mode, classes=", ".join(map(str, range(10)))))
    said = [records.unpack(Introduction, message.content) for message in grid.answered[:3]]
    for number, name in enumerate(NAMES):
        assert said[number] == Introduction(number, name, train=1, shape=(8, 8, 1))
    assert len(run_folder.rows(out, "metrics.jsonl")) == 2
    config = (out / "config.yaml").read_text()
    assert f"mode: {mode}" in config


def test_a_private_run_of_real_clients_needs_the_classes(tmp_path):
    write(tmp_path)
    with pytest.raises(InputError, match=r"^classes = '': a private run needs the names of all classes"):
        server_app.play(grid_of(tmp_path), told(tmp_path / "run", privacy="secagg"))
    with pytest.raises(InputError, match=r"^wait = 3: 2 clients are needed to begin, but 0 of 3 came"):
        server_app.play(grid_of(tmp_path), told(tmp_path / "run", privacy="secagg", classes="0, 1, 2"))
    with pytest.raises(InputError, match=r"^mean = 'much': must be a number"):
        told(tmp_path / "run", mean="much")
