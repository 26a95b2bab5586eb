"""Bring-your-own arrays: what works, and what is refused with which sentence."""

import numpy as np
import pytest

from hcfl.config import DataConfig
from hcfl.data import Federation
from hcfl.data.sources import check_arrays, read, read_npz
from hcfl.errors import InputError

Y = np.array([0, 1, 2, 0, 1, 2])


def ones(*shape, dtype=np.float32):
    return np.ones((6, *shape), dtype)


@pytest.mark.parametrize(
    ("x", "kind", "shape"),
    [
        (ones(5), "vector", (5,)),
        (ones(9, 9), "image", (9, 9, 1)),
        (ones(9, 7, dtype=np.uint8), "image", (9, 7, 1)),
        (ones(9, 7), "series", (9, 7)),
        (ones(9, 7, 3), "image", (9, 7, 3)),
    ],
)
def test_every_kind_of_input_is_recognised(x, kind, shape):
    samples = check_arrays("mine", x, Y)
    said = check_arrays("mine", x, Y, kind=kind)
    assert samples.x.shape[1:] == said.x.shape[1:] == shape
    assert samples.x.dtype == (np.uint8 if x.dtype == np.uint8 else np.float32)


def test_the_kind_can_be_said():
    assert check_arrays("mine", ones(9, 9), Y, kind="series").x.shape == (6, 9, 9)
    with pytest.raises(InputError, match=r"data.kind = vector: mine has x of shape \(6, 9, 9\)"):
        check_arrays("mine", ones(9, 9), Y, kind="vector")


def test_labels_may_be_names_or_whole_floats():
    samples = check_arrays("mine", ones(5), np.array(["cat", "ant", "bee", "cat", "ant", "bee"]))
    assert samples.class_names == ("ant", "bee", "cat")
    assert samples.y.tolist() == [2, 0, 1, 2, 0, 1]
    assert check_arrays("mine", ones(5), Y.astype(float)).y.tolist() == Y.tolist()


NAN = ones(5)
NAN[3, 2] = np.nan

BAD = {
    "x of one axis": ({"x": np.ones(6), "y": Y}, r"x has shape \(6,\)"),
    "x without values": ({"x": ones(0), "y": Y}, "holds no values"),
    "another number of labels": ({"x": ones(5), "y": Y[:4]}, r"y has shape \(4,\), but x has 6 samples"),
    "NaN pixels": ({"x": NAN, "y": Y}, "NaN, infinite or too large values in 1 of 6 samples, first in sample 3"),
    "negative labels": ({"x": ones(5), "y": Y - 1}, "labels from -1 to 1"),
    "labels out of range": ({"x": ones(5), "y": Y * 50}, "labels from 0 to 100"),
    "broken labels": ({"x": ones(5), "y": Y + 0.5, "task": "classification"}, "labels are whole numbers"),
    "one class": ({"x": ones(5), "y": Y * 0}, "single class"),
    "text as x": ({"x": np.full((6, 5), "a"), "y": Y}, "numbers are needed"),
    "channels first": ({"x": ones(3, 32, 32), "y": Y}, r"x.transpose\(0, 2, 3, 1\)"),
    "clients of another length": ({"x": ones(5), "y": Y, "client": Y[:3]}, "client has shape"),
    "clients as floats": ({"x": ones(5), "y": Y, "client": Y / 2}, "client has type"),
    "concepts without clients": ({"x": ones(5), "y": Y, "concept": Y}, "concept is given without client"),
    "a test mask of other values": ({"x": ones(5), "y": Y, "test": Y}, "test must be true or false"),
    "everything a test set": ({"x": ones(5), "y": Y, "test": Y >= 0}, "test marks 6 of 6"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_arrays_are_refused_with_their_own_sentence(case):
    arrays, words = BAD[case]
    with pytest.raises(InputError, match=words):
        check_arrays("mine", **arrays)


def test_npz_files_are_read_without_objects(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=ones(5), y=Y, client=np.array(list("aabbcc")), test=np.array([0, 0, 0, 0, 1, 1]))
    samples = read(DataConfig(source=str(path)))
    assert samples.name == "mine.npz"
    assert samples.test.tolist() == [False] * 4 + [True] * 2
    np.savez(path, x=ones(5), y=np.array([{}] * 6, dtype=object))
    with pytest.raises(InputError, match="without objects"):
        read_npz(path, "auto")


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.write_bytes(b"PK rubbish"), "cannot be read"),
        (lambda path: np.savez(path, x=ones(5)), "has no array 'y', only x"),
        (lambda path: np.savez(path, x=ones(5), y=Y, labels=Y), "array 'labels' is not one of"),
    ],
)
def test_files_that_are_not_what_is_needed(tmp_path, write, words):
    path = tmp_path / "mine.npz"
    write(path)
    with pytest.raises(InputError, match=words):
        read_npz(path, "auto")


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, x=ones(50, 50), y=Y)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 997):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            read_npz(path, "auto")


def test_unknown_sources_are_named():
    with pytest.raises(
        InputError, match=r"data.source = 'mnist': must be digits, cifar10, .*there is none of this name"
    ):
        read(DataConfig(source="mnist"))


@pytest.mark.parametrize("missing", ["nan", "None", "", " NA "])
def test_a_missing_label_is_no_class(missing):
    x, y = np.zeros((6, 2), dtype=np.float32), np.array(["a", "b", "a", missing, "b", "a"])
    with pytest.raises(InputError, match=r"y\[3\] = '.*', a missing label, as are 1 of 6; leave out samples"):
        Federation.from_arrays(x, y, client=np.arange(6) % 2)
