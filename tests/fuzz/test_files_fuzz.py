"""Files with bytes that do not belong there: a sentence, never a traceback. `make fuzz` tries more than 5,000."""

import contextlib
import gzip
import json
import shutil
import struct
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from junk import altered, damaged, few
from PIL import Image
from safetensors.torch import save_file

import hcfl
from hcfl.config import Config
from hcfl.data.readers import idx, images, parquet
from hcfl.data.sources import read_npz
from hcfl.errors import InputError
from hcfl.models.pretrained import _file
from hcfl.report import page
from hcfl.runs import checkpoint, checksum
from hcfl.runs import folder as run_folder
from helpers import blobs


def picture(form):
    file = BytesIO()
    generator = np.random.default_rng(0)
    Image.fromarray(generator.integers(0, 255, (9, 7, 3), dtype=np.uint8)).save(file, form)
    return file.getvalue()


def an_npz(path):
    x, y = blobs(classes=3, per_class=4, features=3)
    np.savez(path, x=x, y=y, client=y % 2)


def a_table(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    cells = [{"bytes": picture("PNG"), "path": None}] * 4
    pq.write_table(pa.table({"image": cells, "label": [0, 1, 0, 1]}), path)


def an_idx(path):
    content = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2, 3, 3) + bytes(range(18))
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def tensors(path):
    if path.suffix == ".pth":
        torch.save({"a": torch.zeros(3), "b": torch.ones(2, 2)}, path)
    else:
        save_file({"a": torch.zeros(3), "b": torch.ones(2, 2)}, path)


KINDS = {
    "a.npz": (an_npz, lambda path: read_npz(path, "auto")),
    "train.parquet": (a_table, lambda path: parquet.read(path.parent, [path], None, workers=1)),
    "train-images-idx3-ubyte": (an_idx, idx._array),
    "train-images-idx3-ubyte.gz": (an_idx, idx._array),
    "a.safetensors": (tensors, lambda path: _file(str(path))),
    "a.pth": (tensors, lambda path: _file(str(path))),
    "c.yaml": (lambda path: path.write_text(Config().to_yaml()), Config.load),
    **{
        f"a.{form.lower()}": (
            lambda path, form=form: path.write_bytes(picture(form)),
            lambda path: images.decode_chunk([("it", path.read_bytes())], None),
        )
        for form in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
    },
}


@pytest.mark.parametrize("name", KINDS)
def test_a_file(name, tmp_path):
    make, read = KINDS[name]
    path = tmp_path / name
    make(path)
    read(path)  # as it was meant, it can be read
    content = path.read_bytes()

    @few(25, full=250)
    @given(damaged(content))
    def try_it(bytes_):
        path.write_bytes(bytes_)
        with contextlib.suppress(InputError):
            read(path)

    try_it()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("fuzz") / "run"
    hcfl.run("hcfl+(fedem)", clients=4, rounds=2, out=path, rho=0.001)
    return path


def look(path):
    """Whatever one does with somebody's run."""
    with contextlib.suppress(InputError):
        page.write([path])
    with contextlib.suppress(InputError):
        opened = hcfl.load(path)
        opened.predict(np.zeros((2, 8, 8, 1)), cluster=opened.clusters[0])
        opened.predict(np.zeros((2, 8, 8, 1)), client=0)
        assert len(opened.metrics)


TEXTS = (*run_folder.LOGS, run_folder.SUMMARY, run_folder.CLIENTS, run_folder.CLASSES, run_folder.CONFIG)
STATES = (checkpoint.file_of(Path(), 2).name, checkpoint.OUTLINE_FILE)


@pytest.mark.parametrize("name", [*TEXTS, *STATES])
def test_a_damaged_file_of_a_run(name, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / (f"{run_folder.CHECKPOINT}/{name}" if name in STATES else name)
    content = path.read_bytes()
    look(tmp_path / "run")

    @few(5, full=100)
    @given(damaged(content))
    def try_it(bytes_):
        path.write_bytes(bytes_)
        look(tmp_path / "run")

    try_it()


@pytest.mark.parametrize("name", [*run_folder.LOGS, run_folder.SUMMARY])
def test_a_run_whose_files_say_something_else(name, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / name
    rows = [
        json.loads(line)
        for line in (path.read_text().splitlines() if name != run_folder.SUMMARY else [path.read_text()])
    ]

    @few(15, full=100)
    @given(st.data())
    def try_it(data):
        changed = data.draw(altered(rows))
        lines = changed if isinstance(changed, list) else [changed]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        look(tmp_path / "run")

    try_it()


@pytest.mark.parametrize("name", STATES)
def test_a_state_whose_tree_says_something_else(name, run, tmp_path):
    """The tensors are as they were; what is said about them is not."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / run_folder.CHECKPOINT / name
    with safe_open(path, "pt") as file:
        tree = json.loads(file.metadata()["hcfl"])
    stored = load_file(path)

    @few(15, full=100)
    @given(st.data())
    def try_it(data):
        save_file(stored, path, metadata={"hcfl": json.dumps(data.draw(altered(tree)))})
        with contextlib.suppress(AssertionError):  # without a place for the checksum there is none
            checksum.write(path)
        look(tmp_path / "run")

    try_it()
