"""Run folders and Flower apps of version 0.1 still open: a stored run, made by 0.1 with

hcfl run "hcfl+(fedrc)" --clients 3 --samples 150 --rounds 2 --rho 0.05 --clusters 2 --seed 1 --checkpoints-kept 1
"""

import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

import hcfl
from hcfl.launch import resume

STORED = Path(__file__).parent / "run-0.1"
PROBABILITIES = [
    [0.08971, 0.05186, 0.06225, 0.17854, 0.10890, 0.09553, 0.08014, 0.15653, 0.11316, 0.06337],
    [0.07629, 0.04360, 0.05306, 0.20592, 0.11345, 0.09792, 0.07618, 0.15796, 0.11210, 0.06352],
]
"""What 0.1 predicted for the first two digits, as client 0."""


def test_a_run_of_0_1_is_opened_and_predicts_the_same():
    run = hcfl.load(STORED)
    x = (load_digits().images[:2] / 16).astype(np.float32)
    assert run.summary["clusters_last"] == len(run.clusters) == 3
    assert run.predict_proba(x, client=0) == pytest.approx(np.array(PROBABILITIES), abs=1e-4)


def test_a_run_of_0_1_goes_on(tmp_path):
    path = Path(shutil.copytree(STORED, tmp_path / "run"))
    config = (path / "config.yaml").read_text(encoding="utf-8")
    (path / "config.yaml").write_text(config.replace("rounds: 2\n", "rounds: 3\n"), encoding="utf-8")
    run = resume(path)
    assert [row["round"] for row in run.rows] == [1, 2, 3]
    assert run.rows[:2] == hcfl.load(STORED).rows


@pytest.mark.parametrize("name", ["server_app", "client_app"])
def test_apps_that_0_1_deployed_name_modules_that_are_there(name):
    pytest.importorskip("flwr")
    assert hasattr(import_module(f"hcfl.flower.{name}"), "app")
