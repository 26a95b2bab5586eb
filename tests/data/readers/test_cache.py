"""The cache: whole or not at all, checked, mapped, and never more than a convenience."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hcfl.data.readers import cache
from hcfl.data.readers.cache import Entry


class Maker:
    """Counts how often the entry is made."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return Entry({"x": np.arange(12).reshape(3, 4), "test": np.array([True, False])}, {"classes": ["a", "b"]})


def test_an_entry_is_made_once_and_mapped_afterwards(tmp_path):
    make = Maker()
    for _ in range(2):
        entry, notes = cache.get(tmp_path, "one", make)
        assert notes == ()
        assert isinstance(entry.arrays["x"], np.memmap)
        assert entry.arrays["x"].tolist() == np.arange(12).reshape(3, 4).tolist()
        assert entry.arrays["test"].tolist() == [True, False]
        assert entry.facts == {"classes": ["a", "b"]}
    assert make.calls == 1
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_what_happens_in_memory_does_not_reach_the_files(tmp_path):
    make = Maker()
    cache.get(tmp_path, "one", make)[0].arrays["x"][:] = 0
    entry, notes = cache.get(tmp_path, "one", make)
    assert entry.arrays["x"][2, 3] == 11
    assert notes == ()


def flip(folder):
    data = bytearray((folder / "x.npy").read_bytes())
    data[-1] ^= 1
    (folder / "x.npy").write_bytes(data)


def rewrite(path, old, new):
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


DAMAGE = {
    "one bit": flip,
    "cut": lambda folder: os.truncate(folder / "x.npy", 100),
    "empty": lambda folder: os.truncate(folder / "x.npy", 0),
    "array gone": lambda folder: (folder / "test.npy").unlink(),
    "facts gone": lambda folder: (folder / cache.FACTS).unlink(),
    "facts cut": lambda folder: os.truncate(folder / cache.FACTS, 5),
    "damaged header": lambda folder: rewrite(folder / "x.npy", b"descr", b"de(cr"),
    "unlike facts": lambda folder: rewrite(folder / cache.FACTS, b'"facts"', b'"pacts"'),
    "no arrays": lambda folder: (folder / cache.FACTS).write_text('{"checksum": 0, "checksums": {}, "facts": {}}'),
    "other facts": lambda folder: (folder / cache.FACTS).write_text("[]"),
    "another array": lambda folder: np.save(folder / "x.npy", np.arange(12).reshape(4, 3)),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_entry_is_made_anew_with_a_note(tmp_path, case):
    make = Maker()
    cache.get(tmp_path, "one", make)
    DAMAGE[case](tmp_path / "one")
    entry, notes = cache.get(tmp_path, "one", make)
    assert make.calls == 2
    assert entry.arrays["x"].tolist() == np.arange(12).reshape(3, 4).tolist()
    assert notes == (f"the cache {tmp_path / 'one'} was damaged and is made anew",)
    assert cache.get(tmp_path, "one", make)[1] == ()


def test_what_raises_in_the_middle_leaves_nothing(tmp_path, monkeypatch):
    def fail(path, *arguments, **options):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        cache.get(tmp_path, "one", Maker())
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
from pathlib import Path
import numpy as np
from hcfl.data.readers import cache
write = np.save
def slow(path, *arguments, **options):
    write(path, *arguments, **options)
    print("half", flush=True)
    time.sleep(60)
np.save = slow
cache.get(Path(sys.argv[1]), "one", lambda: cache.Entry({"x": np.arange(9), "y": np.arange(9)}, {}))
"""


def test_who_is_killed_in_the_middle_leaves_no_entry(tmp_path):
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    (partial,) = tmp_path.iterdir()
    assert partial.name.startswith(cache.PARTIAL)
    make = Maker()
    assert cache.get(tmp_path, "one", make)[1] == ()
    assert make.calls == 1
    assert partial.exists(), "somebody might still be writing it"
    long_ago = time.time() - 2 * cache.ABANDONED
    os.utime(partial, (long_ago, long_ago))
    cache.get(tmp_path, "two", make)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_of_two_who_make_the_same_the_first_wins(tmp_path):
    def slower():
        cache.get(tmp_path, "one", Maker())
        return Entry({"x": np.zeros(1)}, {})

    entry, notes = cache.get(tmp_path, "one", slower)
    assert entry.arrays["x"].shape == (3, 4)
    assert notes == ()
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("")
    entry, notes = cache.get(tmp_path / "file" / "cache", "one", Maker())
    assert entry.arrays["x"].shape == (3, 4)
    assert "one cannot be kept in the cache" in notes[0]


def test_the_key_of_files_changes_with_any_of_them(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text("1")
    before = cache.files_identity(tmp_path, paths, 32)
    assert cache.files_identity(tmp_path, paths, 32) == before
    assert cache.files_identity(tmp_path, paths, 64) != before
    assert cache.files_identity(tmp_path, paths[:1], 32) != before
    os.utime(paths[1], (1, 1))
    touched = cache.files_identity(tmp_path, paths, 32)
    assert touched != before
    paths[1].write_text("22")
    os.utime(paths[1], (1, 1))
    assert cache.files_identity(tmp_path, paths, 32) not in (before, touched)


def test_arrays_count_with_their_content():
    one = np.arange(4)
    assert cache.identity("a", one) == cache.identity("a", np.arange(4))
    others = [one[::-1], one.astype(np.int32), one.reshape(2, 2), one[:3]]
    assert len({cache.identity("a", array) for array in [one, *others]}) == 5


def test_where_the_cache_is(monkeypatch, tmp_path):
    monkeypatch.setenv("HCFL_CACHE", "/e")
    assert cache.location("/s") == Path("/s")
    assert cache.location(None) == Path("/e")
    monkeypatch.delenv("HCFL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.location(None) == Path("/x/hcfl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.location(None) == tmp_path / ".cache" / "hcfl"
