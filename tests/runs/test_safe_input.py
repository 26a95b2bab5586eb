"""What a file claims is checked before memory is taken, and nothing in it runs unless somebody said so."""

import gzip
import json
import struct
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import hcfl
from hcfl.cli import main
from hcfl.config import plugins
from hcfl.config.yaml_files import read_yaml
from hcfl.data.readers import available_memory, cache, idx, images, npz
from hcfl.errors import InputError
from hcfl.methods.choices import CHOICES
from hcfl.runs import checksum
from hcfl.runs.json_files import read_lines, read_object

BUILDER = """
from pathlib import Path
from hcfl.models.zoo import mlp
Path("ran").touch()
def build(shape, classes):
    return mlp(shape, classes, (8,))
"""


def header(shape, dtype="<f4"):
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
    return file.getvalue()


def archive(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (header((10**12,)) + b"1234", "says it has shape .1000000000000,., but has 4 bytes"),
        (header((-1, -1)) + b"1234", "says it has shape .-1, -1., but has 4 bytes"),
        (header((1,), "|O") + b"12345678", "cannot be read as .npz without objects"),
        (b"no array", "cannot be read as .npz without objects"),
    ],
)
def test_an_array_that_is_not_as_large_as_it_says(tmp_path, content, sentence):
    with pytest.raises(InputError, match=sentence):
        npz.read(archive(tmp_path / "a.npz", x=content))


def test_arrays_come_back_as_they_were(tmp_path):
    arrays = {
        "x": np.arange(6.0).reshape(2, 3),
        "y": np.array(["a", "ü"]),
        "one": np.array(3),
        "none": np.zeros((0, 2)),
    }
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    np.savez_compressed(tmp_path / "a.npz", **arrays, fortran=fortran)
    found = npz.read(tmp_path / "a.npz")
    assert found.keys() == {*arrays, "fortran"}
    for name, array in {**arrays, "fortran": fortran}.items():
        assert (found[name] == array).all()
        assert found[name].dtype == array.dtype


def test_what_unpacks_to_more_than_there_is_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(available_memory, "free_memory", lambda: 10**6)
    path = archive(tmp_path / "bomb.npz", x=header((2 * 10**6,), "|u1") + bytes(2 * 10**6))
    assert path.stat().st_size < 10**4
    with pytest.raises(InputError, match=r"bomb.npz.: would take 2 MB of memory, but 1 MB are free"):
        npz.read(path)


def test_an_idx_file_is_measured_by_its_header(tmp_path, monkeypatch):
    monkeypatch.setattr(available_memory, "free_memory", lambda: 10**6)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    head = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**31, 2**10, 2**10)
    path.write_bytes(gzip.compress(head + bytes(10**6)))
    with pytest.raises(InputError, match=r"would take 2,251.8 TB of memory, but 1 MB are free"):
        idx._array(path)
    small = bytes((0, 0, 8, 3)) + struct.pack(">3I", 1, 2, 2)
    path.write_bytes(gzip.compress(small + bytes(10**7)))  # what is beyond the header's word is not even unpacked
    with pytest.raises(InputError, match="not a complete idx file"):
        idx._array(path)
    path.write_bytes(gzip.compress(small + bytes(4))[:-12] + b"damaged bytes")
    with pytest.raises(InputError, match=r"cannot be read|not a complete"):
        idx._array(path)


def test_pictures_that_are_bombs_or_start_programs_are_refused(tmp_path):
    bomb = BytesIO()
    Image.new("1", (12_000, 12_000)).save(bomb, "PNG")
    assert len(bomb.getvalue()) < 10**5
    with pytest.raises(InputError, match="exceeds limit of 89478485 pixels"):
        images.decode_chunk([("bomb.png", bomb.getvalue())], None)
    script = tmp_path / "picture.eps"
    Image.new("RGB", (4, 4)).save(script, "EPS")
    with pytest.raises(InputError, match="it is no image that Pillow knows"):
        images.decode_chunk([("picture.eps", script.read_bytes())], None)


