"""Parquet files in the layout of the Hugging Face hub: encoded images, class indices, class names in the metadata."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl.data.readers.available_memory import check_memory
from hcfl.data.readers.cache import Entry
from hcfl.data.readers.images import OVERHEAD, Chunk, decode_chunk, join
from hcfl.data.readers.parallel import each, processes
from hcfl.errors import InputError
from hcfl.regular_files import check_regular

SPLIT = re.compile(r"(?<![a-z])(train|test|valid|val|dev)(?:ing|ation)?(?![a-z])")
LABELS = ("label", "labels", "fine_label")
"""Names of the label column, by preference; else it is the one that the metadata describe as classes."""


@dataclass(frozen=True)
class Part:
    """One file and its columns."""

    path: Path
    rows: int
    groups: int
    image: str
    label: str
    classes: tuple[str, ...] | None
    test: bool


def files(folder: Path) -> list[Path]:
    """Return the parquet files in a folder and its sub-folders."""
    found = sorted(folder.rglob("*.parquet"))
    for path in found:
        check_regular(path)
    return [path for path in found if path.is_file()]


def read(folder: Path, paths: list[Path], resize: int | None, workers: int | None = None) -> Entry:
    """Decode the images of parquet files, training ones first."""
    test = test_files(folder, paths)
    parts = sorted((_part(path, path in test) for path in paths), key=lambda part: (part.test, part.path))
    for part in parts:
        if part.classes != parts[0].classes:
            raise InputError(f"{part.path}: its classes are not those of {parts[0].path}")
    parts = [part for part in parts if part.rows]
    if not any(not part.test for part in parts):
        raise InputError(f"{folder}: its parquet files hold no training samples")
    total = sum(part.rows for part in parts)
    check_memory(str(folder), total * np.dtype(np.int64).itemsize)
    labels, side_by_side = list[NDArray[np.int64]](), processes(total, workers)

    def chunks() -> Any:
        tasks = [(part, group, resize, side_by_side) for part in parts for group in range(part.groups)]
        for chunk, chunk_labels in each(_row_group, tasks, side_by_side):
            labels.append(chunk_labels)
            if chunk is not None:
                yield chunk

    x = join(chunks(), total)
    y = np.concatenate(labels)
    limit = total if parts[0].classes is None else len(parts[0].classes)
    if y.min() < 0 or y.max() >= limit:
        bad = int(np.flatnonzero((y < 0) | (y >= limit))[0])
        owner = parts[int(np.searchsorted(np.cumsum([part.rows for part in parts]), bad, side="right"))]
        raise InputError(f"{owner.path}: has label {y[bad]}, but labels must be 0 to {limit - 1}")
    classes = parts[0].classes or tuple(str(label) for label in range(int(y.max()) + 1))
    arrays: dict[str, NDArray[Any]] = {"x": x, "y": y}
    if any(part.test for part in parts):
        arrays["test"] = np.arange(total) >= sum(part.rows for part in parts if not part.test)
    return Entry(arrays, {"classes": classes})


def test_files(folder: Path, paths: list[Path]) -> set[Path]:
    """Return the files of the test set by their or their folders' names; without any, those of the validation set."""
    splits = {}
    for path in paths:
        words = path.relative_to(folder).with_suffix("").parts
        found = [match for word in reversed(words) for match in reversed(SPLIT.findall(word.lower()))]
        splits[path] = found[0] if found else "train"
    named = {path for path, split in splits.items() if split == "test"}
    return named or {path for path, split in splits.items() if split != "train"}


def _part(path: Path, test: bool) -> Part:
    file = _open(path)
    schema = file.schema_arrow
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        named = {name: f["names"] for name, f in features.items() if isinstance(f, dict) and "names" in f}
    except (KeyError, ValueError, TypeError, AttributeError):
        named = {}
    images = [field.name for field in schema if str(field.type).startswith("struct<") and _has_bytes(field.type)]
    found = [name for name in LABELS if name in schema.names] or list(named)
    if len(images) != 1 or not found or not str(schema.field(found[0]).type).startswith(("int", "uint")):
        raise InputError(
            f"{path}: must have one column of images (struct of bytes and path) and a column `label` of class indices, "
            f"but has {', '.join(f'{field.name} ({field.type})' for field in schema)}"
        )
    names = named.get(found[0])
    classes = None if names is None else tuple(str(name) for name in names)
    return Part(path, file.metadata.num_rows, file.metadata.num_row_groups, images[0], found[0], classes, test)


def _has_bytes(kind: Any) -> bool:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    return any(field.name == "bytes" and str(field.type) in ("binary", "large_binary") for field in fields)


def _open(path: Path, dictionaries: Sequence[str] = ()) -> Any:
    """Open a file; columns named in `dictionaries` are read as their different values and an index for each row.

    So a value that a file holds once, for a million rows, is once in memory, too.
    """
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise InputError(f"{path}: reading parquet files needs pyarrow; pip install 'hcfl[images]'") from None
    try:
        return ParquetFile(path, read_dictionary=list(dictionaries))
    except MemoryError:
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise InputError(f"{path}: cannot be read as parquet ({_reason(error)})") from None


def _row_group(part: Part, group: int, resize: int | None, side_by_side: int) -> tuple[Chunk | None, NDArray[np.int64]]:
    try:
        columns = [f"{part.image}.bytes", part.label]
        file = _open(part.path, columns[:1])
        check_memory(str(part.path), _unpacked(file.metadata.row_group(group), columns) * side_by_side)
        table = file.read_row_group(group, columns=columns)
        encoded = [data for chunk in table.column(part.image).chunks for data in _values(chunk.field("bytes"))]
        labels = table.column(part.label).to_numpy()
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged file can raise nearly anything
        raise InputError(f"{part.path}: cannot be read as parquet ({_reason(error)})") from None
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{part.path}: some of its labels are missing")
    images = [(f"{part.path}, image {i} of row group {group}", data or b"") for i, data in enumerate(encoded)]
    return (decode_chunk(images, resize, side_by_side) if images else None), labels.astype(np.int64)


def _unpacked(group: Any, columns: Sequence[str]) -> int:
    """Return the bytes that columns of a row group take in memory, by its metadata: pyarrow's, and Python's copies."""
    chunks = [group.column(i) for i in range(group.num_columns)]
    sizes = [int(chunk.total_uncompressed_size) for chunk in chunks if chunk.path_in_schema in columns]
    return 2 * sum(sizes) + OVERHEAD * int(group.num_rows)


def _values(column: Any) -> list[bytes | None]:
    """Return the value of each row of a dictionary column; rows with the same value share it."""
    values = column.dictionary.to_pylist()
    return [None if index is None else values[index] for index in column.indices.to_pylist()]


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
