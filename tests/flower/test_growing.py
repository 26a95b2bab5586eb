"""Clients whose own files grow: what was appended since the last step is new, whatever is repeated or restarted."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fake_grid import FakeGrid, _a_run  # noqa: F401
from same import same_run

from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.core import server
from hcfl.core.setting import RoundTask
from hcfl.errors import InputError
from hcfl.flower import client_app, server_app
from hcfl.flower.growing import grown
from hcfl.flower.pacing import Paced
from hcfl.flower.run_settings import read
from hcfl.launch import execute
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import prepare

NAMES = ("east", "north", "south", "west")
SETTINGS = {"method": "hcfl++", "steps": 3, "rounds_per_step": 2, "window": 2, "val_share": 0.25, "rho": 0.1}
TRAINING = {"batch": 16, "epochs": 2, "lr": 0.1, "model": "mlp", "time": "step", "longest_change": 3}


@pytest.fixture
def table(tmp_path):
    """The rows of all steps; labels mean something else in two places, and after the first step also in the south."""
    rows = np.repeat([0, 1, 2], [160, 240, 240])
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(len(rows), 4)), columns=list("abcd"))
    table["a"] += 4 * (np.arange(len(rows)) // 4 % 2) - 2
    table["step"], table["site"] = rows, np.array(NAMES)[np.arange(len(rows)) % 4]
    other = table.site.isin(["east", "west"]) | ((table.site == "south") & (rows > 0))
    table["outcome"] = np.where((table.a > 0) != other, "sick", "well")
    table.to_csv(tmp_path / "all.csv", index=False)
    return table


def grow(folder, table, step, names=NAMES):
    """Write the files as they are at a step; each message of a deployment is answered by a new process."""
    for name in names:
        mine = table[(table.site == name) & (table.step <= step)]
        mine.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
    client_app._prepared.cache_clear()


def growing(folder, table, names, step):
    def hook(message, reply):
        grow(folder, table, step, names)
        return reply

    return hook


def deployed(folder, table):
    grow(folder, table, 0)
    files = [str(folder / f"{name}.csv") for name in NAMES]
    schema = ["--label", "outcome", "--drop", "step", "--out", str(folder / "schema.json")]
    assert main(["data", "schema", *files, *schema]) == 0
    places = zip(NAMES, files, strict=True)
    nodes = [(name, {"name": name, "data": file, "state": str(folder / "states" / name)}) for name, file in places]
    return FakeGrid(dict(zip((100, 101, 102, 103), nodes, strict=True)))


def told(folder, **more):
    given = {"names": ", ".join(NAMES), "out": str(folder / "run"), "timeout": 2.0, "wait": 2.0, "measure": "rounds"}
    given |= {**SETTINGS, **TRAINING, "schema_file": str(folder / "schema.json"), **more}
    return read({key.replace("_", "-"): value for key, value in given.items()})


def test_files_that_grow_are_what_one_table_with_all_steps_is_whatever_happens(tmp_path, table):
    grid = deployed(tmp_path, table)

    def killed(message, reply):
        raise KeyboardInterrupt

    # The last step's rows come too early, in the midst of the second step, which is then played again from its middle.
    grid.before[103] = [None, *(growing(tmp_path, table, NAMES, step) for step in (1, 2)), killed]
    with pytest.raises(KeyboardInterrupt):
        server_app.play(grid, told(tmp_path))
    client_app._prepared.cache_clear()
    server_app.play(grid, told(tmp_path, resume=str(tmp_path / "run")))

    pooled = {"data": str(tmp_path / "all.csv"), "label": "outcome", "client": "site", "engine": "sequential"}
    config = from_flat(**SETTINGS, **TRAINING, **pooled, schema_file=str(tmp_path / "schema.json"))
    execute(prepare(config), tmp_path / "pooled")
    same_run(tmp_path / "run", tmp_path / "pooled")
    there, here = (run_folder.rows(tmp_path / run, "metrics.jsonl") for run in ("run", "pooled"))
    for key in ("step", "prequential", "val"):
        assert [row.get(key) for row in there] == pytest.approx([row.get(key) for row in here]), key
    assert [row["step"] for row in there] == [1, 1, 2, 2, 3, 3]
    assert [row["client_clusters"] for row in there] == [row["client_clusters"] for row in here]
    _, north, south, west = np.array([row["client_clusters"] for row in there]).T
    assert (north != west).all()
    assert south.tolist() == [*north[:2], *west[2:]], "the south followed in the first round of its change"


def test_a_client_without_new_samples_is_absent_until_it_has_some(tmp_path, table):
    grid = deployed(tmp_path, table)
    late = growing(tmp_path, table, ("west",), 1)
    grid.before[101] = [None, growing(tmp_path, table, NAMES[:3], 1)]
    grid.before[103] = [None, None, late]
    grid.before[100] = [None, None, None, growing(tmp_path, table, NAMES, 2)]
    server_app.play(grid, told(tmp_path))
    absent = [row for row in run_folder.rows(tmp_path / "run", "events.jsonl") if row["event"] == "absent"]
    assert [(row["round"], row["client"]) for row in absent] == [(3, "west")]
    assert absent[0]["reason"].endswith("west.csv: has no new samples for step 2")


def test_what_was_read_before_must_not_change():
    first = grown(None, np.arange(6.0), 0, "data = a.npz")
    with pytest.raises(InputError, match=r"data = a.npz: its first 6 samples are not those of the steps before"):
        grown(first, np.arange(1.0, 8.0), 1, "data = a.npz")
    with pytest.raises(InputError, match="its first 6 samples"):
        grown(first, np.arange(5.0), 1, "data = a.npz")
    with pytest.raises(InputError, match="has no new samples for step 2"):
        grown(first, np.arange(6.0), 1, "data = a.npz")
    assert grown(first, np.arange(9.0), 0, "data = a.npz") == first, "a step that is played again is the same"
    late = grown(first, np.arange(9.0), 2, "data = a.npz")
    with pytest.raises(InputError, match="has no new samples for step 2"):
        grown(late, np.arange(9.0), 1, "data = a.npz")  # it missed that step


def test_simulated_drift_is_refused(tmp_path, table):
    with pytest.raises(InputError, match=r"data\.drift = sudden: is for simulated clients"):
        server_app.play(deployed(tmp_path, table), told(tmp_path, drift="sudden"))


def test_a_step_begins_some_seconds_after_the_one_before():
    now, slept, executed = [0.0], [], []

    class Noting:
        def execute(self, task):
            executed.append(task.broadcast.round)
            now[0] += 10

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    config = from_flat(method="fedavg", data="digits", clients=2, steps=3, rounds_per_step=2)
    prepared = prepare(config)
    begun = server.broadcast(prepared.setting.method, prepared.state.server, prepared.setting.federation.classes)
    engine = Paced(Noting(), 60, 0, lambda: now[0], sleep)
    for round_ in (1, 2, 3, 3, 4, 5, 6):  # the third is tried twice
        engine.execute(RoundTask(prepared.setting, replace(begun, round=round_), [0, 1], {}))
    assert executed == [1, 2, 3, 3, 4, 5, 6]
    assert slept == [40, 30], "two rounds took 20 seconds, and three took 30"
