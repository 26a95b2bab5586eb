"""Image sources by name and folder: found, downloaded once, or missed in one sentence; then a federation."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from hcfl.config import DataConfig
from hcfl.data import build, locate
from hcfl.errors import InputError
from image_files import class_folders, hub_folder


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A data folder, a cache, nothing installed by the system, no hub."""
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(locate, "find_spec", lambda name: None)
    return {"data_dir": str(tmp_path / "data"), "cache_dir": str(tmp_path / "cache")}


def test_names_lead_to_folders_in_the_data_folder(tmp_path, places):
    for name in ("cifar10", "tiny-imagenet-150", "owner--name", "mine"):
        hub_folder(tmp_path / "data" / name, 4, 2)
    for source, folder in {
        "cifar10": "cifar10",
        "tiny-imagenet": "tiny-imagenet-150",
        "tiny-imagenet-150": "tiny-imagenet-150",
        "hf:owner/name": "owner--name",
        "mine": "mine",
        str(tmp_path / "data" / "mine"): "mine",
    }.items():
        assert locate.find(DataConfig(source=source, **places)) == tmp_path / "data" / folder
    hub_folder(tmp_path / "system" / "fashion-mnist", 4, 2)
    assert locate.find(DataConfig(source="fashion-mnist", **places)) == tmp_path / "system" / "fashion-mnist"


def test_where_the_data_folder_is(tmp_path, monkeypatch):
    monkeypatch.setenv("HCFL_DATA", str(tmp_path / "e"))
    assert locate.data_dir(DataConfig(data_dir=str(tmp_path / "s"))) == tmp_path / "s"
    assert locate.data_dir(DataConfig()) == tmp_path / "e"
    monkeypatch.delenv("HCFL_DATA")
    assert locate.data_dir(DataConfig(cache_dir=str(tmp_path / "c"))) == tmp_path / "c" / "data"


def test_a_missing_source_says_what_was_looked_for_where_and_how_to_get_it(tmp_path, places):
    with pytest.raises(InputError) as missing:
        locate.find(DataConfig(source="tiny-imagenet", **places))
    for words in (
        "data.source = 'tiny-imagenet': there is no folder tiny-imagenet or ",
        "tiny-imagenet-150",
        f"in {tmp_path / 'data'} or {tmp_path / 'system'}",
        "--data-dir or $HCFL_DATA",
        "pip install 'hcfl[hub]'",
        "zh-plus/tiny-imagenet",
    ):
        assert words in str(missing.value)
    with pytest.raises(InputError, match=r"'hf:owner/name': there is no folder owner--name"):
        locate.find(DataConfig(source="hf:owner/name", **places))
    for wrong in ("hf:name", "hf:/name", "hf:a/b/c", "hf:../name"):
        with pytest.raises(InputError, match="must look like hf:OWNER/NAME"):
            locate.find(DataConfig(source=wrong, **places))


