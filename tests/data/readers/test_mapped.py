"""Large arrays of a `.npz` file are maps of it: the same arrays as when they are read, and refused as strictly."""

import struct
import zipfile
from zipfile import ZipFile

import numpy as np
import pytest
import torch

import hcfl
from hcfl.data.readers import available_memory, mapped, npz
from hcfl.data.sources import read_npz
from hcfl.errors import InputError
from interrupting import without_seconds


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(mapped, "LARGE", 0)


def is_map(array):
    """Whether an array is a view of a map; a tensor shows no base."""
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def shifted(path, x, by):
    """Write `x` so that its numbers begin `by` bytes after a multiple of 64, and labels."""
    with ZipFile(path, "w") as archive:
        for name, array, place in (("x", x, by), ("y", np.arange(len(x)) % 2, 0)):
            info = zipfile.ZipInfo(f"{name}.npy")
            begins = archive.fp.tell() + 30 + len(info.filename)
            info.extra = struct.pack("<2H", 0xCAFE, (place - begins - 4) % 64) + bytes((place - begins - 4) % 64)
            with archive.open(info, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


@pytest.mark.parametrize("by", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float64])
def test_arrays_are_the_same_wherever_they_begin(tmp_path, all_are_large, by, dtype):
    x = np.random.default_rng(0).uniform(0, 255, (50, 4, 5)).astype(dtype)
    path = tmp_path / "a.npz"
    shifted(path, x, by)
    found = npz.read(path, cache_dir=str(tmp_path / "cache"))
    assert is_map(found["x"])
    assert found["x"].dtype == dtype
    assert np.array_equal(found["x"], x)
    assert found["x"].flags.aligned
    assert found["x"].flags.writeable
    copied = by % np.dtype(dtype).itemsize != 0
    assert (tmp_path / "cache").exists() == copied, "only what torch cannot read in place is copied"
    assert not list(tmp_path.glob("cache/*")), "the copy has no name"
    found["x"][0] = 7
    assert np.array_equal(npz.read(path, cache_dir=str(tmp_path / "cache"))["x"], x), "the file stays as it is"


def test_small_compressed_and_fortran_arrays_are_read(tmp_path, monkeypatch):
    x = np.arange(60.0).reshape(12, 5)
    np.savez(tmp_path / "a.npz", x=x)
    assert not is_map(npz.read(tmp_path / "a.npz")["x"])
    monkeypatch.setattr(mapped, "LARGE", 0)
    assert is_map(npz.read(tmp_path / "a.npz")["x"])
    assert not is_map(npz.read(tmp_path / "a.npz", whole=True)["x"])
    np.savez_compressed(tmp_path / "b.npz", x=x)
    np.savez(tmp_path / "c.npz", x=np.asfortranarray(x))
    for name in ("b.npz", "c.npz"):
        found = npz.read(tmp_path / name)["x"]
        assert not is_map(found)
        assert np.array_equal(found, x)


def test_a_map_takes_no_memory(tmp_path, all_are_large, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros((1000, 100), np.uint8))
    monkeypatch.setattr(available_memory, "free_memory", lambda: 10**4)
    assert npz.read(tmp_path / "a.npz")["x"].shape == (1000, 100)
    monkeypatch.setattr(mapped, "LARGE", 10**6)
    with pytest.raises(InputError, match="would take 100 kB of memory, but 10 kB are free"):
        npz.read(tmp_path / "a.npz")


def test_where_no_copy_can_be_kept_it_is_in_memory(tmp_path, all_are_large, monkeypatch):
    x = np.arange(1000, dtype=np.float32)
    shifted(tmp_path / "a.npz", x, 3)
    (tmp_path / "cache").write_text("not a folder")
    found = npz.read(tmp_path / "a.npz", cache_dir=str(tmp_path / "cache"))["x"]
    assert found.flags.aligned
    assert np.array_equal(found, x)
    monkeypatch.setattr(mapped, "check_memory", lambda what, needed: 1 / 0)
    with pytest.raises(InputError, match="ZeroDivisionError"):
        npz.read(tmp_path / "a.npz", cache_dir=str(tmp_path / "cache"))


def test_a_flipped_byte_and_a_wrong_size_are_refused(tmp_path, all_are_large):
    path, x = tmp_path / "a.npz", np.arange(1000, dtype=np.float32)
    np.savez(path, x=x)
    text = path.read_bytes()
    at = text.index(x.tobytes()) + 1001
    path.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
    with pytest.raises(InputError, match=r"cannot be read as .npz without objects .*Bad CRC-32"):
        npz.read(path)
    path.write_bytes(text.replace(b"(1000,)", b"(2000,)"))
    with pytest.raises(InputError, match=r"says it has shape \(2000,\), but has 4000 bytes"):
        npz.read(path)


def test_an_archive_that_says_more_than_its_file_has_is_refused(tmp_path, all_are_large):
    path = tmp_path / "a.npz"
    np.savez(path, x=np.arange(10))
    with ZipFile(path) as archive:
        (member,) = archive.infolist()
    member.file_size = member.compress_size = 10**6
    with pytest.raises(zipfile.BadZipFile, match="longer than its file"):
        mapped.mapped(path, member, 128, (10,), np.dtype(np.int64), tmp_path)
    member.header_offset = 3
    with pytest.raises(zipfile.BadZipFile, match="another header"):
        mapped.mapped(path, member, 128, (10,), np.dtype(np.int64), tmp_path)


def test_objects_are_refused(tmp_path, all_are_large):
    np.savez(tmp_path / "a.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="holds objects"):
        npz.read(tmp_path / "a.npz")


def test_a_run_is_the_same(tmp_path, monkeypatch):
    draw = np.random.default_rng(0)
    x, client = draw.standard_normal((400, 6)).astype(np.float32), np.arange(400) % 8
    np.savez(tmp_path / "a.npz", x=x, y=(x[:, 0] > 0).astype(np.int64), client=client)
    # The engine is named: each cache folder has a trial of its own, which may end otherwise on a busy machine.
    settings = {"data": tmp_path / "a.npz", "rounds": 2, "participation": 0.5, "engine": "batched", "threads": 1}
    read = hcfl.run("hcfl+(fedrc)", out=tmp_path / "read", **settings)
    assert not is_map(read.federation.x.numpy())
    monkeypatch.setattr(mapped, "LARGE", 0)
    monkeypatch.setenv("HCFL_CACHE", str(tmp_path / "cache"))
    from_map = hcfl.run("hcfl+(fedrc)", out=tmp_path / "map", **settings)
    mine = read_npz(tmp_path / "a.npz", "auto").x
    assert is_map(mine)
    assert torch.from_numpy(mine).data_ptr() == mine.ctypes.data, "torch takes it without a copy"
    assert without_seconds(tmp_path / "read") == without_seconds(tmp_path / "map")
    for name, tensor in read.state.server.ensemble.heads.items():
        assert torch.equal(tensor, from_map.state.server.ensemble.heads[name])
