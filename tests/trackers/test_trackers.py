"""Trackers write real records through their real libraries; who is not installed is not tested, and says so."""

import time
import zlib

import pytest

import hcfl
from hcfl import InputError


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def followed(planted, track):
    return hcfl.run("hcfl+(fedem)", planted, "mlp", rounds=3, out="run", track=track)


def test_tensorboard_has_every_round(planted, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = followed(planted, "tensorboard")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for name in ("val", "test", "clusters", "bytes_up", "seconds"):
        assert [(event.step, event.value) for event in events.Scalars(name)] == [
            (row["round"], pytest.approx(row[name])) for row in run.rows
        ]
    assert events.Scalars("test_concept_2")[1].value == pytest.approx(run.rows[1]["test_per_concept"][2])
    assert {"config/text_summary", "summary/text_summary"} <= set(events.Tags()["tensors"])


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_has_every_round(planted, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/records.db")
    run = followed(planted, ["mlflow"])
    client = mlflow.MlflowClient()
    [record] = client.search_runs([client.get_experiment_by_name("hcfl").experiment_id])
    assert record.info.status == "FINISHED"
    assert record.info.run_name == "run"
    assert record.data.params["method.name"] == "hcfl+(fedem)"
    assert record.data.params["training.rounds"] == "3"
    assert record.data.tags["clusters_last"] == str(run.summary["clusters_last"])
    history = client.get_metric_history(record.info.run_id, "val")
    assert [(point.step, point.value) for point in history] == [(row["round"], row["val"]) for row in run.rows]


BLOCK = 32768
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(data):
    """Yield what wandb keeps offline, a log of LevelDB's format: after 7 bytes, blocks of 32 kB with parts of records.

    Another process writes it. A record whose end is missing, or whose checksum is not right yet, is not there yet.
    """
    at, parts = 7, []
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # too short for the head of a part: the writer goes on in the next block
            at += BLOCK - at % BLOCK
            continue
        checksum, length = int.from_bytes(data[at : at + 4], "little"), int.from_bytes(data[at + 4 : at + 6], "little")
        part = data[at + 6 : at + 7 + length]  # its kind, then its content
        if len(part) < 1 + length or zlib.crc32(part) != checksum:
            return
        parts.append(part[1:])
        at += 7 + length
        if part[0] in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []


def logged(contents):
    """Write records as wandb does, over as many blocks as they need."""
    data = bytearray(b":W&B\xe1\xbe\x00")
    for content in contents:
        begun = False
        while content or not begun:
            room = BLOCK - len(data) % BLOCK - 7
            if room < 0:
                data += bytes(room + 7)
                continue
            piece, content = content[:room], content[room:]
            kind = (LAST if begun else WHOLE) if not content else MIDDLE if begun else FIRST
            part = bytes([kind]) + piece
            data += zlib.crc32(part).to_bytes(4, "little") + len(piece).to_bytes(2, "little") + part
            begun = True
    return bytes(data)


def test_of_a_log_that_is_half_written_only_whole_records_are_read():
    contents = [b"one", b"", b"x" * 100_000, b"y" * (BLOCK - 1758), b"the last"]
    data = logged(contents)
    assert list(records(data)) == contents
    ends = [len(logged(contents[:number])) for number in range(1, len(contents) + 1)]
    assert BLOCK - ends[3] % BLOCK == 3, "the last begins in the next block"
    near_ends = [length for end in ends for length in range(end - 9, min(end + 9, len(data) + 1))]
    for length in [*near_ends, *range(60, ends[2], 997)]:
        written = [content for content, end in zip(contents, ends, strict=True) if end <= length]
        assert list(records(data[:length])) == written, length
        assert list(records(data[:length] + bytes(len(data) - length))) == written, "zeros where nothing is written yet"
    damaged = data[: ends[1] + 50] + b"z" + data[ends[1] + 51 :]
    assert list(records(damaged)) == contents[:2]


@pytest.mark.slow
def test_wandb_has_every_round(planted, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'hcfl[wandb]'")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = followed(planted, "wandb")
    [path] = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    end = time.monotonic() + 20
    while len(rounds := history(path, wandb_internal_pb2)) < 3 and time.monotonic() < end:
        time.sleep(0.1)  # another process writes it, and does not say when it is done
    assert rounds == [(row["round"], pytest.approx(row["val"])) for row in run.rows]


def history(path, protocol):
    found = []
    for data in records(path.read_bytes()):
        record = protocol.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            found.append((int(items["_step"]), float(items["val"])))
    return found


class Own:
    """A tracker of one's own."""

    def __init__(self):
        self.rounds, self.end = [], []

    def on_round(self, record):
        self.rounds.append(record.round)

    def on_end(self, summary):
        self.end.append(summary)


def test_a_tracker_of_one_s_own(planted):
    own = Own()
    run = followed(planted, own)
    assert own.rounds == [1, 2, 3]
    assert own.end == [run.summary]


def test_a_run_that_is_interrupted_ends_for_its_trackers_too(planted):
    own = Own()

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hcfl.run("fedavg", planted, "mlp", rounds=5, out="run", track=[own], on_round=stop)
    assert own.rounds == [1, 2]
    assert own.end == [None]


def test_unknown_and_missing_trackers_are_refused_before_anything_runs(planted, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="track = 'excel': must be tensorboard, mlflow, wandb"):
        followed(planted, "excel")
    with pytest.raises(InputError, match="track = 5: must be a name, or have on_round and on_end"):
        followed(planted, 5)
    monkeypatch.setattr("hcfl.trackers.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"track = wandb: is not installed; pip install 'hcfl\[wandb\]'"):
        followed(planted, "wandb")
    assert not (tmp_path / "run").exists()
