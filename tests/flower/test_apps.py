"""The apps on a transport without processes: what Flower plays is what the sequential engine plays."""

import json
import re
import shutil
from dataclasses import dataclass, replace

import pandas as pd
import pytest
import torch
from fake_grid import FakeGrid, _a_run  # noqa: F401
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from same import same_run

from hcfl.config import from_flat
from hcfl.engines import Sequential
from hcfl.engines.flower import records
from hcfl.engines.flower.messages import Measured, Reply, Task
from hcfl.errors import InputError
from hcfl.flower import server_app
from hcfl.flower.client_store import ClientStore
from hcfl.flower.run_settings import read
from hcfl.launch import execute
from hcfl.methods import METHODS
from hcfl.models.ensemble import Ensemble
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.checkpoint import load
from hcfl.runs.prepare import prepare
from hcfl.tiers import Prototypes

SMALL = {"data": "digits", "clients": 6, "beta": 0.9, "concepts": 2, "rounds": 4, "participation": 0.7, "epochs": 1}


def simulated(clients: int) -> FakeGrid:
    config = {"num-partitions": clients}
    return FakeGrid({100 + client: ("", {"partition-id": client, **config}) for client in range(clients)})


def told(config, out, **more):
    return read({"experiment": config.to_yaml(), "out": str(out), "timeout": 5.0, **more})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_what_the_sequential_engine_gives(tmp_path, name):
    config = from_flat(method=name, engine="sequential", **SMALL)
    execute(prepare(config), tmp_path / "sequential")
    grid = simulated(6)
    server_app.play(grid, told(config, tmp_path / "flower"))
    same_run(tmp_path / "flower", tmp_path / "sequential")

    # The models that the run ends with are measured, too, by all clients: by client, by class, and by cluster.
    there, here = (summary_of(tmp_path / run) for run in ("flower", "sequential"))
    for key in ("val_last", "val_worst_client", "balanced_accuracy", "macro_f1", "val_spread"):
        assert there[key] == pytest.approx(here[key], abs=1e-9), key
    for table, columns in (
        (run_folder.CLIENTS, ("held_out", "accuracy")),
        (run_folder.CONFUSION, ("label", "samples")),
    ):
        frames = [pd.read_csv(tmp_path / run / table) for run in ("flower", "sequential")]
        assert frames[0][[*columns]].equals(frames[1][[*columns]]), table
    assert all(row["macro_f1"] is not None for row in run_folder.rows(tmp_path / "flower", "metrics.jsonl"))

    # What went through the wire is what the ledger says: all of what clients got, part by part of what they sent.
    rows = [run_folder.rows(tmp_path / run, "metrics.jsonl") for run in ("flower", "sequential")]
    for flower, sequential in zip(*rows, strict=True):
        for key in ("participants", "clusters", "bytes_up_by_part", "bytes_down_by_part", "test", "ari"):
            assert flower[key] == pytest.approx(sequential[key], rel=1e-3)
    if rows[0][0]["bytes_down"]:
        trained = [message for message in grid.sent if message.metadata.message_type == "train"]
        assert sum(records.payload(message.content) for message in trained) == sum(row["bytes_down"] for row in rows[0])
        for part, names in PARTS.items():
            sent = sum(bytes_of(message, f"update.{name}") for message in grid.answered for name in names)
            assert sent == sum(row["bytes_up_by_part"][part] for row in rows[0])
        beside = sum(bytes_of(message, "update") for message in grid.answered) - sum(row["bytes_up"] for row in rows[0])
        assert beside / len(trained) < 1000  # how models were mixed, sizes, what was measured


@pytest.mark.parametrize("name", ["fedavg", "hcfl++"])
def test_personal_parts_are_made_by_the_clients_and_stay_there(tmp_path, name):
    config = from_flat(method=name, engine="sequential", personal="head", **(SMALL | {"rounds": 2}))
    execute(prepare(config), tmp_path / "sequential")
    grid = simulated(6)
    server_app.play(grid, told(config, tmp_path / "flower"))
    same_run(tmp_path / "flower", tmp_path / "sequential")
    runs = [json.loads((tmp_path / run / run_folder.SUMMARY).read_text()) for run in ("flower", "sequential")]
    for key in ("val_personal_last", "val_personal_worst_tenth", "val_personal_spread", "val_spread"):
        assert runs[0][key] == pytest.approx(runs[1][key], abs=1e-9)
    assert not load(tmp_path / "flower" / "checkpoint")[0].personal  # the server has scores, and no part
    measured = [message for message in grid.answered if message.metadata.message_type == "evaluate"]
    # Clients send a confusion matrix, and first what each of eight candidates gained on each of 43 samples, and this
    # number; no part.
    assert {records.payload(message.content) for message in measured} == {800, 800 + 8 + 4 * 8 * 43}
    assert len(list((tmp_path / "flower").rglob("personal.safetensors"))) == 6


