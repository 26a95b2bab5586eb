"""The runs in experiments/results, and what docs/fidelity.md says of them."""

import importlib.util
import json
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


@pytest.mark.parametrize("study", ["beta-0.2", "beta-0.2-lr-0.03", "beta-0.2-lr-0.1-reset"])
def test_the_tables_of_the_page_are_those_of_the_runs(fidelity, shown, study):
    lines = [line for line in fidelity.lines(*shown(study)) if line]
    assert len(lines) > 3
    assert [line for line in lines if line not in PAGE] == []


def test_the_trials_of_the_page_are_those_of_the_runs(fidelity):
    known, runs = fidelity.studies(ROOT / "experiments" / "trials.yaml")
    out = ROOT / "experiments" / "results" / "trials"
    tasks = {run: known[run[0]].task(*run[1:], out, "cuda") for run in runs}
    each = [
        (study, fidelity.by_row(study, [(row, task) for (of, row, _), task in tasks.items() if of == name]))
        for name, study in known.items()
    ]
    lines = [line for line in fidelity.one_table(each) if line]
    assert len(lines) == 20  # eighteen trials have been played
    assert [line for line in lines if line not in PAGE] == []


def test_an_interrupted_run_is_shown_with_its_rounds(fidelity, shown):
    cells = dict(fidelity.rows(*shown("beta-0.2-lr-0.03")))
    interrupted = cells["HCFL++, by contradiction"]
    assert interrupted == "1 of 1 | 180 of 200 | 70.6 | 67.1 | 66.4 | 70.6 | 66.4 | 3.0 | 3.0 | 1.00"
    cells = dict(fidelity.rows(*shown("beta-0.2")))
    assert cells["ICFL (0.98)"].startswith("0 of 1 | – | – [60.58]")


def test_the_frontier_joins_the_settings_of_a_method(fidelity, shown):
    study, runs = shown("beta-0.2")
    here, paper = fidelity.frontier(study, runs).axes
    of = {
        panel: {line.get_label(): line.get_xydata().round(2).tolist() for line in panel.lines}
        for panel in (here, paper)
    }
    assert of[paper]["HCFL+ (FedRC)"] == [[69.33, 69.67], [69.16, 67.37], [71.67, 68.64]]  # K = 3, 8, 8
    ((val, test),) = of[here]["HCFL+ (FedRC)"]
    assert (
        f"| HCFL+ (FedRC), ρ = 0.3 | 3 of 3 | 198 of 200 | {val:.1f} ± 0.4 [69.33] | {test:.1f} ± 2.0 [69.67] |" in PAGE
    )
    assert of[paper]["HCFL++, by contradiction"] == []


def test_a_picture_has_a_line_for_every_row_however_many(fidelity, shown):
    study, runs = shown("beta-0.2")
    panels = fidelity.picture(study, {f"row {number}": runs["HCFL++, by contradiction"] for number in range(25)}).axes
    assert [len(panel.lines) for panel in panels] == [25, 25, 26, 25]  # K has a line for the truth


def test_rows_come_in_the_papers_order_and_ours_last(shown):
    study, runs = shown("beta-0.2")
    assert list(runs) == [row for row in study.rows if row in runs]
    assert next(iter(runs)) == "FedAvg"
    assert list(runs)[-4:] == ["HCFL++, by gain", "HCFL++, by gain, own heads", "FedAvg, own heads", "Local"]


def test_best_and_last_rounds_stand_beside_each_other(fidelity, shown):
    study, runs = shown("beta-0.2")
    head = next(line for line in fidelity.lines(study, runs) if line.startswith("| method "))
    names = [name.strip() for name in head.split("|")[2:-1]]
    assert names[2:7] == ["Val, best", "Test, best", "Test at best Val", "Val, last", "Test, last"]
    task = runs["FedEM"][0]
    rows = [json.loads(line) for line in (task.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    measured = [row for row in rows if row["val"] is not None]
    best, last = max(measured, key=lambda row: row["val"]), measured[-1]
    expected = [best["val"], max(row["test"] for row in measured), best["test"], last["val"], last["test"]]
    cells = dict(fidelity.rows(study, {"FedEM": [task]}))["FedEM"].split(" | ")
    accuracies = [cell.split(" ")[0] for cell in cells[2:7]]
    assert accuracies == [f"{100 * value:.1f}" for value in expected]


RULES = {"split-on-contradiction": "HCFL++, by contradiction", None: "HCFL++, by gain"}


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_a_title_names_the_copies_and_a_row_of_hcfl_plus_plus_its_rule(fidelity, plan, tmp_path):
    known, runs = fidelity.studies(plan)
    for of, row, seed in runs:
        task = known[of].task(row, seed, tmp_path, "cpu")
        method, copies = task.config.method, task.config.data.copies
        assert fidelity.titled(known[of], {row: [task]}).endswith(", 1 copy" if copies == 1 else f", {copies} copies")
        assert ("HCFL++" in row) == (method.name == "hcfl++")
        assert method.name != "hcfl++" or row.startswith(RULES[method.adaptation])


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_every_run_of_a_plan_could_begin(fidelity, plan, tmp_path):
    known, runs = fidelity.studies(plan)
    folders = {known[of].task(row, seed, tmp_path, "cpu").folder for of, row, seed in runs}
    assert folders
    assert len(set(runs)) == len(runs), "a run is asked for twice"
