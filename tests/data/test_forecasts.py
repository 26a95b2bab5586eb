"""Forecasts: windows by hand, split by time, the same wherever they are used, beside forecasts without a model."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl.cli import main
from hcfl.data.tables.windows import Windows, cut, usual_step
from hcfl.errors import InputError
from hcfl.models.zoo import gru


def series(rows=60, stations=("a", "b", "c", "d"), noise=0.1):
    """Hourly values with a period of 8 rows; two stations run against the others."""
    draw = np.random.default_rng(0)
    parts = []
    for number, name in enumerate(stations):
        wave = np.sin(2 * np.pi * np.arange(rows) / 8 + (np.pi / 2 if number % 2 else 0))
        times = pd.date_range("2024-01-01", periods=rows, freq="h").strftime("%Y-%m-%d %H:%M:%S")
        values = 20 + 5 * wave + noise * draw.normal(size=rows)
        parts.append(pd.DataFrame({"station": name, "hour": times, "heat": values, "wind": draw.normal(size=rows)}))
    return pd.concat(parts).sample(frac=1, random_state=0)  # the order of rows must not matter


def built(table, **settings):
    given = {"label": "heat", "client": "station", "time": "hour", "history": 8, **settings}
    return hcfl.Federation.from_frame(table, **given)


def test_windows_by_hand():
    windows = Windows(history=2, horizon=2, time="t", step=1.0)
    time = np.array([0, 1, 2, 3, 5, 6, 7, 8, 0, 1, 2, 3.0])
    client = np.repeat([0, 1], [8, 4])
    found = cut(windows, time, client, np.ones(12, dtype=bool), open_end=False)
    assert found.inputs.tolist() == [[0, 1], [4, 5], [8, 9]]  # none over the gap from 3 to 5, none over two clients
    assert found.answers.tolist() == [3, 7, 11]
    ahead = cut(windows, time[:4], client[:4], np.ones(4, dtype=bool), open_end=True)
    assert ahead.inputs.tolist() == [[0, 1], [1, 2], [2, 3]]
    assert ahead.answers.tolist() == [3, -1, -1]
    usable = np.array([True, True, False, True])
    assert len(cut(windows, time[:4], client[:4], usable, open_end=False).answers) == 0
    assert usual_step(time, client, "t") == 1.0


def test_held_out_windows_share_no_row_with_training():
    table = series()
    federation = built(table, horizon=2)
    assert federation.shape == (8, 2)
    assert federation.schema.outputs == ("heat", "wind")
    assert federation.task.name == "regression"
    ordered = table.sort_values(["station", "hour"]).groupby("station").heat.apply(list)
    task = federation.task
    for client, name in enumerate("abcd"):
        heat = np.array(ordered[name])
        train, val = federation.train[client], federation.val[client]
        assert len(train) + len(val) == 51 - 9  # of 51 windows, those that cross the boundary are left out
        inputs = federation.x[train][:, :, 0].numpy() * task.std + task.mean
        answers = federation.targets[train].numpy() * task.std + task.mean
        assert_close(
            inputs, np.stack([heat[n : n + 8] for n in range(len(train))]).astype("float32"), rtol=1e-4, atol=0
        )
        assert_close(answers, heat[9 : 9 + len(train)].astype("float32"), rtol=1e-4, atol=0)
        last_of_training = 9 + len(train) - 1
        first_of_val = federation.x[val[0]][0, 0].item() * task.std + task.mean
        assert first_of_val == pytest.approx(heat[last_of_training + 1], rel=1e-4)
        assert len(val) == 5


def test_test_windows_come_after_all_others():
    table = series()
    table["test"] = table.hour >= "2024-01-02 20:00:00"
    federation = built(table, test="test")
    assert len(federation.test_x) == 4 * (16 - 8)
    table["test"] = table.hour < "2024-01-01 20:00:00"
    with pytest.raises(InputError, match="rows of the test set come before other rows of their client"):
        built(table, test="test")


def test_gru_is_torch_s():
    torch.manual_seed(0)
    extractor, _ = gru((5, 3), 2, width=4)
    known = nn.GRU(3, 4, batch_first=True)
    known.weight_ih_l0.data, known.bias_ih_l0.data = extractor.seen.weight.data, extractor.seen.bias.data
    known.weight_hh_l0.data, known.bias_hh_l0.data = extractor.kept.weight.data, extractor.kept.bias.data
    x = torch.randn(6, 5, 3)
    assert_close(extractor(x), known(x)[0][:, -1])


@pytest.mark.parametrize("model", ["gru", "cnn1d"])
def test_a_forecast_is_better_than_the_last_value_and_the_same_when_it_is_used(model, tmp_path):
    table = series()
    run = hcfl.run("fedavg", data=built(table), model=model, rounds=6, lr=0.1, out=tmp_path / "run")
    summary = run.summary
    rows, task = run.federation.val_rows, run.federation.task
    errors = (run.federation.x[rows][:, -1, 0] - run.federation.targets[rows]) * task.std
    assert summary["score_last_value_rmse"] == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-5)
    assert summary["score_rmse"] < summary["score_last_value_rmse"]
    assert summary["forecast"].endswith("it pays")
    one = table[table.station == "a"].sort_values("hour")
    found = hcfl.load(tmp_path / "run").predict(one, client="a")
    assert len(found) == 60 - 8 + 1  # also the value after the last row
    window = run.federation.x[run.federation.train[0][:1]].numpy()
    assert found[0] == pytest.approx(run.predict(window, client="a")[0], rel=1e-4)


def test_the_season_before_is_a_forecast_without_a_model(tmp_path):
    run = hcfl.run("fedavg", data=built(series(noise=0.0), season=8), rounds=1, out=tmp_path / "run")
    assert run.summary["score_last_season_rmse"] == pytest.approx(0, abs=1e-4)
    assert run.summary["forecast"].endswith("it does not pay")


def test_schemas_of_series_are_written_and_joined(tmp_path):
    for name in "ab":
        series(stations=(name,)).drop(columns="station").to_csv(tmp_path / f"{name}.csv", index=False)
        more = ["--label", "heat", "--time", "hour", "--history", "4", "--out", str(tmp_path / f"{name}.json")]
        assert main(["data", "schema", str(tmp_path / f"{name}.csv"), *more]) == 0
    both = [str(tmp_path / f"{name}.json") for name in "ab"]
    assert main(["data", "schema", *both, "--out", str(tmp_path / "both.json")]) == 0
    assert json.loads((tmp_path / "both.json").read_text())["windows"]["history"] == 4
    schema = hcfl.Schema.load(tmp_path / "both.json")
    assert schema.windows == Windows(4, 1, "hour", pytest.approx(1 / 24))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"time": None}, "data.history = 8: a forecast needs data.time"),
        (
            {"history": 100},
            "data.history = 100: no client has 101 rows without a gap, which history",
        ),
        ({"history": None, "horizon": 2}, "data.horizon = 2: is of forecasts, which need data.history"),
        ({"season": 30}, "data.season = 30: must lie in the window, from 1 to 8"),
        ({"task": "classification"}, "data.task = classification: a forecast is of numbers"),
    ],
)
def test_forecasts_that_cannot_be_are_refused(settings, told):
    with pytest.raises(InputError) as error:
        built(series(rows=30), **settings)
    assert str(error.value).startswith(told)


def test_two_rows_at_the_same_time_are_refused():
    table = pd.concat([series(rows=20), series(rows=20).head(1)])
    with pytest.raises(InputError, match="two rows of one client have the same time"):
        built(table)