@pytest.mark.parametrize("name", ["fedavg", "hcfl+(fedem)", "hcfl+(fedrc)", "fedrep", "local"])
def test_samples_set_aside_come_back_there_too(tmp_path, name):
    """A client notes on its own disk what its candidates gain, and sends it when it is asked at the end."""
    config = from_flat(method=name, engine="sequential", personal="head", personal_after=2, **SMALL)
    execute(prepare(config), tmp_path / "sequential")
    grid = simulated(6)
    server_app.play(grid, told(config, tmp_path / "flower"))
    same_run(tmp_path / "flower", tmp_path / "sequential")
    (there, _), (here, _) = (load(tmp_path / run / "checkpoint") for run in ("flower", "sequential"))
    assert there.server.sizes.tolist() == here.server.sizes.tolist()
    assert not any(state.noted for state in there.clients.values())
    assert there.scores.personal.tolist() == here.scores.personal.tolist()
    assert {row["event"] for row in run_folder.rows(tmp_path / "flower", "events.jsonl")} & {
        "refused",
        "absent",
    } == set()
    noted = {client: state for client, state in here.clients.items() if state.noted}
    assert 0 < len(noted) <= 6
    for client, state in noted.items():
        (folder,) = (tmp_path / "flower").rglob(f"client-{client}")
        store = ClientStore(folder.parent.parent, folder.parent.name.removeprefix("experiment-"), str(client))
        kept = store.load(state.round).noted
        for key, table in state.noted.items():
            torch.testing.assert_close(kept[key], table, rtol=1e-3, atol=1e-3)
    trained = [message for message in grid.answered if message.metadata.message_type == "train"]
    assert not any("noted" in name or "gains" in name for message in trained for name in array_names(message))


def array_names(message) -> list[str]:
    return [name for part in message.content.array_records.values() for name in part]


def summary_of(path) -> dict:
    return json.loads((path / run_folder.SUMMARY).read_text())


def val_last(path) -> float:
    return summary_of(path)["val_last"]


def test_what_cannot_be_does_not_count_in_the_last_measurement(tmp_path, capsys):
    """Of six clients, one does not answer, and four say what cannot be; the other's answer counts."""
    config = from_flat(method="fedavg", engine="sequential", **SMALL)
    grid = simulated(6)
    lies = {
        100: lambda message, reply: Message(Error(5, "gone"), reply_to=message),
        101: lambda message, reply: miscounted(message, reply, right=10**6),
        102: lambda message, reply: miscounted(message, reply, client=5),
        105: lambda message, reply: miscounted(message, reply, confusion=torch.eye(10, dtype=torch.long) * 10**6),
        103: lambda message, reply: miscounted(message, reply, problem="no\x1b[2J" + 1000 * "!"),
    }
    grid.at_last = lies
    server_app.play(grid, told(config, tmp_path / "lies"))
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("At the end")]
    assert len(said) == 5
    assert "error 5: gone" in said[0]
    assert "sent counts that cannot be" in said[1]
    assert "answered as another client" in said[2]
    assert "\x1b" not in said[3]
    assert len(said[3]) < 600
    assert "sent a confusion matrix that does not fit its other counts" in said[4]
    last = [message for message in grid.answered if message.metadata.message_type == "evaluate"][4:5]
    honest = [records.unpack(Measured, message.content) for message in last]
    share = sum(one.right for one in honest) / sum(one.samples for one in honest)
    assert val_last(tmp_path / "lies") == pytest.approx(share)


