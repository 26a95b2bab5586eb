"""Many runs as one table: numbers by hand, texts, grids, interruptions, and what is refused."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hcfl
from hcfl.cli import main
from hcfl.config import from_flat, overrides
from hcfl.errors import InputError
from hcfl.launch import execute
from hcfl.report import plots
from hcfl.report.comparison import live_table, result_table
from hcfl.runs import folder as run_folder
from hcfl.runs.prepare import prepare
from hcfl.studies import comparison, jobs
from hcfl.studies.comparison import Cell
from hcfl.studies.jobs import RESULT
from hcfl.studies.seeds import Statistic

TINY = ["--clients", "4", "--samples", "200", "--rounds", "2", "--threads", "1"]


def summary(val, test, at_best, clusters, ari, megabytes, seconds):
    keys = ("val_last", "test_last", "test_at_best_val", "clusters_last", "ari_last")
    keys += ("mb_per_client_round", "seconds_per_round")
    return dict(zip(keys, (val, test, at_best, clusters, ari, megabytes, seconds), strict=True))


def lines():
    """Two rows: the first over two seeds, of which one knows no ARI; the second over one, which knows none."""
    first = [summary(0.5, 0.25, 0.25, 1, 0.5, 2.0, 1.0), summary(0.75, 0.75, 0.5, 3, None, 2.0, 2.0)]
    second = [summary(0.25, 0.5, None, 4, None, 1.0, 4.0)]
    return [
        comparison.line_of(Cell("fedavg", (), ()), first),
        comparison.line_of(Cell("my_50%&", (), ()), second),
    ]


def test_numbers_are_means_over_seeds_with_their_sample_deviation():
    one, two = lines()
    assert (one.seeds, two.seeds) == (2, 1)
    # 0.5 and 0.75: the mean is 0.625, each is 0.125 away, √(2·0.125² / 1) = 0.125·√2
    assert one.numbers["val_last"].mean == 0.625
    assert one.numbers["val_last"].std == pytest.approx(0.125 * 2**0.5)
    assert one.numbers["clusters_last"] == Statistic(2.0, pytest.approx(2**0.5))
    assert one.numbers["mb_per_client_round"] == Statistic(2.0, 0.0)
    assert one.numbers["ari_last"] == Statistic(0.5, None), "only one seed knows it"
    assert two.numbers["ari_last"] is None
    assert two.numbers["val_last"] == Statistic(0.25, None)


def test_the_csv_has_every_number_unrounded():
    rows = list(csv.DictReader(io.StringIO(comparison.csv_text(lines()))))
    assert [row["method"] for row in rows] == ["fedavg", "my_50%&"]
    assert float(rows[0]["val_last_mean"]) == 0.625
    assert float(rows[0]["val_last_std"]) == 0.125 * 2**0.5
    assert (rows[1]["seeds"], rows[1]["val_last_std"], rows[1]["ari_last_mean"]) == ("1", "", "")
    swept = [comparison.line_of(Cell("ifca", (("clusters", "2"), ("lr", "0.1")), ()), [summary(*[1.0] * 7)])]
    (row,) = csv.DictReader(io.StringIO(comparison.csv_text(swept)))
    assert (row["method"], row["clusters"], row["lr"], row["seeds"]) == ("ifca", "2", "0.1", "1")


def test_the_latex_table_escapes_names_and_has_what_is_ahead_in_bold():
    text = comparison.latex_text(lines(), "a_method")
    first, second = re.findall(r"^(?:fedavg|my).*$", text, re.MULTILINE)
    assert text.startswith("\\begin{tabular}{lrrrrrrrr}\n\\toprule\na\\_method & seeds & Val (\\%) & ")
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert first == (
        r"fedavg & 2 & 62.5 $\pm$ 17.7 & 50.0 $\pm$ 35.4 & 37.5 $\pm$ 17.7 & 2.0 $\pm$ 1.4 & 0.50 & "
        r"2.000 $\pm$ 0.000 & 1.50 $\pm$ 0.71 \\"
    )
    assert second == r"my\_50\%\& & 1 & 25.0 & 50.0 & -- & 4.0 & -- & 1.000 & 4.00 \\", "one seed has no spread"
    slow, fast = (
        replace(line, numbers={**line.numbers, "seconds_per_round": Statistic(mean, 0.1)})
        for line, mean in zip(lines(), (4.0, 1.0), strict=True)
    )
    assert comparison.latex_text([slow, fast], "method").count("textbf") == 1
    assert r"\textbf{1.00} $\pm$ 0.10" in comparison.latex_text([slow, fast], "method")


def test_clients_are_worse_off_where_a_baseline_serves_them_better(tmp_path):
    for name, rows in {
        "local": "a,0.9,\nb,0.5,\nc,,\nd,0.7,",
        "mine": "a,0.5,0.89\nb,0.6,0.4\nc,0.1,0.1\nd,0.7,0.7",
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "clients.csv").write_text(f"client,accuracy,accuracy_personal\n{rows}\n")
    local = comparison.accuracy_of_clients(tmp_path / "local", personal=False)
    assert local == {"a": 0.9, "b": 0.5, "d": 0.7}
    mine = comparison.accuracy_of_clients(tmp_path / "mine")
    assert comparison.share_worse_off(mine, local) == 1 / 3, "a is within the margin, c is not measured there"
    assert comparison.share_worse_off({}, local) is None


def test_a_grid_is_every_combination():
    axes = [
        overrides.axis_of("rho=0.05, 0.1"),
        overrides.axis_of("training.lr=1"),
        overrides.axis_of("weight-decay=0,1"),
    ]
    found = [[(path, value) for _, path, value in point] for point in overrides.points(axes)]
    assert found == [
        [("method.rho", rho), ("training.lr", "1"), ("training.weight_decay", decay)]
        for rho in ("0.05", "0.1")
        for decay in ("0", "1")
    ]
    assert overrides.axis_of("adaptation=none,f(a=1,b=2)")[2] == ("none", "f(a=1,b=2)")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "fedavg", "fedavgg"], r"method.name = 'fedavgg': .*did you mean fedavg\?"),
        (["compare", "fedavg", "ifca", "fedavg"], "METHOD fedavg: is there twice"),
        (["compare", "fedavg", "ifca", "--set", "method.name=fedem"], "fedem: is given twice"),
        (["compare", "fedavg", "--seeds", "0"], "--seeds 0: must be a whole number from 1 on"),
        (["compare", "fedavg", "--workers", "no"], "--workers no: must be a whole number from 1 on"),
        (["compare", "hcfl+(fedrc)", "fedavg", "--rho", "0.1"], "method.rho = 0.1: fedavg has no such setting"),
        (["compare", "fedavg", "--lr", "-1"], "training.lr = '-1': should be greater than 0"),
        (["sweep", "fedavgg", "--grid", "lr=1"], "method.name = 'fedavgg'"),
        (["sweep", "fedavg", "--grid", "rho=0.1"], "method.rho = 0.1: fedavg has no such setting"),
        (["sweep", "fedavg", "--grid", "learning=1"], "--grid learning=1: there is no such setting"),
        (["sweep", "fedavg", "--grid", "epoch=1"], r"no such setting; did you mean epochs\?"),
        (["sweep", "fedavg", "--grid", "lr=0.1,-1"], "training.lr = '-1': should be greater than 0"),
        (["sweep", "fedavg", "--grid", "lr="], "--grid lr=: has an empty place for a value; it must look like"),
        (["sweep", "fedavg", "--grid", "lr"], "--grid lr: has an empty place for a value; it must look like"),
        (["sweep", "fedavg", "--grid", "lr=1,1"], "--grid lr=1,1: has the same value twice"),
        (["sweep", "fedavg", "--grid", "lr=1,1.0"], "lr=1.0: is given twice"),
        (["sweep", "fedavg", "--grid", "lr=1", "--grid", "training.lr=2"], "--grid lr: is there twice"),
        (["sweep", "fedavg", "--grid", "seed=1,2"], "--grid seed=1,2: cannot be swept, --seeds says how many"),
        (["sweep", "fedavg", "--grid", "method=ifca"], "cannot be swept, hcfl compare takes several methods"),
        (["sweep", "fedavg", "--grid", "threads=1,2"], "cannot be swept, it says where runs happen"),
    ],
)
def test_bad_input_is_one_sentence(arguments, words, capsys, tmp_path):
    assert main([*arguments, "--out", str(tmp_path / "r")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(words, error), error
    assert not (tmp_path / "r").exists(), "nothing ran"


def test_python_refuses_the_same():
    for wrong, words in (({"seeds": 0}, "seeds = 0"), ({"workers": "two"}, "workers = 'two'"), ({"rho": 1}, "fedavg")):
        with pytest.raises(InputError, match=words):
            hcfl.compare(["fedavg"], **wrong)
    with pytest.raises(InputError, match="methods = 'fedavg': must be a list"):
        hcfl.compare("fedavg")


def test_methods_run_once_and_what_is_missing_is_run_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["compare", "fedavg", "ifca", "--seed", "3", "--workers", "2", *TINY]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "Runs: 2, 2 of them still to do, in runs/compare" in shown
    assert re.search(r"2/2 (fedavg|ifca), seed 3  Val", shown)
    out = Path("runs/compare")
    text = (out / "compare.txt").read_text(encoding="utf-8")
    assert text in shown
    assert "MB per client and round" in text
    assert (out / "compare.tex").read_text(encoding="utf-8").count(r"\\") == 3
    assert (out / "compare.png").stat().st_size > 5_000
    assert "ifca" in (out / "compare.html").read_text(encoding="utf-8")

    kept, missing = sorted(path for path in out.iterdir() if path.is_dir())
    before = [(path / RESULT).stat().st_mtime_ns for path in (kept, missing)]
    (missing / RESULT).unlink()
    assert main(command) == 0
    assert "Runs: 2, 1 of them still to do" in capsys.readouterr().out
    after = [(path / RESULT).stat().st_mtime_ns for path in (kept, missing)]
    assert after[0] == before[0]
    assert after[1] > before[1]

    # From Python the same settings are the same runs, with their models.
    found = hcfl.compare(["fedavg", "ifca"], seed=3, clients=4, samples=200, rounds=2)
    assert (kept / RESULT).stat().st_mtime_ns == before[0], "settings are the same, so are folders"
    (run,) = found.runs["ifca"]
    assert run.summary["seed"] == 3
    assert run.predict(np.zeros((1, 8, 8)), cluster=0).shape == (1,)
    assert found.table.loc["ifca", "val_last_mean"] == run.summary["val_last"]
    sent = run.summary["bytes_up"] + run.summary["bytes_down"]
    assert found.table.loc["ifca", "mb_per_client_round_mean"] == pytest.approx(sent / 1e6 / (4 * 2))
    live = live_table("method", found.cells)
    assert [next(iter(column.cells)) for column in live.columns[:3]] == ["fedavg", "1/1", "2/2"]
    assert list(result_table("method", found.lines).columns[0].cells) == ["fedavg", "ifca"]

    (missing / run_folder.SUMMARY).write_text("{}")
    assert main(command) == 2
    assert re.search(r"^hcfl: run = .*: is damaged \(KeyError: .* to start the run again\n$", capsys.readouterr().err)


def test_a_grid_over_the_data_has_a_table_and_no_common_report(tmp_path, capsys):
    command = ["sweep", "fedavg", "--grid", "alpha=0.1,10", "--out", str(tmp_path / "r"), *TINY]
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "No common report: these runs are not over the same data" in shown
    assert re.search(r"^ alpha=10 +1 ", shown, re.MULTILINE)
    assert not (tmp_path / "r" / "sweep.html").exists()


def test_a_process_that_is_killed_repeats_nothing_that_was_finished(tmp_path):
    out = tmp_path / "r"
    command = ["compare", "fedavg", "ifca", "fedem", "--workers", "1", "--out", str(out), *TINY]
    with subprocess.Popen([sys.executable, "-m", "hcfl.cli", *command], start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not (finished := list(out.glob(f"*/{RESULT}"))) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)  # as when the machine stops: its runs' processes, too
    assert process.returncode == -signal.SIGKILL
    assert 1 <= len(finished) < 3
    before = {path: path.stat().st_mtime_ns for path in finished}
    assert main(command) == 0
    assert len(list(out.glob(f"*/{RESULT}"))) == 3
    assert {path: path.stat().st_mtime_ns for path in finished} == before
    for log in out.glob(f"*/{run_folder.METRICS}"):
        assert [json.loads(line)["round"] for line in log.read_text().splitlines()] == [1, 2]


def test_runs_by_an_older_rule_of_hcfl_plus_plus_keep_their_folders(tmp_path):
    def name(**settings):
        return jobs.task_of(from_flat(method="hcfl++", **settings), tmp_path).folder.name

    rule, order = {"adaptation": "split-on-contradiction"}, {"order": "heads-first"}
    assert name() == name(adaptation="split-on-gain", order="auto")
    assert len({name(), name(**rule), name(**order), name(**rule, **order)}) == 4


def test_a_method_that_is_the_default_now_or_was_it_keeps_its_folders(tmp_path):
    names = [jobs.task_of(from_flat(method=method), tmp_path).folder.name for method in ("hcfl++", "hcfl+(fedrc)")]
    assert names == ["hcfl++-digits-seed0-811c0395", "hcfl+(fedrc)-digits-seed0-47d2dbaf"]
    assert jobs.task_of(from_flat(), tmp_path).folder.name == names[0], "hcfl++ is the default"


def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path):
    config = from_flat(method="fedavg", clients=4, samples=200, rounds=3)
    task = jobs.task_of(config, tmp_path, keep=True)

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(prepare(config), task.folder, stop)
    played = (task.folder / run_folder.METRICS).read_text()
    assert not task.done
    jobs.run(task)
    assert task.done
    assert (task.folder / run_folder.METRICS).read_text().startswith(played), "also the seconds they took"
    assert len(task.result()["val"]) == 3
    assert (task.folder / run_folder.CHECKPOINT).exists(), "kept, for hcfl assign and hcfl export"


def test_the_frontier_shows_seeds_their_mean_and_k_as_area():
    figure = plots.plot_frontier({"one": [(0.25, 0.5, 1), (0.75, 1.0, 1)], "many": [(0.5, 0.5, 4)], "unknown": []})
    (axes,) = figure.axes
    seeds, circle, _, other = axes.collections
    assert seeds.get_offsets().tolist() == [[0.25, 0.5], [0.75, 1.0]]
    assert circle.get_offsets().tolist() == [[0.5, 0.75]]
    assert other.get_sizes()[0] == 4 * circle.get_sizes()[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["one (K = 1)", "many (K = 4)"]
