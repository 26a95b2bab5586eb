"""A folder of images with one sub-folder for each class, or `train` and `test` folders with such sub-folders."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hcfl.data.readers.cache import Entry
from hcfl.data.readers.images import CHUNK, FORMATS, Chunk, check_all, decode_chunk, join
from hcfl.data.readers.parallel import each, processes
from hcfl.errors import InputError
from hcfl.regular_files import check_regular

TRAIN, TEST = ("train", "training"), ("test", "testing", "val", "valid", "validation")


@dataclass(frozen=True)
class Listing:
    """The images of a folder, training ones first."""

    folder: Path
    classes: tuple[str, ...]
    files: list[Path]
    labels: list[int]
    test: int
    """How many of the files, the last ones, are the test set."""


def listing(folder: Path) -> Listing:
    """List a folder's images by class; a folder without one sub-folder for each class is refused."""
    below = {path.name.lower(): path for path in _folders(folder)}
    train = next((below[name] for name in TRAIN if name in below), None)
    test = next((below[name] for name in TEST if name in below), None)
    roots = [folder] if train is None else [train] if test is None else [train, test]
    classes = tuple(path.name for path in _folders(roots[0]))
    if len(classes) < 2:
        raise InputError(f"{roots[0]}: must have a sub-folder of images for each of at least 2 classes")
    files, labels, counts = list[Path](), list[int](), []
    for root in roots:
        found = tuple(path.name for path in _folders(root))
        if found != classes:
            odd = sorted(set(found) ^ set(classes))[0]
            raise InputError(f"{root}: its classes are not those of {roots[0]}, {odd} is only in one of them")
        before = len(files)
        for label, name in enumerate(classes):
            images = sorted(path for path in (root / name).iterdir() if _is_image(path))
            if not images:
                raise InputError(f"{root / name}: the folder of a class has no images in it")
            files += images
            labels += [label] * len(images)
        counts.append(len(files) - before)
    return Listing(folder, classes, files, labels, counts[1] if len(counts) > 1 else 0)


def read(found: Listing, resize: int | None, workers: int | None = None) -> Entry:
    """Decode the images of a folder."""
    total = len(found.files)
    check_all(str(found.files[0]), found.files[0], total, resize)
    side_by_side = processes(total, workers)
    tasks = [(found.files[at : at + CHUNK], resize, side_by_side) for at in range(0, total, CHUNK)]
    arrays: dict[str, NDArray[Any]] = {
        "x": join(each(_chunk, tasks, side_by_side), total),
        "y": np.array(found.labels, dtype=np.int64),
    }
    if found.test:
        arrays["test"] = np.arange(total) >= total - found.test
    return Entry(arrays, {"classes": found.classes})


def _chunk(files: list[Path], resize: int | None, side_by_side: int) -> Chunk:
    return decode_chunk([(str(path), path) for path in files], resize, side_by_side)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _is_image(path: Path) -> bool:
    Image.init()
    if path.name.startswith(".") or Image.EXTENSION.get(path.suffix.lower()) not in FORMATS:
        return False
    check_regular(path)
    return path.is_file()