def test_val_of_every_round_is_that_of_the_models_it_ended_with(tmp_path):
    config = from_flat(method="hcfl+(fedrc)", engine="sequential", **(SMALL | {"rounds": 3}))
    execute(prepare(config), tmp_path / "sequential")
    grid = simulated(6)
    server_app.play(grid, told(config, tmp_path / "flower", measure="rounds"))
    vals = [
        [row["val"] for row in run_folder.rows(tmp_path / run, "metrics.jsonl")] for run in ("flower", "sequential")
    ]
    assert vals[0] == pytest.approx(vals[1], abs=1e-9)
    assert val_last(tmp_path / "flower") == pytest.approx(vals[1][-1], abs=1e-9)
    assert len([message for message in grid.sent if message.metadata.message_type == "evaluate"]) == 3 * 6
    with pytest.raises(InputError, match=r"^measure = 'never': must be one of end, rounds$"):
        told(config, tmp_path / "flower", measure="never")


def miscounted(message, reply, **fields):
    answer = replace(records.unpack(Measured, reply.content), **fields)
    return Message(records.pack(answer), reply_to=message)


def test_without_any_answer_the_last_round_s_val_stays(tmp_path):
    config = from_flat(method="fedavg", engine="sequential", **SMALL)
    grid = simulated(6)
    grid.at_last = dict.fromkeys(grid.nodes, lambda message, reply: Message(Error(5, "gone"), reply_to=message))
    server_app.play(grid, told(config, tmp_path / "alone"))
    assert val_last(tmp_path / "alone") == run_folder.rows(tmp_path / "alone", "metrics.jsonl")[-1]["val"]


def test_soft_clients_that_move_are_the_same_there(tmp_path):
    shifted = {"clients": 12, "beta": 0.2, "alpha": 1.0, "alpha_reading": "total", "epochs": 1, "seed": 4}
    rule = {"adaptation": "split-on-contradiction(rho=0.1)", "order": "heads-first"}
    config = from_flat(method="hcfl++", engine="sequential", data="digits", rounds=4, **shifted, **rule)
    execute(prepare(config), tmp_path / "sequential")
    events = run_folder.rows(tmp_path / "sequential", "events.jsonl")
    assert [(row["round"], row["event"]) for row in events] == [(1, "split"), (2, "move")]
    server_app.play(simulated(12), told(config, tmp_path / "flower"))
    same_run(tmp_path / "flower", tmp_path / "sequential")


def test_clients_that_change_are_the_same_there(tmp_path):
    steps = {"clients": 6, "steps": 3, "rounds_per_step": 2, "drift": "staggered", "val_share": 0.25, "epochs": 1}
    config = from_flat(method="hcfl++", engine="sequential", data="digits", **steps)
    execute(prepare(config), tmp_path / "sequential")
    server_app.play(simulated(6), told(config, tmp_path / "flower"))
    same_run(tmp_path / "flower", tmp_path / "sequential")
    rows = [run_folder.rows(tmp_path / run, "metrics.jsonl") for run in ("flower", "sequential")]
    for flower, sequential in zip(*rows, strict=True):
        for key in ("step", "prequential", "client_clusters", "client_concepts"):
            assert flower.get(key) == sequential.get(key)
    # Clients measure what a round began with: in a step's first round by all new samples, then by held-out ones.
    assert [row["val"] for row in rows[0]][1::2] == pytest.approx([row["val"] for row in rows[1]][0::2])
    assert val_last(tmp_path / "flower") == pytest.approx(val_last(tmp_path / "sequential"), abs=1e-9)


def test_dropout_and_last_batches_are_the_same_there(tmp_path):
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def build(shape, classes):\n"
        "    extractor = nn.Sequential(nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 16))\n"
        "    extractor.feature_dropout = 0.5\n"
        "    return extractor, nn.Linear(16, classes)\n"
    )
    model = {"model": f"{tmp_path / 'net.py'}:build", "drop_last": True}
    config = from_flat(method="hcfl+(fedrc)", engine="sequential", **model, **SMALL)
    execute(prepare(config), tmp_path / "sequential")
    server_app.play(simulated(6), told(config, tmp_path / "flower", timeout=1.0, wait=1.0))
    same_run(tmp_path / "flower", tmp_path / "sequential")


def test_heads_and_extractors_train_together_there_too(tmp_path):
    for order in ("together", "heads-first"):
        execute(prepare(from_flat(method="hcfl+(fedrc)", engine="sequential", order=order, **SMALL)), tmp_path / order)
    config = from_flat(method="hcfl+(fedrc)", engine="sequential", order="together", **SMALL)
    server_app.play(simulated(6), told(config, tmp_path / "flower", timeout=1.0, wait=1.0))
    same_run(tmp_path / "flower", tmp_path / "together")
    with pytest.raises(AssertionError):
        same_run(tmp_path / "flower", tmp_path / "heads-first")


