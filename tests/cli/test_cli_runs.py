"""`hcfl assign` and `hcfl export`: what people see, and what they are told when it is wrong."""

import re

import numpy as np
import pytest

import hcfl
from hcfl import Federation
from hcfl.cli import main
from helpers import blobs

X, Y = blobs(per_class=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run whose west means the opposite."""
    here = tmp_path_factory.mktemp("commands")
    west = np.arange(len(Y)) % 3 == 2
    client = np.array(["north", "south", "west"])[np.arange(len(Y)) % 3]
    federation = Federation.from_arrays(X, np.where(west, 3 - Y, Y), client=client)
    hcfl.run("hcfl+(fedrc)", federation, rounds=6, out=here / "run")
    np.savez(here / "new.npz", x=X[::5], y=Y[::5])
    np.savez(here / "bare.npz", x=X[::5])
    np.savez(here / "wide.npz", x=np.zeros((4, 9)))
    np.savez(here / "strange.npz", x=X[:4], y=np.array(["ant", "bee", "cat", "dog"]))
    (here / "empty").mkdir()
    return here


@pytest.fixture(autouse=True)
def _in_the_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")


def test_assign_shows_weights_evidence_and_accuracy(capsys):
    assert main(["assign", "run", "--data", "new.npz"]) == 0
    shown = capsys.readouterr().out
    assert "32 samples, by labels" in shown
    assert "mean log-likelihood" in shown
    assert re.search(r"Cluster 0, accuracy \d+\.\d%\.", shown)
    assert "guess" not in shown


@pytest.mark.parametrize("arguments", [["bare.npz"], ["new.npz", "--unlabelled"]])
def test_assign_without_labels_says_what_cannot_be_known(capsys, arguments):
    assert main(["assign", "run", "--data", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "by prototypes" in shown
    assert "Clusters that differ only in what labels mean cannot be told apart without labels." in shown
    assert (", accuracy " in shown) == ("--unlabelled" in arguments), "measured only where there are labels"


@pytest.mark.parametrize("format", ["torchscript", "safetensors"])
def test_export_writes_into_the_run_folder(capsys, folder, format):
    assert main(["export", "run", "--client", "west", "--format", format]) == 0
    assert "Model: run/client-west." in capsys.readouterr().out
    assert list((folder / "run").glob("client-west.*"))
    assert main(["export", "run", "--cluster", "0", "--format", format, "--out", f"mine.{format}"]) == 0
    assert (folder / f"mine.{format}").stat().st_size > 1000


BAD = {
    "a folder that is no run": (["assign", "empty", "--data", "new.npz"], "run = 'empty': is not the folder of a run"),
    "a folder that is not there": (["export", "no", "--cluster", "0"], "run = 'no': is not the folder of a run"),
    "an unknown cluster": (["export", "run", "--cluster", "9"], r"cluster = 9: is not one of this run's clusters 0"),
    "an unknown client": (
        ["export", "run", "--client", "east"],
        "client = east: is not one of this run's 3 clients north, south, west",
    ),
    "nobody named": (["export", "run"], r"one of client, cluster \(0, .*must be given"),
    "another shape": (
        ["assign", "run", "--data", "wide.npz"],
        r"x has shape \(4, 9\), but the run's inputs are \(N, 8\)",
    ),
    "unknown labels": (
        ["assign", "run", "--data", "strange.npz"],
        "y has the label 'ant', but the run's classes are 0",
    ),
    "a missing file": (["assign", "run", "--data", "no.npz"], "data = 'no.npz': there is no such file"),
    "an unknown format": (
        ["export", "run", "--cluster", "0", "--format", "h5"],
        "format = 'h5': must be onnx, torchscript, safetensors",
    ),
    "an unknown tracker": (
        ["run", "fedavg", "--track", "excel"],
        "track = 'excel': must be tensorboard, mlflow, wandb",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_sentence_and_exit_code_2(case, capsys):
    arguments, sentence = BAD[case]
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert re.search(sentence, said), said
    assert said.count("\n") == 1
    assert said.startswith("hcfl: ")


def test_an_extra_that_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("hcfl.serving.export.writing.find_spec", lambda name: None)
    assert main(["export", "run", "--cluster", "0", "--format", "onnx"]) == 2
    assert "pip install 'hcfl[onnx]'" in capsys.readouterr().err
