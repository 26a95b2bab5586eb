"""A table in the shape of the heart-disease study: four hospitals, missing values, label shift; every method runs."""

import csv

import numpy as np
import pandas as pd
import pytest

import hcfl
from hcfl.methods import METHODS

HOSPITALS = {"cleveland": (60, 0.46), "budapest": (58, 0.36), "long-beach": (40, 0.75), "switzerland": (30, 0.8)}
"""Rows, and the share of the sick."""


@pytest.fixture(scope="module")
def federation():
    draw = np.random.default_rng(0)
    parts = []
    for hospital, (rows, share) in HOSPITALS.items():
        sick = draw.random(rows) < share
        table = pd.DataFrame({"hospital": hospital, "age": draw.normal(52 + 5 * sick, 8).round()})
        table["pain"] = np.where(draw.random(rows) < 0.2 + 0.6 * sick, "none", "typical")
        table["cholesterol"] = np.nan if hospital == "switzerland" else draw.normal(240, 45, rows).round()
        table["pulse"] = draw.normal(150 - 30 * sick, 15).round()
        table["vessels"] = np.where(draw.random(rows) < 0.5, np.nan, draw.poisson(0.3 + 1.5 * sick))
        table["outcome"] = np.where(sick, "sick", "well")
        parts.append(table)
    return hcfl.Federation.from_frame(pd.concat(parts), label="outcome", client="hospital", val_share=0.3)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs_and_tells_auroc_of_each_hospital(federation, name, tmp_path):
    run = hcfl.run(name, federation, rounds=3, epochs=2, model="mlp", out=tmp_path / "run")
    rows = list(csv.DictReader((tmp_path / "run" / "scores.csv").read_text().splitlines()))
    assert [row["client"] for row in rows] == ["", *sorted(HOSPITALS)]
    found = [float(row["auroc"]) for row in rows]
    assert all(0 <= value <= 1 for value in found)
    assert found[0] > 0.6  # age, pain, pulse and vessels all tell
    assert run.summary["score_auroc"] == pytest.approx(found[0], abs=1e-5)
