"""What was written for other programs predicts as the run does, read by those programs themselves."""

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hcfl
from hcfl import Federation, InputError
from hcfl.models import IMAGE_NETWORKS
from hcfl.serving.export import FORMATS, write
from helpers import blobs

ENDINGS = {"onnx": "onnx", "torchscript": "pt", "safetensors": "safetensors"}


def read(path):
    """Return a function from raw inputs to probabilities, by the library that a format is for."""
    if path.suffix == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})[0]
    if path.suffix == ".pt":
        with pytest.warns(DeprecationWarning, match="jit"):
            module = torch.jit.load(path)
        return lambda x: module(torch.from_numpy(x)).numpy()
    module = hcfl.load_model(path)
    return lambda x: module(torch.from_numpy(x)).numpy()


def check(run, path, x, **whose):
    run.export(path, **whose)
    assert read(path)(x) == pytest.approx(run.predict_proba(x, **whose), abs=1e-5)
    return path


@pytest.fixture
def images():
    """Coloured bytes, three clients."""
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (48, 16, 16, 3)).astype(np.uint8), np.arange(48) % 3
    x[y == 1, :8] //= 3
    return Federation.from_arrays(x, np.array(["ant", "bee", "cat"])[y], client=np.arange(48) % 3)


@pytest.mark.parametrize("method", ["fedavg", "fedem", "fedsoft", "fedgmm", "hcfl+(fedrc)"])
def test_every_kind_of_mixture(planted, tmp_path, method):
    clusters = {} if method == "fedavg" else {"clusters": 2}
    run = hcfl.run(method, planted, "mlp", rounds=1, out=tmp_path / "run", **clusters)
    run = hcfl.load(run.path)
    x = planted.x[:11].numpy()
    for format in FORMATS:
        if format == "onnx" and method not in ("fedgmm", "hcfl+(fedrc)"):
            continue  # takes seconds: the one with everything in its graph, and the one that people will use
        check(run, tmp_path / f"client.{ENDINGS[format]}", x, client=4)
    if method == "hcfl+(fedrc)":
        check(run, tmp_path / "cluster.pt", x, cluster=1)
        check(run, tmp_path / "newcomer.pt", x, weights=run.assign(x))


@pytest.mark.parametrize("format", FORMATS)
def test_images_as_bytes_with_names_in_the_file(images, tmp_path, format):
    run = hcfl.run("hcfl+(fedem)", images, "cnn", rounds=1, clusters=2, out=tmp_path / "run")
    path = check(run, tmp_path / f"model.{ENDINGS[format]}", images.x[:5].numpy(), client=1)
    if format == "onnx":
        import onnx

        facts = {each.key: each.value for each in onnx.load(path).metadata_props}
        assert facts["input"] == "uint8 (samples, 16, 16, 3)"
    elif format == "torchscript":
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("hcfl.json"))
            facts = json.loads(archive.read(name))
    else:
        from safetensors import safe_open

        with safe_open(path, "pt") as file:
            header = json.loads(file.metadata()["hcfl"])["state"]
        assert header["architecture"]["name"] == "cnn"
        assert header["class_names"] == ["ant", "bee", "cat"]
        return
    assert json.loads(facts["class_names"]) == ["ant", "bee", "cat"]


@pytest.mark.parametrize("model", IMAGE_NETWORKS)
def test_the_image_networks(tmp_path, model):
    # docs/use-a-run.md says how they were checked as ONNX, which takes long.
    x, y = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3)).astype(np.uint8), np.arange(12) % 2
    federation = Federation.from_arrays(x, y, clients=2, partition="iid")
    run = hcfl.run("hcfl+(fedem)", federation, model, rounds=1, epochs=1, batch=64, clusters=2, out=tmp_path / "run")
    check(run, tmp_path / "model.safetensors", x, client=0)
    if model != "mobilenet-v2":  # has the layers of efficientnet-lite0
        check(run, tmp_path / "model.pt", x, client=0)


def test_a_model_from_python(planted, tmp_path):
    pair = (nn.Sequential(nn.Linear(8, 6), nn.Dropout(0.5)), nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4)))
    run = hcfl.run("hcfl+(fedem)", planted, pair, rounds=1, clusters=2, out=tmp_path / "run")
    path = run.export(tmp_path / "model.safetensors", client=0)
    with pytest.raises(InputError, match="has to be passed again"):
        hcfl.load_model(path)
    x = planted.x[:3].numpy()
    assert hcfl.load_model(path, pair)(planted.x[:3]).numpy() == pytest.approx(run.predict_proba(x, client=0), abs=1e-6)


def test_a_file_that_predicts_otherwise_is_not_left(planted, tmp_path, monkeypatch):
    run = hcfl.run("fedavg", planted, "mlp", rounds=1, out=tmp_path / "run")
    wrong = lambda run, network, blend, path: lambda x: np.zeros((len(x), 4), dtype=np.float32)  # noqa: E731
    monkeypatch.setitem(write.__globals__["WRITERS"], "torchscript", wrong)
    with pytest.raises(RuntimeError, match="predicts otherwise than the run"):
        run.export(tmp_path / "model.pt")
    assert not list(tmp_path.glob("model*"))


def test_a_run_in_half_precision_is_written_in_single(tmp_path):
    x, y = blobs(per_class=20)
    run = hcfl.run("fedavg", Federation.from_arrays(x, y, clients=2), rounds=1, precision="bf16", out=tmp_path / "run")
    assert run.network.half
    run.export(tmp_path / "model.pt")
    exact = replace(run, network=replace(run.network, half=False)).predict_proba(x[:4])
    assert read(tmp_path / "model.pt")(x[:4]) == pytest.approx(exact, abs=1e-5)


def test_what_cannot_be_written(planted, tmp_path, monkeypatch):
    run = hcfl.run("fedavg", planted, "mlp", rounds=1, out=tmp_path / "run")
    with pytest.raises(InputError, match=r"format = 'h5': must be onnx, torchscript, safetensors"):
        run.export(tmp_path / "model.h5", "h5")
    with pytest.raises(InputError, match=r"must end in .onnx, .pt, .safetensors, or say the format"):
        run.export(tmp_path / "model.h5")
    with pytest.raises(InputError, match="cannot be written"):
        run.export("/proc/no/model.pt")
    monkeypatch.setattr("hcfl.serving.export.writing.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"format = onnx: needs onnx, onnxscript, onnxruntime; pip install 'hcfl\[onnx"
    ):
        run.export(tmp_path / "model.onnx")