def test_robust_averages_are_the_same_there(tmp_path):
    config = from_flat(method="hcfl+(fedrc)", engine="sequential", aggregation="multi-krum(share=0.3)", **SMALL)
    execute(prepare(config), tmp_path / "sequential")
    server_app.play(simulated(6), told(config, tmp_path / "flower", timeout=1.0, wait=1.0))
    same_run(tmp_path / "flower", tmp_path / "sequential")


PARTS = {
    "extractor": ("models.extractors",),
    "heads": ("models.heads",),
    "prototypes": ("prototypes", "halves"),
    "counts": ("counts",),
    "weights": ("weights",),
    "signatures": ("signatures",),
    "reports": ("reports",),
    "moments": ("moments",),
}


def bytes_of(message, prefix):
    """Return the bytes of the tensors in a message whose names begin so."""
    arrays = message.content.array_records["arrays"]
    chosen = {name: array for name, array in arrays.items() if f"{name}.".startswith(f"{prefix}.")}
    return records.payload(RecordDict({"arrays": ArrayRecord(chosen)}))


@dataclass(frozen=True)
class Without:
    """The sequential engine, with some clients absent in some rounds."""

    absent: dict[int, list[int]]

    def execute(self, task):
        absent = self.absent.get(task.broadcast.round, [])
        return Sequential().execute(task.only([client for client in task.participants if client not in absent]))


def undisturbed(config, out, absent=None):
    """Play sequentially, where the same clients take part."""
    prepared = prepare(config)
    execute(replace(prepared, setting=replace(prepared.setting, engine=Without(absent or {}))), out)


ALL = from_flat(method="hcfl+(fedrc)", engine="sequential", **{**SMALL, "participation": 1.0, "rho": 0.1})


@pytest.fixture(scope="module")
def without_client_3(tmp_path_factory):
    """The run in which client 3 was absent in round 2."""
    out = tmp_path_factory.mktemp("without") / "sequential"
    undisturbed(ALL, out, {2: [3]})
    return out


@pytest.fixture(scope="module")
def with_everybody(tmp_path_factory):
    """The run that nothing disturbed."""
    out = tmp_path_factory.mktemp("with") / "sequential"
    undisturbed(ALL, out)
    return out


def absences(out):
    rows = [row for row in run_folder.rows(out, "events.jsonl") if row["event"] in ("absent", "refused")]
    return [(row["round"], row["client"], row["reason"]) for row in rows]


def error(message, reply):
    return Message(Error(8, "the process was killed"), reply_to=message)


def silence(message, reply):
    return None


def changed(**parts):
    """Answer with an update that was tampered with."""

    def change(message, reply):
        sent = records.unpack(Reply, reply.content)
        update = None if sent.update is None else replace(sent.update, **parts)
        return Message(records.pack(replace(sent, update=update)), reply_to=message)

    return change


def stale(message, reply):
    sent = records.unpack(Reply, reply.content)
    return Message(records.pack(replace(sent, round=sent.round - 1)), reply_to=message)


def long(message, reply):
    sent = records.unpack(Reply, reply.content)
    models = sent.update.models
    models = replace(models, heads={name: 1e6 * tensor for name, tensor in models.heads.items()})
    return Message(records.pack(replace(sent, update=replace(sent.update, models=models))), reply_to=message)


def rubbish(message, reply):
    return Message(RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({"tree": "{"})}), reply_to=message)


def typed(name, dtype):
    """Answer with a tensor of another type."""

    def change(message, reply):
        sent = records.unpack(Reply, reply.content)
        return changed(**{name: getattr(sent.update, name).to(dtype)})(message, reply)

    return change


