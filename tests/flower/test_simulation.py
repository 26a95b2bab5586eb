"""On Flower's own simulation, with Ray: the same clusters, events and parameters as one client after another."""

import json
import subprocess
from pathlib import Path

import pytest
from processes import wait_for
from same import same_run
from torch.testing import assert_close

from hcfl import flower
from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.errors import InputError
from hcfl.flower import simulation
from hcfl.flower.client_store import ClientStore
from hcfl.launch import execute
from hcfl.runs import folder as run_folder
from hcfl.runs.checkpoint import load
from hcfl.runs.prepare import prepare

METHODS = ("fedavg", "fedem", "cfl", "stocfl", "hcfl+(fedrc)")
PRIVATE = (("fedavg", "secagg"), ("fedrc", "secagg"), ("fedrc", "local-dp"), ("fedavg", "central-dp"))
DIGITS = {
    "data": "digits",
    "clients": 10,
    "rounds": 5,
    "seed": 3,
    "beta": 0.9,
    "concepts": 2,
}


def config(method: str, engine: str = "sequential"):
    """Settings that make the methods with a changing number of clusters change it within five rounds."""
    extra = {"cfl": {"tol1": 10.0, "tol2": 0.01}, "hcfl+(fedrc)": {"rho": 0.1}}.get(method, {})
    return from_flat(method=method, engine=engine, **{**DIGITS, **extra})


def own_clusters(out: Path, round_: int) -> list[int]:
    """Which cluster each client of a simulation has found for itself; in a private run, nobody else knows."""
    (folder,) = (out / "client-states").iterdir()
    stores = [ClientStore(folder.parent, folder.name.removeprefix("experiment-"), str(client)) for client in range(10)]
    return [int(store.load(round_).weights.client.argmax()) for store in stores]


def private(method: str, mode: str, engine: str):
    """Two rounds with another privacy."""
    return from_flat(method=method, engine=engine, privacy=mode, **{**DIGITS, "rounds": 2})


@pytest.mark.slow
def test_five_methods_are_what_the_sequential_engine_plays_and_private_runs_have_their_averages(tmp_path, monkeypatch):
    """One simulation plays them all: it takes longer to start than to play."""
    monkeypatch.delenv("OMP_NUM_THREADS")
    folder = tmp_path / "flower"
    folder.mkdir()
    for method in METHODS:
        (folder / f"{method}.yaml").write_text(config(method).to_yaml())
    for method, mode in PRIVATE:
        (folder / f"{method} {mode}.yaml").write_text(private(method, mode, "flower").to_yaml())
    with simulation.superlink(tmp_path) as environment:
        assert environment["OMP_NUM_THREADS"] == "1"  # clients take every core
        app = Path(__file__).parent / "many_runs"
        command = [simulation.program("flwr"), "run", str(app), "simulation", "--stream"]
        command += ["--run-config", f"folder='{folder}'"]
        command += ["--federation-config", "num-supernodes=10 client-resources-num-cpus=1"]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    changed = 0
    for method in METHODS:
        assert (folder / method / "summary.json").exists(), said.stdout[-3000:]
        execute(prepare(config(method)), tmp_path / method)
        same_run(folder / method, tmp_path / method)
        changed += len(run_folder.rows(tmp_path / method, "events.jsonl"))
    assert changed > 3
    for method, mode in PRIVATE:
        out = folder / f"{method} {mode}"
        summary = json.loads((out / "summary.json").read_text())
        assert summary["rounds"] == 2, said.stdout[-3000:]
        if mode == "secagg":
            plain = execute(prepare(private(method, "none", "sequential")), tmp_path / out.name).state.server
            sums = load(out / "checkpoint")[0].server
            assert sums.clusters == plain.clusters
            for part in ("heads", "extractors"):
                assert_close(getattr(sums.ensemble, part), getattr(plain.ensemble, part), rtol=0, atol=1e-4)
            assert own_clusters(out, 2) == plain.members.tolist()
            assert summary["epsilon"] is None
        else:
            assert summary["epsilon"] > 0


@pytest.mark.slow
def test_a_run_of_the_command_line_is_played_by_flower_and_can_go_on(tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--clients", "4", "--rounds", "2", "--engine", "flower", "--out", str(out)]
    assert main(["run", "hcfl+(fedem)", *flags]) == 0
    assert "round 2/2" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} >= {"metrics.jsonl", "summary.json", "checkpoint", "client-states"}
    rows = run_folder.rows(out, "metrics.jsonl")
    assert [row["round"] for row in rows] == [1, 2]
    longer = from_flat(method="hcfl+(fedem)", clients=4, rounds=3, engine="sequential")
    execute(prepare(longer), tmp_path / "sequential")
    text = (out / "config.yaml").read_text()
    (out / "config.yaml").write_text(text.replace("rounds: 2", "rounds: 3"))
    assert main(["resume", str(out)]) == 0
    same_run(out, tmp_path / "sequential")


def test_what_was_started_ends_with_it(tmp_path, monkeypatch):
    """Also what detaches itself, and what does not listen."""
    stubborn = f"trap '' TERM; echo $$ > {tmp_path}/stubborn; while true; do sleep 0.1; done"
    script = f'setsid sh -c "{stubborn}" & setsid sleep 100 & echo $! > {tmp_path}/sleeper; wait'
    process = subprocess.Popen(["sh", "-c", script.replace("$$ >", "\\$\\$ >")])
    wait_for("both", lambda: len([path for path in tmp_path.iterdir() if path.read_text()]) == 2, 10)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    monkeypatch.setattr(simulation, "GRACE", 1.0)
    simulation.end(process)
    wait_for("the end", lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 10)


def test_what_other_processes_cannot_build_is_refused(tmp_path):
    from hcfl.models import MODELS

    prepared = prepare(config("fedavg", "flower"), model=MODELS["mlp"])
    with pytest.raises(InputError, match="engine = 'flower': needs a model with a name"):
        execute(prepared, tmp_path / "run")


def test_without_the_extra_it_is_said(tmp_path, monkeypatch):
    prepared = prepare(config("fedavg", "flower"))
    monkeypatch.setattr(flower, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^engine = 'flower': needs the extra, pip install 'hcfl\[flower\]'$"):
        execute(prepared, tmp_path / "run")


def test_a_folder_that_holds_a_run_is_not_touched(tmp_path):
    run_folder.create(tmp_path / "run", config("fedavg"))
    with pytest.raises(InputError, match="already holds a run"):
        execute(prepare(config("fedavg", "flower")), tmp_path / "run")