def test_more_images_than_fit_are_refused(monkeypatch):
    monkeypatch.setattr(available_memory, "free_memory", lambda: 10**6)
    chunk = images.Chunk(np.zeros((2, 10, 10, 3), np.uint8), "first.png")
    with pytest.raises(InputError, match=r"first.png: would take 300 MB"):
        images.join([chunk], 10**6)


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LAUGHS, "has more than 10000 values"),
        ("data: &a [*a]\n", "has more than 10000 values"),
        ("a: " + "[" * 5000, "is not valid YAML"),
        ("a: " + "x" * (1 << 20), "has more than 1048576 bytes"),
        ("a: !!python/object/apply:os.system [touch ran]", "is not valid YAML"),
        ("a: 2020-99-99", "is not valid YAML"),
        ("\x00", "is not valid YAML"),
    ],
)
def test_yaml_that_is_no_settings(tmp_path, monkeypatch, text, sentence):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_yaml(Path("c.yaml"))
    assert not Path("ran").exists()


def test_settings_may_refer_to_each_other(tmp_path):
    (tmp_path / "c.yaml").write_text("data: &d {clients: 3}\nother: *d\n")
    assert read_yaml(tmp_path / "c.yaml") == {"data": {"clients": 3}, "other": {"clients": 3}}


@pytest.mark.parametrize("text", ["[" * 100_000 + "\n", "[1]\n", "{\n", "\xff\n", '"x"\n'])
def test_lines_that_are_no_objects(tmp_path, text):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text, encoding="latin-1")
    for read in (read_lines, read_object):
        with pytest.raises(InputError, match="is damaged"):
            read(path)
    path.write_text('{"round": 1}\n{"rou')
    assert read_lines(path) == [{"round": 1}]


def test_the_cache_reads_no_files_but_its_own(tmp_path):
    entry, _ = cache.get(tmp_path / "cache", "one", lambda: cache.Entry({"x": np.zeros(3)}, {}))
    np.save(tmp_path / "secret.npy", np.ones(3))
    facts = tmp_path / "cache" / "one" / cache.FACTS
    expected = {"../../secret": cache._checksum(np.ones(3))}
    facts.write_text(json.dumps({"checksum": cache._facts_checksum(expected, {}), "checksums": expected, "facts": {}}))
    assert cache._load(tmp_path / "cache" / "one") is None
    assert entry.arrays["x"].tolist() == [0, 0, 0]


def test_free_memory_is_that_of_the_container_where_there_is_one(tmp_path, monkeypatch):
    limit, used, details = (tmp_path / name for name in ("max", "current", "stat"))
    machine = SimpleNamespace(available=5000 * 1024)
    monkeypatch.setattr(available_memory.psutil, "virtual_memory", lambda: machine)
    monkeypatch.setattr(available_memory, "CONTAINERS", [(str(limit), str(used), str(details))])
    assert available_memory.free_memory() == 5000 * 1024
    limit.write_text("3000000\n")
    used.write_text("2500000\n")
    details.write_text("anon 2000000\ninactive_file 400000\n")
    assert available_memory.free_memory() == 900_000
    limit.write_text("max\n")
    assert available_memory.free_memory() == 5000 * 1024
    monkeypatch.undo()
    assert available_memory.free_memory() > 0
    assert [available_memory.format_bytes(size) for size in (12, 1234, 5e6, 2.5e9, 4e15)] == [
        "12 bytes",
        "1.23 kB",
        "5 MB",
        "2.5 GB",
        "4,000.0 TB",
    ]


