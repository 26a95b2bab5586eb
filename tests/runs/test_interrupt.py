"""Signals: a run finishes its round, is saved and ends; a second one ends it at once."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from hcfl.cli import main
from hcfl.config import from_flat
from hcfl.launch import execute
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.interrupt import SIGNALS, Interrupted, of_many_runs, stop_after_round
from hcfl.runs.prepare import prepare
from interrupting import CHANGING, FLAGS, assert_same_end, begin, wait_for_round


@pytest.fixture(autouse=True)
def hung_up():
    """Let SIGHUP end a process, as in a terminal: under nohup the tests would inherit that it is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_signal_lets_the_round_end_and_says_how_to_go_on(tmp_path):
    run, said = tmp_path / "a (run)", tmp_path / "said"
    process = begin("run", "hcfl+(fedrc)", *FLAGS, "--checkpoint-every", "100", "--out", str(run), said=said)
    wait_for_round(run, 2)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 130
    told = said.read_text()
    assert "hcfl: finishing the round, then ending; once more ends it at once\n" in told
    assert told.endswith(f"hcfl: interrupted; what was played is saved, and this goes on: hcfl resume '{run}'\n")
    played = [row["round"] for row in run_folder.rows(run, "metrics.jsonl")]
    assert 2 <= len(played) < 6
    assert checkpoint.rounds(run / "checkpoint") == played[-1:], "nobody asked for any, but it is saved"
    assert main(["resume", str(run)]) == 0
    execute(prepare(from_flat(**CHANGING, checkpoint_every=100)), tmp_path / "whole")
    assert_same_end(run, tmp_path / "whole")


def test_a_second_signal_ends_it_at_once(tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    flags = ["--clients", "3", "--epochs", "2000", "--rounds", "1", "--out", str(run)]
    begun = begin("run", "fedavg", *flags, said=said)
    while not (run / "config.yaml").exists():
        time.sleep(0.01)
    time.sleep(0.2)  # round 1 takes half a minute
    os.kill(begun.pid, signal.SIGTERM)
    while b"finishing" not in said.read_bytes():
        time.sleep(0.01)
    assert begun.is_alive()
    os.kill(begun.pid, signal.SIGINT)
    begun.join(30)
    assert begun.exitcode == 143, "the code of the first"
    assert said.read_text().endswith(f"hcfl: ended at once; from what is saved this goes on: hcfl resume {run}\n")
    assert not run_folder.rows(run, run_folder.METRICS)
    assert checkpoint.rounds(run / "checkpoint") == []


def test_who_waits_for_others_to_play_tells_them_of_a_second_signal(tmp_path):
    went_on = []

    def wait():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        went_on.append(True)

    with pytest.raises(Interrupted) as told, stop_after_round(tmp_path, in_other_process=True):
        wait()
    assert told.value.exit_code == 143
    assert not went_on


def test_handlers_are_there_for_a_run_only(tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    inside, answers = [], []

    def ask(should_stop):
        answers.append(should_stop())
        inside.extend(signal.getsignal(number) for number in SIGNALS)
        signal.raise_signal(signal.SIGTERM)
        answers.append(should_stop())

    with pytest.raises(Interrupted), stop_after_round(tmp_path) as should_stop:
        ask(should_stop)
    assert answers == [False, True]
    assert not set(inside) & set(before)
    with pytest.raises(Interrupted, match="the same command goes on"), of_many_runs():
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in SIGNALS] == before
    seen = []
    execute(
        prepare(from_flat(method="fedavg", clients=3, rounds=1)),
        tmp_path / "run",
        lambda record: seen.extend(signal.getsignal(number) for number in SIGNALS),
    )
    assert seen == before, "the library leaves them alone"


def test_a_signal_after_the_last_round_is_not_lost(tmp_path):
    with pytest.raises(Interrupted), stop_after_round(tmp_path):
        signal.raise_signal(signal.SIGTERM)


def test_a_run_that_is_asked_to_stop_is_saved_and_returned(tmp_path):
    asked, ended = [], []

    class Tracker:
        def on_round(self, record):
            asked.append(record.round)

        def on_end(self, summary):
            ended.append(summary)

    prepared = prepare(from_flat(**CHANGING, checkpoint_every=100))
    run = execute(prepared, tmp_path / "run", track=Tracker(), should_stop=lambda: len(asked) == 2)
    assert (run.state.server.round, run.summary["rounds"], len(run.rows)) == (2, 2, 2)
    assert checkpoint.rounds(run.path / "checkpoint") == [2]
    assert ended == [None], "as of any run that did not reach its end"
    assert main(["resume", str(run.path)]) == 0
    execute(prepared, tmp_path / "whole")
    assert_same_end(run.path, tmp_path / "whole")


def test_what_was_ignored_stays_ignored(tmp_path):
    """As `nohup` and shells in the background have it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_after_round(tmp_path) as should_stop:
            signal.raise_signal(signal.SIGINT)
            assert not should_stop()
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_nothing_is_handled(tmp_path):
    seen = []

    def play():
        with stop_after_round(tmp_path):
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.slow
def test_many_runs_end_after_their_rounds_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "out"
    flags = ["--clients", "4", "--samples", "300", "--rounds", "400", "--checkpoint-every", "1000", "--seeds", "2"]
    command = ["compare", "fedavg", "fedem", "--workers", "2", "--out", str(out), *flags]
    process = subprocess.Popen([sys.executable, "-m", "hcfl.cli", *command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while sum(path.stat().st_size > 0 for path in out.glob("*/metrics.jsonl")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 143
    assert told.endswith("hcfl: interrupted; what was played is saved, and the same command goes on with it\n")
    assert "Traceback" not in told
    saved = {path.parent: checkpoint.rounds(path)[0] for path in out.glob("*/checkpoint")}
    assert len(saved) == 2, "two of four had begun"
    for run, number in saved.items():
        assert 1 <= number < 400
        assert len(run_folder.rows(run, "metrics.jsonl")) == number


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")
def test_a_terminal_that_closes_lets_the_run_be_saved(tmp_path):
    run, said = tmp_path / "run", tmp_path / "said"
    process = begin("run", "hcfl+(fedrc)", *FLAGS, "--checkpoint-every", "100", "--out", str(run), said=said)
    wait_for_round(run, 2)
    os.kill(process.pid, signal.SIGHUP)
    process.join()
    assert process.exitcode == 128 + signal.SIGHUP
    assert checkpoint.rounds(run / "checkpoint") == [len(run_folder.rows(run, "metrics.jsonl"))]
