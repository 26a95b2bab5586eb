"""What is taken apart is put together again, exactly; anything else is refused."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given

from hcfl.core import serialization
from hcfl.core.cluster_log import Removal
from hcfl.core.state import RunState, Update
from hcfl.errors import InputError
from hcfl.methods import METHODS, build
from hcfl.runs import state_file
from hcfl.tiers import Prototypes
from hcfl.tiers.gaussians import Moments
from helpers import play
from values import Everything, everything, same


@given(everything)
def test_a_tree_through_json_and_back(value):
    tree, named = serialization.flatten(value)
    assert same(serialization.restore(Everything, json.loads(json.dumps(tree)), named), value)


@given(everything)
def test_a_file_and_back(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("flat") / "it.safetensors"
    state_file.write(path, value, 1)
    assert same(state_file.read(Everything, path, 1, "it"), value)


@pytest.mark.parametrize("name", METHODS)
def test_every_methods_state_survives(planted, name):
    state, _ = play(planted, build(name), 3, participation=0.7)
    expected = replace(state, clients=dict(state.clients))
    assert same(serialization.restore(RunState, *serialization.flatten(state)), expected)


VALUE = Prototypes(torch.zeros(2, 3), torch.ones(2), torch.zeros(3))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tree, tensors: tensors.pop("mean"), "^mean: has another type or shape than expected"),
        (lambda tree, tensors: tensors.update(mean=torch.zeros(4)), "^mean: has another"),
        (lambda tree, tensors: tensors.update(mean=torch.zeros(3, dtype=torch.float64)), "^mean: has another"),
        (lambda tree, tensors: tensors.update(more=torch.zeros(3)), "^more: this tensor belongs to no field"),
        (lambda tree, tensors: tree.pop("mean"), "^all of it: has another"),
        (lambda tree, tensors: tree.update(more=1), "^all of it: has another"),
        (lambda tree, tensors: tree.update({"class": "Weights"}), "^all of it: has another"),
        (lambda tree, tensors: tree.update(mean=None), "^mean: has another"),
        (lambda tree, tensors: tree.update(mean=["a list"]), "^mean: has another"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    tree, tensors = serialization.flatten(VALUE)
    change(tree, tensors)
    with pytest.raises(ValueError, match=words):
        serialization.restore(Prototypes, tree, tensors)


@pytest.mark.parametrize("tree", [None, 1, "x", [], {}, {"class": "Update"}, [1]])
def test_a_tree_of_another_shape_is_refused(tree):
    with pytest.raises(ValueError, match="has another type or shape than expected"):
        serialization.restore(Update, tree, {})


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("whole", 1.5),
        ("whole", True),
        ("flag", 1),
        ("number", "1"),
        ("name", 3),
        ("choice", "other"),
        ("pair", [1]),
        ("changes", [{"class": "Everything"}]),
        ("changes", [3]),
        ("by_client", []),
    ],
)
def test_a_value_of_another_type_is_refused(part, wrong):
    value = Everything(torch.zeros(1), {}, (), "a", 1.0, 2, True, "full", (1, "b"))
    tree, tensors = serialization.flatten(value)
    with pytest.raises(ValueError, match=f"^{part}.*: has another type or shape than expected"):
        serialization.restore(Everything, {**tree, part: wrong}, tensors)


def test_what_cannot_be_saved_is_said():
    with pytest.raises(TypeError, match="a list is neither a number, a tensor, nor made of them"):
        serialization.flatten(Removal(1, [2]))


def test_two_tensors_with_one_name_are_refused():
    with pytest.raises(ValueError, match=r"a\.b: two tensors have this name"):
        serialization.flatten({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)})


def test_a_write_that_stops_half_way_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "it.safetensors"
    state_file.write(path, Removal(1, 2), 1)

    def stops(handle):
        raise OSError("power is gone")

    monkeypatch.setattr(os, "fsync", stops)
    with pytest.raises(OSError, match="power is gone"):
        state_file.write(path, Removal(3, 4), 1)
    assert state_file.read(Removal, path, 1, "it") == Removal(1, 2)
    monkeypatch.undo()
    state_file.write(path, Removal(5, 6), 1)
    assert state_file.read(Removal, path, 1, "it") == Removal(5, 6)
    assert [entry.name for entry in tmp_path.iterdir()] == ["it.safetensors"]


WRITER = """
import sys, torch
from pathlib import Path
from hcfl.runs import state_file
from hcfl.tiers.gaussians import Moments
for number in range(100_000):
    part = torch.full((200, 1000), float(number))
    state_file.write(Path(sys.argv[1]), Moments(part, part, part), 1)
    if number == 3:
        print("writing", flush=True)
"""


def test_a_writer_that_is_killed_leaves_a_whole_file(tmp_path):
    path = tmp_path / "it.safetensors"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout.readline() == "writing\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    found = state_file.read(Moments, path, 1, "it")
    assert found.mass.unique().numel() == 1
    assert torch.equal(found.mass, found.second)


def test_a_header_that_nests_without_end_is_damaged(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "it.safetensors"
    save_file({"a": torch.zeros(1)}, path, metadata={"hcfl": "[" * 200_000})
    with pytest.raises(InputError, match="is damaged"):
        state_file.read(Moments, path, 1, "it")
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="is damaged"):
        state_file.read(Moments, path, 1, "it")