def with_header(header):
    """Answer with an array whose header is not one."""

    def change(message, reply):
        data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        reply.content.array_records["arrays"]["update.sizes"] = Array("float32", (1,), "numpy.ndarray", data)
        return reply

    return change


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (error, "error 8: the process was killed"),
        (silence, "no answer within 1 s"),
        (rubbish, "sent what cannot be read"),
        (stale, "answered in round 1, but this is round 2"),
        (long, "sent a model that is .* times as long as most others and the one it got"),
        (changed(weights=torch.full((1, 2), float("nan"))), "sent numbers that are not finite"),
        (changed(weights=torch.ones(1, 7)), r"sent weights of shape \(1, 7\), but"),
        (changed(weights=torch.tensor([[2.0, -1.0]])), "sent weights that are no distribution"),
        (changed(sizes=torch.tensor([-5.0])), "sent a size of -5, which it cannot have"),
        (changed(counts=None), "sent no counts"),
        (
            changed(prototypes=Prototypes(*[torch.zeros(1, 3)] * 3)),
            r"sent prototypes.class_means of shape \(1, 3\), but \(1, 10, 128\)",
        ),
        (changed(clients=(0,)), r"sent an update of clients \(0,\)"),
        (changed(signatures={4: torch.zeros(2)}), "sent an update of clients"),
        (changed(models=Ensemble({}, {"weight": torch.zeros(1, 2)}, "split")), "not those of the model"),
        (typed("sizes", torch.float64), "sent sizes as float64, but float32 is needed"),
        (typed("weights", torch.float64), "sent weights as float64, but float32 is needed"),
        (typed("mass", torch.int32), "sent mass as int32, but float32 is needed"),
        (typed("started", torch.complex64), "sent started as complex64, but float32 is needed"),
        (typed("row_participants", torch.float32), "sent row_participants as float32, but int64 is needed"),
        (typed("held_out", torch.bool), "sent held_out as bool, but float32 is needed"),
        (changed(row_participants=torch.tensor(0)), r"sent row_participants of shape \(\), but"),
        (changed(sizes=torch.tensor(5.0)), r"sent sizes of shape \(\), but \(1,\) is needed"),
        (changed(held_out=None), "sent no held_out"),
        (changed(held_out=torch.tensor([[1e6, 1.0]])), "sent held_out that cannot be: 1e.06 of 1 samples right"),
        (changed(held_out=torch.tensor([[-1.0, 1.0]])), "sent held_out that cannot be"),
        (changed(held_out=torch.tensor([[1e6, 1e6]])), "sent held_out that cannot be"),
        (changed(by_class=None), "sent no by_class"),
        (changed(by_class=torch.ones(1, 3, 10)), "sent counts of held-out samples by class that cannot be"),
        (changed(sealed=5), "says that it is a sum or has noise, but neither was asked for"),
        (changed(noised=True), "says that it is a sum or has noise, but neither was asked for"),
        (with_header(b"{'descr': '<f4', 'fortran_order': False, 'shape': (1"), "sent what cannot be read"),
        (with_header(b"{'descr': [['<f4']], 'fortran_order': 0, 'shape': 7}"), "sent what cannot be read"),
        (with_header(b"(" * 400), "sent what cannot be read"),
    ],
)
def test_a_client_that_fails_is_as_if_it_had_not_taken_part(tmp_path, what, reason, without_client_3):
    grid = simulated(6)
    grid.before[103] = [None, what]
    server_app.play(grid, told(ALL, tmp_path / "flower", timeout=1.0))
    ((round_, client, why),) = absences(tmp_path / "flower")
    assert (round_, client) == (2, 3)
    assert re.search(reason, why)
    same_run(tmp_path / "flower", without_client_3)


def test_a_round_waits_for_its_quorum(tmp_path, with_everybody):
    grid = simulated(6)
    grid.before[103] = [None, error, silence, error]
    server_app.play(grid, told(ALL, tmp_path / "flower", timeout=1.0, quorum=1.0))
    assert absences(tmp_path / "flower") == []
    same_run(tmp_path / "flower", with_everybody)


def test_without_a_quorum_a_run_ends_and_can_go_on(tmp_path, with_everybody):
    grid = simulated(6)
    gone = {node: grid.nodes.pop(node) for node in (103, 104, 105)}
    with pytest.raises(InputError, match=r"num-supernodes = 3: the federation has 6 clients"):
        server_app.play(grid, told(ALL, tmp_path / "flower"))
    grid.nodes |= gone
    for node in gone:
        grid.before[node] = [None, *[error] * 50]
    with pytest.raises(InputError, match=r"quorum = 0.8: 3 of 6 clients answered in round 2, but 5 are needed; resume"):
        server_app.play(grid, told(ALL, tmp_path / "flower", timeout=1.0, wait=3.0, quorum=0.8))
    grid.before.clear()
    server_app.play(grid, told(ALL, tmp_path / "flower", resume=str(tmp_path / "flower"), quorum=0.8))
    same_run(tmp_path / "flower", with_everybody)
    assert [row["round"] for row in run_folder.rows(tmp_path / "flower", "metrics.jsonl")] == [1, 2, 3, 4]


