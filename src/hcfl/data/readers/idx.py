"""The four files of MNIST and its relatives, as their authors distribute them."""

import gzip
import zlib
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcfl.data.readers.available_memory import check_memory
from hcfl.data.readers.cache import Entry
from hcfl.errors import InputError
from hcfl.regular_files import check_regular

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def files(folder: Path) -> list[Path]:
    """Return the four files, compressed or not; an empty list where some are missing."""
    candidates = [path for name in FILES for path in (folder / f"{name}.gz", folder / name)]
    for path in candidates:
        check_regular(path)
    found = [path for path in candidates if path.is_file()]
    return found if len(found) == len(FILES) else []


def read(paths: list[Path]) -> Entry:
    """Read images and labels of train and test."""
    train_x, train_y, test_x, test_y = (_array(path) for path in paths)
    for images, labels, path in ((train_x, train_y, paths[1]), (test_x, test_y, paths[3])):
        if len(images) != len(labels):
            raise InputError(f"{path}: has {len(labels)} labels, but there are {len(images)} images")
    if train_x.shape[1:] != test_x.shape[1:]:
        raise InputError(f"{paths[2]}: its images have another size than those of {paths[0]}")
    y = np.concatenate([train_y, test_y]).astype(np.int64)
    fashion = len(np.unique(y)) == 10 and "fashion" in paths[0].parent.name.lower()
    classes = FASHION if fashion else tuple(str(label) for label in range(int(y.max()) + 1))
    test = np.arange(len(y)) >= len(train_y)
    return Entry({"x": np.concatenate([train_x, test_x])[..., None], "y": y, "test": test}, {"classes": classes})


def _array(path: Path) -> NDArray[np.uint8]:
    """Read one file: two zeros, the type (8 = bytes), the number of axes, their lengths, the values."""
    axes = 3 if "idx3" in path.name else 1
    wrong = f"{path}: is not a complete idx file of bytes with {axes} axes"
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * axes)
            if header[:4] != bytes((0, 0, 8, axes)) or len(header) != 4 + 4 * axes:
                raise InputError(wrong)
            shape = np.frombuffer(header[4:], ">u4").tolist()
            check_memory(str(path), prod(shape))
            data = file.read(prod(shape) + 1)  # one more: what is too long is not complete either
    except (OSError, EOFError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{path}: cannot be read ({reason})") from None
    if len(data) != prod(shape) or 0 in shape:
        raise InputError(wrong)
    return np.frombuffer(data, np.uint8).reshape(shape)
