"""Reads and checks samples: scikit-learn's digits, image files, or the user's own arrays and tables."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcfl.config import DataConfig
from hcfl.data import locate
from hcfl.data.answers import Answers, fit_multi_label, fit_regression, of_classes, of_labels, of_numbers
from hcfl.data.readers import cache, idx, image_folder, npz, parquet
from hcfl.data.readers.available_memory import check_memory
from hcfl.data.samples import Samples
from hcfl.data.tables import is_table, read_table
from hcfl.data.tables.samples import TABLE_SETTINGS, samples_of
from hcfl.errors import InputError
from hcfl.models.tasks import AnyTask, MultiLabel, Regression

Kind = Literal["image", "series", "vector"]


def read(config: DataConfig, whole: bool = False) -> Samples:
    """Read a source by its name, file or folder; `whole` also where an array could be a map of its file."""
    source, kind = config.source, config.kind
    if is_table(source, config.label):
        return samples_of(read_table(source), config, Path(source).name)
    for name in TABLE_SETTINGS:
        if (value := getattr(config, name)) is not None and not isinstance(value, dict):
            raise InputError(f"data.{name} = {value!r}: is a setting of tables, but {source} is none")
    if config.resize is not None and (source == "digits" or source.endswith(".npz")):
        raise InputError(f"data.resize = {config.resize}: {source} are arrays; only image files can be resized")
    if source.endswith(".npz"):
        return read_npz(Path(source), kind, config.task, config.scale, config.cache_dir, whole)
    if kind not in ("auto", "image"):
        raise InputError(f"data.kind = {kind}: {source} are images")
    if config.task not in ("auto", "classification"):
        raise InputError(f"data.task = {config.task}: the labels of {source} are classes")
    if source == "digits":
        from sklearn.datasets import load_digits  # takes a second: only where it is used

        digits = load_digits()
        return check_arrays("digits", digits.images.astype(np.float32), digits.target, kind="image")
    return read_images(locate.find(config), config)


def read_images(folder: Path, config: DataConfig) -> Samples:
    """Read a folder of parquet files, idx files or images; decoded the first time, from the cache afterwards."""
    name = folder.resolve().name
    try:
        paths, make = _reader(folder, config.resize)
        identity = cache.files_identity(folder, paths, config.resize)
    except OSError as error:
        raise InputError(f"data.source = {str(folder)!r}: cannot be read ({error.strerror or error})") from None
    entry, notes = cache.get(cache.location(config.cache_dir), f"{name}-{identity}", make)
    return Samples(
        name=name,
        x=entry.arrays["x"],
        y=_two_classes(name, entry.arrays["y"]),
        class_names=tuple(entry.facts["classes"]),
        test=entry.arrays.get("test"),
        identity=identity,
        notes=notes,
    )


def _reader(folder: Path, resize: int | None) -> tuple[list[Path], Callable[[], cache.Entry]]:
    """Return the files of a folder, and the function that decodes them."""
    if paths := parquet.files(folder):
        return paths, partial(parquet.read, folder, paths, resize)
    if paths := idx.files(folder):
        if resize is not None:
            raise InputError(f"data.resize = {resize}: {folder} are arrays; only image files can be resized")
        return paths, partial(idx.read, paths)
    found = image_folder.listing(folder)
    return found.files, partial(image_folder.read, found, resize)


def read_npz(
    path: Path,
    kind: str,
    task: str = "auto",
    scale: str = "standardise",
    cache_dir: str | None = None,
    whole: bool = False,
) -> Samples:
    """Read a user's own arrays."""
    arrays = npz.read(path, cache_dir=cache_dir, whole=whole)
    known = ("x", "y", "client", "concept", "test")
    for key in ("x", "y"):
        if key not in arrays:
            raise InputError(f"data.source = {str(path)!r}: has no array {key!r}, only {', '.join(arrays) or 'none'}")
    for key in arrays:
        if key not in known:
            raise InputError(f"data.source = {str(path)!r}: array {key!r} is not one of {', '.join(known)}")
    return check_arrays(path.name, **arrays, kind=kind, task=task, scale=scale)


def check_arrays(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any],
    client: NDArray[Any] | None = None,
    concept: NDArray[Any] | None = None,
    test: NDArray[Any] | None = None,
    kind: str = "auto",
    task: str = "auto",
    scale: str = "standardise",
) -> Samples:
    """Refuse arrays that cannot be trained on, with the reason; return the others ready to use.

    With `scale` none, whole numbers stay whole numbers.
    """
    x, y = np.asarray(x), _as_text(np.asarray(y))
    if x.ndim not in (2, 3, 4):
        raise InputError(f"{name}: x has shape {x.shape}, but (N,D), (N,T,D), (N,H,W) or (N,H,W,C) is needed")
    if 0 in x.shape:
        raise InputError(f"{name}: x has shape {x.shape}, which holds no values")
    answers, notes = _answers(name, y, len(x), task)
    return Samples(
        name=name,
        x=_inputs(name, x, _kind(name, x, kind), whole=scale == "none" and x.dtype.kind in "iu"),
        y=answers.bins,
        class_names=answers.names,
        client=_per_sample(name, "client", client, len(x)),
        concept=_concept(name, concept, client, len(x)),
        test=_test_mask(name, test, len(x)),
        notes=notes,
        task=answers.task,
        targets=answers.targets,
    )


