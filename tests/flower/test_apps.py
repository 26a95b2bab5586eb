"""The apps on a transport without processes: what Flower plays is what the sequential engine plays."""

import pytest
from fake_grid import FakeGrid
from same import same_run

from hcfl import run_folder
from hcfl.config import from_flat
from hcfl.experiment import execute, prepare
from hcfl.flower import records, server_app
from hcfl.flower.run_settings import read
from hcfl.methods import METHODS

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

    # What went through the wire is what the ledger says: all of what clients got, part by part of what they sent.
    rows = [run_folder.rows(tmp_path / run, "metrics.jsonl") for run in ("flower", "sequential")]
    for flower, sequential in zip(*rows, strict=True):
        for key in ("participants", "clusters", "bytes_up_by_part", "bytes_down_by_part", "test", "ari"):
            assert flower[key] == pytest.approx(sequential[key], rel=1e-3)
    if rows[0][0]["bytes_down"]:
        trained = [message for message in grid.sent if message.metadata.message_type == "train"]
        assert sum(records.payload(message.content) for message in trained) == sum(row["bytes_down"] for row in rows[0])