class Split:
    """One split of a data set that the stand-in for `datasets` has downloaded."""

    def __init__(self, path):
        self.path = path

    def to_parquet(self, path):
        Path(path).write_bytes(self.path.read_bytes())


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A stand-in for the `datasets` library, and what it was asked for."""
    hub_folder(tmp_path / "hub", 40, 20)
    asked = []

    def load_dataset(repository):
        asked.append(repository)
        if repository == "no/network":
            raise ConnectionError("cannot reach the hub\nmore")
        return {split: Split(tmp_path / "hub" / f"{split}.parquet") for split in ("train", "test")}

    module = ModuleType("datasets")
    module.__spec__ = ModuleSpec("datasets", None)
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(locate, "find_spec", lambda name: module.__spec__)
    return asked


def test_a_data_set_of_the_hub_is_downloaded_once(tmp_path, places, hub):
    for _ in range(2):
        federation = build(DataConfig(source="cifar10", clients=4, **places), seed=0)
    assert hub == ["uoft-cs/cifar10"]
    assert len(federation.test_x) == 20
    assert sorted(path.name for path in (tmp_path / "data" / "cifar10").iterdir()) == ["test.parquet", "train.parquet"]
    assert locate.find(DataConfig(source="hf:owner/name", **places)).name == "owner--name"
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["cifar10", "owner--name"]


def test_a_download_that_fails_leaves_nothing(tmp_path, places, hub, monkeypatch):
    with pytest.raises(
        InputError,
        match=r"^data.source = 'hf:no/network': there is no folder .*no--network, .*\(cannot reach the hub\)$",
    ):
        locate.find(DataConfig(source="hf:no/network", **places))

    def broken(self, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Split, "to_parquet", broken)
    with pytest.raises(InputError, match=r"data.data_dir = .*: cannot be written \(No space left on device\)"):
        locate.find(DataConfig(source="cifar10", **places))
    assert list((tmp_path / "data").iterdir()) == []


def test_a_federation_of_images_copies_none_of_them(tmp_path, places):
    x, y = hub_folder(tmp_path / "data" / "cifar10", 60, 20, classes=("cat", "dog", "emu"))
    federation = build(DataConfig(source="cifar10", clients=4, **places), seed=0)
    assert federation.class_names == ("cat", "dog", "emu")
    assert federation.shape == (32, 32, 3)
    assert federation.x.dtype == torch.uint8
    assert federation.y.dtype == torch.int64
    rows = torch.cat([*federation.train, *federation.val]).tolist()
    assert sorted(rows) == list(range(60)), "every training sample exactly once"
    assert np.array_equal(federation.x.numpy(), x)
    assert federation.y[:60].tolist() == y[:60].tolist()
    storage = federation.x.untyped_storage().data_ptr()
    assert federation.test_x.untyped_storage().data_ptr() == storage, "a view"
    values = x[torch.cat([*federation.train]).numpy()].reshape(-1, 3).astype(float)
    assert federation.scaling.mean.tolist() == pytest.approx(values.mean(axis=0), rel=1e-6)
    assert federation.scaling.std.tolist() == pytest.approx(values.std(axis=0), rel=1e-6)


def test_changed_files_are_read_again(tmp_path, places):
    config = DataConfig(source=str(tmp_path / "pets"), clients=2, **places)
    class_folders(tmp_path / "pets")
    assert build(config, seed=0).classes == 2
    class_folders(tmp_path / "pets", ("emu", "fox"))
    assert build(config, seed=0).classes == 4


def test_a_damaged_cache_is_a_note_of_the_federation(tmp_path, places):
    class_folders(tmp_path / "pets")
    config = DataConfig(source=str(tmp_path / "pets"), clients=2, **places)
    before = build(config, seed=0)
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / "y.npy").write_bytes(b"")
    after = build(config, seed=0)
    assert after.notes == (f"the cache {entry} was damaged and is made anew",)
    assert torch.equal(before.x, after.x)


def test_a_source_that_does_not_decode_leaves_no_cache(tmp_path, places):
    class_folders(tmp_path / "pets")
    (tmp_path / "pets" / "dog" / "5.png").write_bytes(b"?")
    with pytest.raises(InputError, match=r"pets/dog/5.png: cannot be decoded"):
        build(DataConfig(source=str(tmp_path / "pets"), **places), seed=0)
    assert not (tmp_path / "cache").exists()


def test_images_can_be_resized_and_arrays_cannot(tmp_path, places):
    class_folders(tmp_path / "pets")
    config = DataConfig(source=str(tmp_path / "pets"), clients=2, resize=16, **places)
    assert build(config, seed=0).shape == (16, 16, 3)
    with pytest.raises(InputError, match=r"data.resize = 16: digits are arrays"):
        build(DataConfig(resize=16), seed=0)
    with pytest.raises(InputError, match=r"data.kind = series: .*pets are images"):
        build(config.model_copy(update={"kind": "series"}), seed=0)


def test_some_of_the_samples(tmp_path, places):
    x, _ = hub_folder(tmp_path / "data" / "mine", 60, 20)
    config = DataConfig(source="mine", clients=4, samples=16, **places)
    federation = build(config, seed=0)
    assert sorted(torch.cat([*federation.train, *federation.val]).tolist()) == list(range(16))
    assert len(federation.test_x) == 16
    known = {image.tobytes() for image in x[60:]}
    assert all(image.numpy().tobytes() in known for image in federation.test_x)
    assert torch.equal(federation.x, build(config, seed=0).x)
    assert not torch.equal(federation.x, build(config, seed=1).x)
    with pytest.raises(InputError, match=r"data.samples = 61: mine has only 60 training samples"):
        build(config.model_copy(update={"samples": 61}), seed=0)
    digits = build(DataConfig(samples=100, clients=5), seed=0)
    assert sum(len(rows) for rows in (*digits.train, *digits.val)) == 100