def test_code_is_what_names_a_file_or_a_module():
    values = {
        "method": {"name": "fedavg", "distance": "mine.py:D(a=1)", "local": "own-model", "weighting": None},
        "model": {"name": "os:system", "pretrained": "C:x"},
        "data": {"source": "hf:a/b"},
    }
    assert plugins.named(values) == {"method.distance": "mine.py:D(a=1)", "model.name": "os:system"}
    assert plugins.named({"method": "fedavg", "model": {"name": "split(a=b:c)"}}) == {}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_of_a_method_can_name_code_and_is_asked_about(choice, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("__import__('pathlib').Path('ran').touch()\nclass Mine: pass\n")
    Path("c.yaml").write_text(f"method: {{{choice}: 'mine.py:Mine'}}\n")
    assert main(["run", "--config", "c.yaml"]) == 2
    assert f"method.{choice} = 'mine.py:Mine' would run code" in capsys.readouterr().err
    assert not Path("ran").exists()
    assert main(["run", "--config", "c.yaml", "--allow-code"]) == 2  # it is read, and then no such choice
    assert Path("ran").exists()


def test_code_that_a_file_names_runs_only_where_somebody_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(BUILDER)
    Path("c.yaml").write_text("model: {name: 'net.py:build'}\ndata: {clients: 3}\ntraining: {rounds: 1}\n")
    marker = Path("ran")

    def refused(*arguments):
        assert main([*arguments]) == 2
        assert (
            "model.name = 'net.py:build' would run code; if you trust it, add --allow-code" in capsys.readouterr().err
        )
        assert not marker.exists()

    refused("run", "fedavg", "--config", "c.yaml", "--out", "o")
    refused("compare", "fedavg", "ifca", "--config", "c.yaml")
    assert main(["run", "fedavg", "--config", "c.yaml", "--out", "o", "--allow-code"]) == 0
    assert marker.exists()

    marker.unlink()
    np.savez("new.npz", x=np.zeros((3, 8, 8, 1), np.float32), y=np.array([0, 1, 2]))
    refused("assign", "o", "--data", "new.npz")
    refused("export", "o", "--out", "m.safetensors")
    refused("resume", "o")
    with pytest.raises(InputError, match="would run code"):
        hcfl.load("o")
    assert main(["report", "o"]) == 0  # it shows what is there, and builds nothing
    assert not marker.exists()
    assert main(["assign", "o", "--data", "new.npz", "--allow-code"]) == 0
    assert marker.exists()
    marker.unlink()
    from hcfl.models.zoo import mlp

    assert hcfl.load("o", model=lambda shape, classes: mlp(shape, classes, (8,))).clusters == (0,)
    assert not marker.exists()


@pytest.mark.parametrize("command", [["data"], ["report"], ["resume"], ["export"], ["assign", "--data", "x.npz"]])
def test_names_that_no_file_can_have(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([command[0], "x" * 300, *command[1:]]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"shape": [-1, 8, 1]}, "is damaged .ValueError: inputs of shape"),
        ({"shape": [0, 8, 1]}, "is damaged .ValueError: inputs of shape"),
        ({"shape": [10**9, 8, 1]}, "its weights do not fit the model"),
        ({"stored": "load"}, "is damaged .ValueError: inputs of shape .* and type load"),
        ({"train": [3]}, "is damaged .ValueError: tables that are not of 3 clients"),
        ({"held_out": [-1, 2, 2]}, "is damaged .ValueError: tables that are not of 3 clients"),
    ],
)
def test_a_folder_that_describes_no_federation(changes, sentence, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    hcfl.run("fedavg", clients=3, rounds=1, out=tmp_path / "o")
    path = tmp_path / "o" / "checkpoint" / "newcomers.safetensors"
    with safe_open(path, "pt") as file:
        tree = json.loads(file.metadata()["hcfl"])
    tree["state"]["outline"] |= changes
    save_file(load_file(path), path, metadata={"hcfl": json.dumps(tree)})
    checksum.write(path)  # as an attacker could
    with pytest.raises(InputError, match=sentence):
        hcfl.load(tmp_path / "o")


def test_numbers_of_samples_take_no_memory():
    from hcfl.data.client_rows import ClientRows

    assert [len(rows) for rows in ClientRows.only_sizes([3, 0, 10**15])] == [3, 0, 10**15]
