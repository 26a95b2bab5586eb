"""Every switch for what the authors' public code does is the same on Flower, and changes the run there, too."""

import numpy as np
import pytest
from fake_grid import FakeGrid, _a_run  # noqa: F401
from same import same_run
from torch.testing import assert_close

from hcfl.config import from_flat
from hcfl.flower import server_app
from hcfl.flower.run_settings import read
from hcfl.launch import execute
from hcfl.runs.checkpoint import load
from hcfl.runs.prepare import prepare
from image_files import pictures

DIGITS = {"data": "digits", "clients": 8, "rounds": 4, "epochs": 1, "batch": 32, "beta": 0.9, "concepts": 3}
SOME = DIGITS | {"participation": 0.5}
PICTURES = {"data": "pictures.npz", "clients": 3, "partition": "iid", "rounds": 1, "epochs": 1, "batch": 8}
CFL = DIGITS | {"clients": 12, "participation": 1.0, "tol1": 0.9, "tol2": 0.2, "lr": 0.1}

SWITCHES = {
    "keep_momentum": ("hcfl+(fedrc)", SOME, {"keep_momentum": True}),
    "uniform_split": ("hcfl+(fedrc)", DIGITS | {"rho": 0.05, "lr": 0.1}, {"uniform_split": True}),
    "dropout": ("fedavg", PICTURES | {"model": "mobilenet-v2"}, {"dropout": 0.4}),
    "drop_last": ("hcfl+(fedrc)", SOME, {"drop_last": True}),
    "plain_newcomers": ("fedrc", SOME, {"plain_newcomers": True}),
    "cosine_of": ("icfl", DIGITS | {"alpha0": 0.3, "lr": 0.1}, {"cosine_of": "parameters"}),
    "corrupted_share": ("fedavg", PICTURES | {"corruptions": "random"}, {"corrupted_share": 0.25}),
    "zero_empty": ("ifca", SOME, {"zero_empty": True}),
    "independent_start": ("fesem", DIGITS, {"independent_start": True}),
    "lost_ids": ("cfl", CFL, {"lost_ids": True}),
}


@pytest.mark.parametrize(
    "switch", [pytest.param(name, marks=[pytest.mark.slow] * (name == "dropout")) for name in SWITCHES]
)
def test_a_switch_is_the_same_there(switch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = pictures(60), np.arange(60) % 3
    np.savez("pictures.npz", x=x, y=y)
    method, settings, chosen = SWITCHES[switch]
    for name, more in (("off", {}), ("on", chosen)):
        execute(prepare(from_flat(method=method, engine="sequential", **settings, **more)), tmp_path / name)
    config = from_flat(method=method, engine="sequential", **settings, **chosen)
    clients = config.data.clients
    nodes = {100 + client: ("", {"partition-id": client, "num-partitions": clients}) for client in range(clients)}
    server_app.play(FakeGrid(nodes), read({"experiment": config.to_yaml(), "out": "flower", "timeout": 5.0}))
    same_run_and_newcomers(tmp_path / "flower", tmp_path / "on")
    with pytest.raises(AssertionError):  # or this test could not fail
        same_run_and_newcomers(tmp_path / "flower", tmp_path / "off")


def same_run_and_newcomers(one, two):
    same_run(one, two)
    mine, theirs = ([each.client for each in load(run / "checkpoint")[0].newcomers] for run in (one, two))
    assert_close(mine, theirs, rtol=0, atol=1e-5)