def _answers(name: str, y: NDArray[Any], samples: int, task: str) -> tuple[Answers, tuple[str, ...]]:
    """Return what is predicted: classes, numbers that are no whole ones, or (N, labels) of zeros and ones."""
    chosen = task if task != "auto" else _task_of(y)
    if chosen != "multi-label" and y.shape != (samples,):
        raise InputError(f"{name}: y has shape {y.shape}, but x has {samples} samples, so ({samples},) is needed")
    told = (f"{name}: y has {_LOOKS[chosen]}, so the task is {chosen}",) if chosen != "classification" else ()
    if chosen == "regression":
        values = _numbers(name, y)
        return of_numbers(fit_regression(f"{name}: y", values), values), told
    if chosen == "multi-label":
        values = _labels_of(name, y, samples)
        columns = tuple(f"label {number}" for number in range(values.shape[1]))
        return of_labels(fit_multi_label(columns, values), values), told
    labels, class_names = _labels(name, y)
    return of_classes(class_names, labels), ()


_LOOKS = {"regression": "numbers", "multi-label": "a column for each label"}


def _task_of(y: NDArray[Any]) -> str:
    if y.ndim == 2:
        return "multi-label"
    fractions = y.dtype.kind == "f" and np.isfinite(y).all() and not (y == np.floor(y)).all()
    return "regression" if fractions and y.ndim == 1 else "classification"


def _numbers(name: str, y: NDArray[Any]) -> NDArray[np.float64]:
    if y.dtype.kind not in "iufb" or not np.isfinite(y).all():
        raise InputError(f"{name}: y must have finite numbers, because the task is regression")
    return y.astype(np.float64)


def _labels_of(name: str, y: NDArray[Any], samples: int) -> NDArray[np.float64]:
    if y.ndim != 2 or len(y) != samples or y.dtype.kind not in "iufb" or not np.isin(y, (0, 1)).all():
        raise InputError(f"{name}: y of several labels must be ({samples}, labels), of zeros and ones")
    return y.astype(np.float64)


def check_more(
    name: str,
    x: NDArray[Any],
    y: NDArray[Any] | None,
    shape: tuple[int, ...],
    stored: str,
    class_names: tuple[str, ...],
    task: AnyTask,
) -> tuple[NDArray[Any], Answers | None]:
    """Refuse samples that are not like those of a federation that is known; return the others ready to use."""
    kinds: dict[int, Kind] = {1: "vector", 2: "series", 3: "image"}
    kind = kinds[len(shape)]
    looks_right = x.ndim in AXES[kind] and 0 not in x.shape
    inputs = _inputs(name, x, kind, whole=stored == "int64") if looks_right else x
    if inputs.shape[1:] != shape or not looks_right:
        raise InputError(f"{name}: x has shape {x.shape}, but the run's inputs are (N, {', '.join(map(str, shape))})")
    if stored == "uint8" and inputs.dtype != np.uint8 and inputs.max() <= 1:
        raise InputError(f"{name}: x has values up to {inputs.max():g}, but the run's images are bytes from 0 to 255")
    if y is None:
        return inputs, None
    if isinstance(task, MultiLabel):
        return inputs, of_labels(task, _labels_of(name, y, len(x)))
    if y.shape != (len(x),):
        raise InputError(f"{name}: y has shape {y.shape}, but x has {len(x)} samples, so ({len(x)},) is needed")
    if isinstance(task, Regression):
        return inputs, of_numbers(task, _numbers(name, y))
    y = _as_text(y)
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    index = {label: number for number, label in enumerate(class_names)}
    for label in np.unique(y):
        if str(label) not in index:
            shown = ", ".join(class_names[:20]) + (", …" if len(class_names) > 20 else "")
            raise InputError(f"{name}: y has the label {str(label)!r}, but the run's classes are {shown}")
    return inputs, of_classes(class_names, np.array([index[str(label)] for label in y], dtype=np.int64))


