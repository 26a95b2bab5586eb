"""Memory is asked for before it is used: by headers, directories of archives and metadata, from regular files only."""

import io
import os
import resource

import numpy as np
import psutil
import pytest
from PIL import Image

from hcfl.cli import command, main
from hcfl.config.yaml_files import read_yaml
from hcfl.data import sources
from hcfl.data.readers import available_memory, idx, image_folder, images, npz, parquet
from hcfl.errors import InputError
from hcfl.models.pretrained import _file
from hcfl.runs import checkpoint
from hcfl.runs.json_files import read_lines
from image_files import class_folders, encode, pictures, write_parquet


def blank(side, mode="1"):
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def free(monkeypatch):
    """Return a function that sets the free memory, and the list of images that were decoded."""
    decoded = []
    monkeypatch.setattr(images, "decode", lambda name, *_: decoded.append(name))

    def set_to(size):
        monkeypatch.setattr(available_memory, "free_memory", lambda: size)
        return decoded

    return set_to


def bomb(path, side=9000, rows=300):
    """Write a small parquet file of many large images: one value, which every row has."""
    return write_parquet(path, [blank(side)] * rows, [0, 1] * (rows // 2), groups=1)


def test_a_parquet_file_of_large_images_is_refused_before_one_is_decoded(tmp_path, free):
    path = bomb(tmp_path / "train.parquet")
    assert path.stat().st_size < 40_000
    decoded = free(10**9)
    with pytest.raises(InputError, match=r"image 0 of row group 0: would take 49.2 GB of memory, but 1 GB are free"):
        parquet.read(tmp_path, [path], None)
    assert not decoded
    with pytest.raises(InputError, match="would take"):
        parquet.read(tmp_path, [path], 4096)
    assert not decoded


def test_a_value_that_a_parquet_file_holds_once_is_once_in_memory(tmp_path):
    import pyarrow as pa

    data = encode(pictures(1)[0]) + bytes(10**6)
    path = tmp_path / "train.parquet"
    cells = pa.array([{"bytes": data}] * 400, pa.struct([("bytes", pa.binary())]))
    pa.parquet.write_table(
        pa.table({"image": cells, "label": [0, 1] * 200}), path, compression="zstd", dictionary_pagesize_limit=10**8
    )
    del cells
    assert path.stat().st_size < 10_000
    before = psutil.Process().memory_info().rss
    pool = pa.system_memory_pool()
    pa.set_memory_pool(pool)
    peak = pool.max_memory()
    found = parquet.read(tmp_path, [path], None)
    assert found.arrays["x"].shape == (400, 32, 32, 3)
    assert pool.max_memory() - peak < 10**8
    assert psutil.Process().memory_info().rss - before < 10**8


def test_a_parquet_file_of_more_rows_than_fit_is_refused_by_its_metadata(tmp_path, free):
    path = write_parquet(tmp_path / "train.parquet", [blank(1)] * 10_000, [0, 1] * 5_000, groups=1)
    decoded = free(10**6)
    with pytest.raises(InputError, match=r"train.parquet: would take 5 MB of memory"):
        parquet.read(tmp_path, [path], None, workers=1)
    assert not decoded


def test_processes_share_the_memory(tmp_path, free):
    path = write_parquet(tmp_path / "train.parquet", [blank(100)] * 10, [0, 1] * 5, groups=1)
    part = parquet._part(path, False)
    free(10**6)
    with pytest.raises(InputError, match="would take"):
        parquet._row_group(part, 0, None, 10)


def test_a_folder_of_large_images_is_refused_by_headers(tmp_path, free):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(20):
            (tmp_path / name / f"{i}.png").write_bytes(blank(2000))
    decoded = free(10**8)
    with pytest.raises(InputError, match=r"0.png: would take 192 MB of memory, but 100 MB are free"):
        image_folder.read(image_folder.listing(tmp_path), None)
    assert not decoded
    (tmp_path / "cat" / "0.png").write_bytes(blank(8))
    with pytest.raises(InputError, match=r"0.png: would take"):
        image_folder.read(image_folder.listing(tmp_path), None)
    assert not decoded


def test_grey_images_count_as_coloured_ones_beside_one(free):
    free(10**6)
    grey, coloured = [("grey", blank(100, "L"))] * 30, [("coloured", blank(100, "RGB"))]
    images._check_chunk(grey, None, 1)
    with pytest.raises(InputError, match=r"grey: would take 1.36 MB"):
        images._check_chunk(grey + coloured, None, 1)


def test_there_are_as_many_images_as_were_declared():
    chunk = images.Chunk(np.zeros((2, 4, 4, 1), np.uint8), "a.png")
    with pytest.raises(InputError, match="more images than the 1 that its file declares"):
        images.join([chunk], 1)
    with pytest.raises(InputError, match="there are 2 images, but its files declare 3"):
        images.join([chunk], 3)


def test_the_copy_of_arrays_as_floats_counts(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros((1000, 100), np.int8), y=np.arange(1000) % 2)
    monkeypatch.setattr(available_memory, "free_memory", lambda: 2 * 10**5)
    assert npz.read(path)["x"].nbytes == 10**5
    with pytest.raises(InputError, match=r"a.npz: would take 400 kB of memory, but 200 kB are free"):
        sources.read_npz(path, "auto")


@pytest.fixture(params=["device", "pipe"])
def odd(request, tmp_path):
    """Return a function that makes a path a link to a device, or a pipe."""

    def make(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(path)
        return path

    return make


READERS = {
    "a.npz": npz.read,
    "a/train.parquet": lambda path: parquet.files(path.parent),
    "train-images-idx3-ubyte.gz": lambda path: idx.files(path.parent),
    "a.safetensors": lambda path: _file(str(path)),
    "a.pth": lambda path: _file(str(path)),
    "c.yaml": read_yaml,
    "events.jsonl": read_lines,
    "round-1.safetensors": checkpoint.read,
}


@pytest.mark.parametrize("name", READERS)
def test_devices_and_pipes_are_not_read(name, tmp_path, odd):
    with pytest.raises(InputError, match=r"is not a regular file, but a device, a pipe or a socket$"):
        READERS[name](odd(tmp_path / name))


def test_devices_and_pipes_are_no_images(tmp_path, odd, capsys):
    class_folders(tmp_path / "pets", each=2)
    odd(tmp_path / "pets" / "cat" / "9.png")
    assert main(["data", str(tmp_path / "pets")]) == 2
    assert "9.png: is not a regular file" in capsys.readouterr().err


def test_a_link_to_a_file_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    (tmp_path / "b.npz").symlink_to("a.npz")
    assert npz.read(tmp_path / "b.npz")["x"].tolist() == [0, 0, 0]


def test_the_limit_of_the_process_counts(monkeypatch):
    taken = psutil.Process().memory_info().vms
    monkeypatch.setattr(resource, "getrlimit", lambda what: (taken + 10**6, resource.RLIM_INFINITY))
    assert 0 < available_memory.free_memory() <= 10**7
    monkeypatch.setattr(resource, "getrlimit", lambda what: (1, 1))
    assert available_memory.free_memory() == 1
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert available_memory._of_process() is None


def test_the_limit_of_a_group_around_the_process_counts(tmp_path, monkeypatch):
    (tmp_path / "own").write_text("1:name=x:/old\n0::/user.slice/run.scope\n")
    (tmp_path / "user.slice" / "run.scope").mkdir(parents=True)
    for folder, limit in (("user.slice", "3000"), ("user.slice/run.scope", "max")):
        for name, content in (("max", limit), ("current", "1000"), ("stat", "inactive_file 100\n")):
            (tmp_path / folder / f"memory.{name}").write_text(content)
    monkeypatch.setattr(available_memory, "OWN_GROUP", str(tmp_path / "own"))
    monkeypatch.setattr(available_memory, "GROUPS", str(tmp_path))
    assert available_memory.free_memory() == 2100


def no_memory_of_numpy():
    np.ones(2**50, np.uint8)


def no_memory_of_torch():
    import torch

    torch.ones(2**50, dtype=torch.uint8)


def no_memory_of_python():
    raise MemoryError


def no_memory_of_the_system():
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
    "allocate", [no_memory_of_numpy, no_memory_of_torch, no_memory_of_python, no_memory_of_the_system]
)
def test_an_allocation_that_fails_is_a_sentence(allocate, monkeypatch, capsys):
    monkeypatch.setitem(command.COMMANDS, "methods", lambda arguments, console: allocate())
    assert main(["methods"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hcfl: the memory is not enough")
    assert said.count("\n") == 1


def test_other_errors_stay_what_they_are(monkeypatch):
    def fail(arguments, console):
        raise RuntimeError("a bug")

    monkeypatch.setitem(command.COMMANDS, "methods", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["methods"])
