"""The command line: what people type, what they see, and what they are told when it is wrong."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from hcfl.cli import main
from hcfl.methods import METHODS
from helpers import blobs


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


FAST = ["--rounds", "2", "--clients", "4"]


def test_run_writes_the_folder_and_shows_every_round(tmp_path, capsys):
    assert main(["run", "hcfl+(fedrc)", *FAST, "--out", "mine", "--seed", "5"]) == 0
    shown = capsys.readouterr().out
    assert "round 1/2" in shown
    assert "round 2/2" in shown
    assert "Run folder: mine" in shown
    assert json.loads((tmp_path / "mine" / "summary.json").read_text())["seed"] == 5
    assert (tmp_path / "mine" / "run.png").stat().st_size > 10_000


def test_flags_win_over_the_file_and_set_over_both(tmp_path):
    (tmp_path / "c.yaml").write_text(
        "method: {name: ifca}\ntraining: {rounds: 9, lr: 0.5}\ndata: {clients: 5}\nseed: 1\n"
    )
    assert (
        main(["run", "--config", "c.yaml", "--rounds", "1", "--lr", "0.2", "--set", "training.lr=0.3", "--out", "o"])
        == 0
    )
    config = (tmp_path / "o" / "config.yaml").read_text()
    assert "name: ifca" in config
    assert "rounds: 1" in config
    assert "lr: 0.3" in config
    assert "clients: 5" in config


def test_methods_lists_every_method(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for name in METHODS:
        assert f" {name} " in shown


def test_data_shows_a_table_and_a_picture(tmp_path, capsys):
    # At 80 columns, which is what there is without a terminal.
    assert main(["data", "--clients", "7", "--alpha", "0.5", "--picture", "who.png"]) == 0
    shown = capsys.readouterr().out
    assert "7 clients, 10 classes" in shown
    assert "concept" in shown
    assert (tmp_path / "who.png").read_bytes()[:4] == b"\x89PNG"


def test_data_shows_a_user_s_own_file(tmp_path, capsys):
    x, y = blobs()
    np.savez("mine.npz", x=x, y=np.array(["ant", "bee", "cat", "dog"])[y], client=np.arange(len(y)) % 3)
    assert main(["data", "mine.npz"]) == 0
    shown = capsys.readouterr().out
    assert "3 clients, 4 classes" in shown
    assert "bee" in shown
    assert "concept" not in shown


def test_the_model_can_be_a_function_in_a_file(tmp_path, capsys):
    (tmp_path / "net.py").write_text(
        "from math import prod\nfrom torch import nn\n"
        "def build(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 9)), nn.Linear(9, classes)\n"
        "def wrong(shape, classes):\n"
        "    return nn.Flatten(), nn.Linear(prod(shape), 3)\n"
    )
    assert main(["run", "fedavg", *FAST, "--model", "net.py:build"]) == 0
    assert main(["run", "fedavg", *FAST, "--model", "net.py:wrong"]) == 2
    assert "output has 3 values per sample, but the data need 10" in capsys.readouterr().err


def npz(name, **arrays):
    np.savez(name, **arrays)
    return name


X, Y = blobs(per_class=10)


def with_nan():
    x = X.copy()
    x[7] = np.nan
    return x


BAD = {
    "unknown method": (["run", "fedrcx"], r"method.name = 'fedrcx': is not one of local, fedavg.*did you mean fedrc\?"),
    "unknown data": (
        ["run", "fedavg", "--data", "cifar11"],
        r"data.source = 'cifar11': must be digits, cifar10, .*a .npz file",
    ),
    "unknown model": (["run", "fedavg", "--model", "vgg"], r"model.name = 'vgg': must be auto, mlp"),
    "a model that is not there": (
        ["run", "fedavg", "--model", "no.py:f"],
        r"model.name = 'no.py:f': cannot be imported",
    ),
    "rho out of range": (["run", "hcfl+(fedrc)", "--rho", "-1"], r"method.rho = '-1': should be greater than 0"),
    "alpha out of range": (["run", "fedavg", "--alpha", "0"], r"data.alpha = '0': should be greater than 0"),
    "beta out of range": (["run", "fedavg", "--beta", "2"], r"data.beta = '2': should be less than or equal to 1"),
    "mu out of range": (["run", "hcfl+(fedrc)", "--mu", "2"], r"method.mu = '2': should be less than or equal to 1"),
    "a setting of another method": (["run", "fedavg", "--rho", "0.1"], r"method.rho = 0.1: fedavg has no such setting"),
    "too many classes": (
        ["run", "fedavg", "--classes-per-client", "11"],
        r"data.classes_per_client = 11: the data have only 10 classes",
    ),
    "a client without samples": (
        ["run", "fedavg", "--clients", "1500"],
        r"data.clients = 1500: only \d+ training samples",
    ),
    "a folder that cannot be written": (["run", "fedavg", "--out", "/proc/no"], r"out = '/proc/no': cannot be written"),
    "a picture that cannot be written": (["data", "--picture", "/proc/no.png"], r"picture = '/proc/no.png': cannot"),
    "an unknown device": (["run", "fedavg", "--device", "gpu"], r"device = 'gpu': is not a device"),
    "noise without a rate": (["run", "fedavg", "--noise", "pair"], r"data.noise = pair with data.noise_rate = 0"),
    "a rate without noise": (["data", "--noise-rate", "0.2"], r"data.noise = none with data.noise_rate = 0.2"),
    "concepts without shift": (
        ["data", "--beta", "0", "--concepts", "4"],
        r"data.concepts = 4: concepts need data.beta",
    ),
    "more concepts than clients": (["data", "--concepts", "99"], r"data.concepts = 99: there are only 30 clients"),
    "an unknown scenario": (["data", "--scenario", "c3"], r"data.scenario = 'c3': must be c2, c4, .*or a .yaml file"),
    "corruptions of tiny images": (
        ["data", "--corruptions", "random"],
        r"data.corruptions = random: the images have 8×8 pixels",
    ),
    "an empty folder": (["data", "."], r"must have a sub-folder of images for each of at least 2 classes"),
    "too many samples": (["data", "--samples", "5000"], r"data.samples = 5000: digits has only \d+ training samples"),
    "digits that are no images": (["data", "--kind", "series"], r"data.kind = series: digits are images"),
    "no room for training": (["run", "fedavg", "--test-share", "0.9999"], r"only 0 training samples"),
    "a long folder name": (["run", "fedavg", "--out", "x" * 300], r"cannot be written \(File name too long\)"),
    "a picture of another kind": (["data", "--picture", "x.xyz"], r"picture = 'x.xyz': must end in .png, .pdf or .svg"),
    "a device that holds nothing": (["run", "fedavg", "--device", "meta"], r"device = 'meta': is not a device"),
    "an empty path": (["run", "fedavg", "--set", "=5"], r"must be a field's path"),
    "an unknown setting": (["run", "fedavg", "--set", "data.alhpa=1"], r"did you mean data.alpha\?"),
    "a setting without value": (["run", "fedavg", "--set", "data.alpha"], r"must look like data.alpha=0.5"),
    "a missing configuration": (["run", "--config", "no.yaml"], r"config no.yaml: cannot be read"),
    "a missing file": (["run", "fedavg", "--data", "no.npz"], r"data.source = 'no.npz': there is no such file"),
    "wrong shapes": (
        lambda: ["run", "fedavg", "--data", npz("a.npz", x=X, y=Y[:3])],
        r"a.npz: y has shape \(3,\), but x has 40 samples",
    ),
    "NaN pixels": (
        lambda: ["run", "fedavg", "--data", npz("a.npz", x=with_nan(), y=Y)],
        r"a.npz: x has NaN, infinite or too large values in 1 of 40 samples, first in sample 7",
    ),
    "labels out of range": (
        lambda: ["data", npz("a.npz", x=X, y=Y - 2)],
        r"a.npz: y has labels from -2 to 1, but labels must be 0 to C−1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_sentence_and_exit_code_2(case, capsys, tmp_path):
    arguments, sentence = BAD[case]
    assert main(arguments() if callable(arguments) else arguments) == 2
    said = capsys.readouterr()
    assert re.search(sentence, said.err), said.err
    assert said.err.count("\n") == 1, "one sentence"
    assert said.err.startswith("hcfl: ")
    assert "Traceback" not in said.err
    assert not (tmp_path / "runs").exists(), "nothing is left behind"


def test_names_that_look_like_markup_are_shown_as_they_are(capsys):
    x, y = blobs(per_class=10)
    np.savez("m.npz", x=x, y=np.array(["[/x]", "[red]b", "$1_$", "猫"])[y], client=np.array(["[/a]", "[b]"])[y % 2])
    assert main(["data", "m.npz"]) == 0
    assert "[/x]" in capsys.readouterr().out
    assert main(["run", "hcfl+(fedem)", "--data", "m.npz", "--rounds", "1", "--out", "[/o]"]) == 0
    assert "Run folder: [/o]" in capsys.readouterr().out


def test_another_method_on_a_written_configuration(tmp_path):
    assert main(["run", "hcfl+(fedrc)", *FAST, "--out", "one"]) == 0
    assert main(["run", "fedavg", "--config", "one/config.yaml", "--out", "two"]) == 0
    assert "method: fedavg" in (tmp_path / "two" / "summary.json").read_text().replace('"', "")


def hcfl(*arguments):
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-m", "hcfl.cli", *arguments], capture_output=True, text=True, env=environment, check=False
    )


def test_the_command_itself():
    assert hcfl("--version").stdout.startswith("hcfl ")
    unknown = hcfl("run", "fedavg", "--lrate", "1")
    assert unknown.returncode == 2
    assert unknown.stderr.count("\n") == 1
    assert "--lrate" in unknown.stderr
    nothing = hcfl()
    assert nothing.returncode == 2
    assert hcfl("run", "--help").stdout.count("--") > 25