def _as_text(values: NDArray[Any]) -> NDArray[Any]:
    """Turn names stored as bytes, or as objects (as pandas does), into text."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8", "replace")
    if values.dtype == object and all(isinstance(value, str) for value in values.flat):
        return values.astype(str)
    return values


AXES: dict[Kind, tuple[int, ...]] = {"vector": (2,), "series": (3,), "image": (3, 4)}
"""How many axes x may have, samples included."""


def _kind(name: str, x: NDArray[Any], asked: str) -> Kind:
    for kind, axes in AXES.items():
        if kind == asked:
            if x.ndim not in axes:
                raise InputError(f"data.kind = {asked}: {name} has x of shape {x.shape}, which is not that")
            return kind
    if x.ndim == 2:
        return "vector"
    # (N,H,W) and (N,T,D) look alike: pixels are bytes, or square.
    return "image" if x.ndim == 4 or x.dtype == np.uint8 or x.shape[1] == x.shape[2] else "series"


def _inputs(name: str, x: NDArray[Any], kind: Kind, whole: bool = False) -> NDArray[Any]:
    if not (np.issubdtype(x.dtype, np.number) or x.dtype == np.bool_) or np.iscomplexobj(x):
        raise InputError(f"{name}: x has type {x.dtype}, but numbers are needed")
    if whole and x.dtype != np.uint8:
        x = _whole(name, x)
    elif x.dtype != np.uint8:
        x = _floats(name, x)
        bad = ~_finite(x)
        if bad.any():
            raise InputError(
                f"{name}: x has NaN, infinite or too large values in {bad.sum()} of {len(x)} samples, "
                f"first in sample {int(bad.argmax())}; all must be finite"
            )
    if kind == "image" and x.ndim == 4 and x.shape[1] in (1, 3) and x.shape[3] > 4:
        raise InputError(
            f"{name}: x has shape {x.shape}, which looks like (N,C,H,W), but channels come last: "
            "x.transpose(0, 2, 3, 1)"
        )
    return x[..., None] if kind == "image" and x.ndim == 3 else x


def _floats(name: str, x: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32; what is so already is not copied, and may be a map of a file."""
    if x.dtype == np.float32 and x.flags.writeable and x.flags.aligned:  # torch needs both
        return x
    check_memory(name, x.size * np.dtype(np.float32).itemsize)  # the copy
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


AT_ONCE = 1 << 24
"""How many values are looked at together."""


def _finite(x: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether all values of each sample are finite, (N,)."""
    rows = max(1, AT_ONCE // x[:1].size)
    parts = (x[start : start + rows] for start in range(0, len(x), rows))
    return np.concatenate([np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in parts])


def _whole(name: str, x: NDArray[Any]) -> NDArray[np.int64]:
    """Return whole numbers as int64; refuse fractions, and numbers that are too large."""
    check_memory(name, x.size * np.dtype(np.int64).itemsize)
    with np.errstate(invalid="ignore"):
        found = x.astype(np.int64)
    if not np.array_equal(found, x):
        raise InputError(f"{name}: x has values that are no whole numbers of 64 bits, but the run's inputs are")
    return found


MISSING = ("", "nan", "none", "null", "na", "n/a", "<na>")
"""Names that stand for a label that is not known; they are no class."""


def _labels(name: str, y: NDArray[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if y.dtype.kind == "U":
        missing = np.isin(np.char.lower(np.char.strip(y)), MISSING)
        if missing.any():
            first = int(np.flatnonzero(missing)[0])
            raise InputError(
                f"{name}: y[{first}] = {str(y[first])!r}, a missing label, as are {int(missing.sum())} of {len(y)}; "
                "leave out samples without a label"
            )
        names, labels = np.unique(y, return_inverse=True)
        return _two_classes(name, labels.astype(np.int64)), tuple(str(label) for label in names)
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.floor(y)).all():
        y = y.astype(np.int64)
    if y.dtype.kind not in "iu":
        raise InputError(f"{name}: y has type {y.dtype}, but labels are whole numbers from 0, or names")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= len(y):
        raise InputError(
            f"{name}: y has labels from {low} to {high}, but labels must be 0 to C−1 with fewer classes than samples"
        )
    return _two_classes(name, y.astype(np.int64)), tuple(str(label) for label in range(high + 1))


def _two_classes(name: str, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    if labels.max() < 1:
        raise InputError(f"{name}: y has a single class, but at least 2 are needed")
    return labels


def _per_sample(name: str, key: str, values: NDArray[Any] | None, samples: int) -> NDArray[Any] | None:
    if values is None:
        return None
    values = _as_text(np.asarray(values))
    if values.shape != (samples,):
        raise InputError(f"{name}: {key} has shape {values.shape}, but one value per sample, ({samples},), is needed")
    if values.dtype.kind not in "iubU":
        raise InputError(f"{name}: {key} has type {values.dtype}, but whole numbers or names are needed")
    return values


def _concept(name: str, concept: NDArray[Any] | None, client: NDArray[Any] | None, samples: int) -> NDArray[Any] | None:
    if concept is not None and client is None:
        raise InputError(f"{name}: concept is given without client, but concepts belong to clients")
    return _per_sample(name, "concept", concept, samples)


def _test_mask(name: str, test: NDArray[Any] | None, samples: int) -> NDArray[np.bool_] | None:
    mask = _per_sample(name, "test", test, samples)
    if mask is None:
        return None
    if mask.dtype.kind not in "iub" or not np.isin(mask, (0, 1)).all():
        raise InputError(f"{name}: test must be true or false for each sample")
    mask = mask.astype(bool)
    if not 0 < mask.sum() < samples:
        raise InputError(f"{name}: test marks {mask.sum()} of {samples} samples, but some of each kind are needed")
    return mask
