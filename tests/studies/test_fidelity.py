"""The runs in experiments/results, and what docs/fidelity.md says of them."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "fidelity.md").read_text(encoding="utf-8")
PLANS = sorted((ROOT / "experiments").glob("*.yaml"))


@pytest.fixture(scope="module")
def fidelity():
    spec = importlib.util.spec_from_file_location("fidelity", ROOT / "experiments" / "fidelity.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fidelity"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["fidelity"]


@pytest.fixture
def shown(fidelity):
    """The study of a name, and its runs by row."""

    def find(name):
        known, runs = fidelity.studies(ROOT / "experiments" / "fidelity.yaml")
        out = ROOT / "experiments" / "results"
        tasks = [(row, known[of].task(row, seed, out, "cuda")) for of, row, seed in runs if of == name]
        return known[name], fidelity.by_row(known[name], tasks)

    return find


@pytest.mark.parametrize("name", ["beta-0.2", "beta-0.9"])
def test_the_tables_of_the_page_are_those_of_the_runs(fidelity, shown, name):
    lines = [line for line in fidelity.lines(*shown(name)) if line]
    assert len(lines) > 3
    assert [line for line in lines if line not in PAGE] == []


def test_every_method_of_the_column_was_played(shown):
    _, runs = shown("beta-0.2")
    seeds = {row: sum(task.done for task in tasks) for row, tasks in runs.items()}
    once = ["FeSEM", "IFCA", "FedEM", "CFL (0.2, 0.8), as published", "CFL (0.2, 0.8), corrected", "ICFL (0.98)"]
    once += ["StoCFL (0.05)", "HCFL+ (FeSEM), ρ = 0.05", "HCFL+ (FedEM), ρ = 0.3"]
    thrice = ["FedAvg", "FedRC", "HCFL+ (FedRC), ρ = 0.3", "HCFL++"]
    assert {row: seeds[row] for row in [*once, *thrice]} == dict.fromkeys(once, 1) | dict.fromkeys(thrice, 3)


def test_the_frontier_joins_the_settings_of_a_method(fidelity, shown):
    study, runs = shown("beta-0.2")
    here, paper = fidelity.frontier(study, runs).axes
    of = {
        panel: {line.get_label(): line.get_xydata().round(2).tolist() for line in panel.lines}
        for panel in (here, paper)
    }
    assert of[paper]["HCFL+ (FedRC)"] == [[69.33, 69.67], [69.16, 67.37], [71.67, 68.64]]  # K = 3, 8, 8
    assert [len(of[panel]["HCFL+ (FedRC)"]) for panel in (here, paper)] == [3, 3]
    ((val, test),) = of[here]["HCFL++"]
    assert f"| HCFL++ | 3 of 3 | {val:.1f} ± " in PAGE
    assert f" | {test:.1f} ± " in PAGE
    assert of[paper]["HCFL++"] == []


def test_a_picture_has_a_line_for_every_row_however_many(fidelity, shown):
    study, runs = shown("beta-0.2")
    panels = fidelity.picture(study, {f"row {number}": runs["HCFL++"] for number in range(25)}).axes
    assert [len(panel.lines) for panel in panels] == [25, 25, 26, 25]  # K has a line for the truth


def test_rows_come_in_the_papers_order_and_ours_last(shown):
    study, runs = shown("beta-0.2")
    assert list(runs) == [row for row in study.rows if row in runs]
    assert next(iter(runs)) == "FedAvg"
    assert list(runs)[-1] == "HCFL++"


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_every_run_of_a_plan_could_begin(fidelity, plan, tmp_path):
    known, runs = fidelity.studies(plan)
    folders = {known[of].task(row, seed, tmp_path, "cpu").folder for of, row, seed in runs}
    assert folders
    assert len(set(runs)) == len(runs), "a run is asked for twice"