def test_a_client_that_lost_its_state_starts_anew(tmp_path):
    grid, out = simulated(6), tmp_path / "flower"

    def forget(message, reply):
        shutil.rmtree(next(out.glob("client-states/*/client-3")))
        return reply

    grid.before[103] = [None, forget]
    server_app.play(grid, told(ALL, out))
    assert [row["participants"] for row in run_folder.rows(out, "metrics.jsonl")] == [6, 6, 6, 6]
    tasks = [records.unpack(Task, message.content) for message in grid.sent if message.metadata.message_type == "train"]
    assert [(task.round, task.since) for task in tasks if task.client == 3] == [(1, 0), (2, 1), (3, 2), (3, 0), (4, 3)]


def test_a_run_that_is_killed_between_rounds_goes_on_as_if_nothing_had_happened(tmp_path, monkeypatch, with_everybody):
    grid, out = simulated(6), tmp_path / "flower"

    class PowerCut(BaseException):
        pass

    def cut(path, state, scaling, config):
        if state.server.round == 3:
            raise PowerCut  # after the round was written down, before its checkpoint was
        save(path, state, scaling, config)

    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", cut)
    monkeypatch.setattr(run_folder, "finish", lambda *parts: None)
    with pytest.raises(PowerCut):
        server_app.play(grid, told(ALL, out))
    monkeypatch.undo()
    for part in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, part, 1)
    assert len(run_folder.rows(out, "metrics.jsonl")) == 3
    server_app.play(grid, told(ALL, out, resume=str(out)))
    same_run(out, with_everybody)
    assert [row["round"] for row in run_folder.rows(out, "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("flag", [{"sealed": 5}, {"noised": True}])
def test_what_an_only_client_says_of_its_upload_does_not_let_it_in(tmp_path, flag):
    """Where one reply is all there is, nothing else hides its flags."""
    config = from_flat(method="fedavg", engine="sequential", **{**SMALL, "participation": 1.0})
    grid = simulated(6)
    grid.before |= {node: [None, *[error] * 50] for node in range(101, 106)}
    grid.before[100] = [None, *[changed(weights=torch.tensor([[5.0]]), mass=torch.tensor([[1e9]]), **flag)] * 50]
    with pytest.raises(InputError, match=r"in round 2"):
        server_app.play(grid, told(config, tmp_path / "flower", timeout=1.0, wait=2.0, quorum=0.1))


@pytest.mark.parametrize("train", ["heads", "adapters"])
def test_only_what_is_trained_travels(tmp_path, train):
    config = from_flat(method="hcfl+(fedrc)", engine="sequential", train=train, **(SMALL | {"rounds": 2}))
    execute(prepare(config), tmp_path / "sequential")
    grid = simulated(6)
    server_app.play(grid, told(config, tmp_path / "flower"))
    same_run(tmp_path / "flower", tmp_path / "sequential")
    rows = run_folder.rows(tmp_path / "flower", "metrics.jsonl")
    trained = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert sum(records.payload(message.content) for message in trained) == sum(row["bytes_down"] for row in rows)
    sent = sum(bytes_of(message, "update.models.extractors") for message in grid.answered)
    assert sent == sum(row["bytes_up_by_part"]["extractor"] for row in rows)
    assert (sent == 0) == (train == "heads")


def test_a_client_with_another_backbone_does_not_take_part(tmp_path, monkeypatch):
    config = from_flat(method="fedavg", engine="sequential", train="heads", **(SMALL | {"rounds": 1}))
    monkeypatch.setattr(server_app, "fingerprint", lambda frozen: "of other weights")
    grid = simulated(6)
    with pytest.raises(InputError, match="in round 1"):
        server_app.play(grid, told(config, tmp_path / "flower", timeout=1.0, wait=1.0))
    said = [records.unpack(Reply, one.content).problem for one in grid.answered if one.metadata.message_type == "train"]
    assert said
    assert all("its frozen weights here differ from the server's" in problem for problem in said)
