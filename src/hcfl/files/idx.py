"""The four files of MNIST and its relatives, as their authors distribute them."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hcfl.errors import InputError
from hcfl.files.cache import Entry

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")

FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


def files(folder: Path) -> list[Path]:
    """Return the four files, compressed or not; an empty list where some are missing."""
    found = [path for name in FILES for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
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
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from None
    axes = 3 if "idx3" in path.name else 1
    shape = np.frombuffer(data[4 : 4 + 4 * axes], ">u4").tolist()
    if data[:4] != bytes((0, 0, 8, axes)) or len(data) != 4 + 4 * axes + int(np.prod(shape)) or 0 in shape:
        raise InputError(f"{path}: is not a complete idx file of bytes with {axes} axes")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)
