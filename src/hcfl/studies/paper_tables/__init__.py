"""The paper's tables as configurations: rows × columns of settings, beside the numbers that the paper prints."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal

from hcfl.config.yaml_files import read_yaml
from hcfl.errors import InputError

HERE = Path(__file__).parent

Scale = Literal["small", "paper"]

Settings = Mapping[str, Mapping[str, Any]]
"""Nested settings of a configuration: section → field → value."""


@dataclass(frozen=True)
class Row:
    """One method of a table."""

    label: str
    settings: Settings
    paper: Mapping[str, str]
    """The cells that name this row in `paper.csv`."""
    at: Literal["best", "best-val", "best-test"] = "best"
    """The round that is shown: the best round of each metric, as the paper prints, or one round for all metrics."""


@dataclass(frozen=True)
class Column:
    """One federation of a table."""

    label: str
    settings: Settings
    paper: Mapping[str, str]


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    title: str
    note: str
    paper: str
    metrics: tuple[str, ...]
    settings: Settings
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    quoted: tuple[Row, ...] = ()
    """Rows that the paper repeats from another table; they are shown and not run."""


def names() -> tuple[str, ...]:
    """Return the names of all tables."""
    return tuple(sorted(path.stem for path in HERE.glob("*.yaml") if path.stem != "small"))


def load(name: str) -> Table:
    """Read a table by its name."""
    if name not in names():
        close = get_close_matches(name, names(), n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"table = {name!r}: must be one of {', '.join(names())}{hint}")
    values = read_yaml(HERE / f"{name}.yaml", "table")
    columns = tuple(Column(label, **parts) for label, parts in values.pop("columns").items())
    rows = tuple(Row(label, **parts) for label, parts in values.pop("rows").items())
    quoted = tuple(Row(name, {}, {"method": name, "setting": ""}) for name in values.pop("quoted", ()))
    metrics, note = tuple(values.pop("metrics")), values.pop("note", "")
    return Table(name=name, note=note, metrics=metrics, columns=columns, rows=rows, quoted=quoted, **values)


def chosen_rows(table: Table, patterns: list[str]) -> tuple[Row, ...]:
    """Return the rows whose label matches one of the patterns (`*` stands for anything); without patterns, all."""
    if not patterns:
        return table.rows
    found = tuple(row for row in table.rows if any(_matches(row.label, pattern) for pattern in patterns))
    for pattern in patterns:
        if not any(_matches(row.label, pattern) for row in table.rows):
            labels = "; ".join(row.label for row in table.rows)
            raise InputError(f"--rows {pattern!r}: no row of {table.name} has this name; its rows are {labels}")
    return found


def _matches(label: str, pattern: str) -> bool:
    return fnmatch(label.lower(), f"*{pattern.lower()}*")


def settings_of(table: Table, row: Row, column: Column, scale: Scale) -> dict[str, dict[str, Any]]:
    """Return the nested settings of one cell: a row's settings win over its column's, and those over the table's."""
    sections: dict[str, dict[str, Any]] = {"data": {"test_on": "tenth"}}
    for part in (table.settings, column.settings, row.settings):
        for section, values in part.items():
            sections.setdefault(section, {}).update(values)
    if scale == "small":
        small = small_scale()
        sections["model"] = dict(small["model"])
        for section in ("data", "training"):
            sections.setdefault(section, {}).update(small[section])
    return sections


def small_scale() -> dict[str, dict[str, Any]]:
    """Return the settings of the small scale."""
    return read_yaml(HERE / "small.yaml", "scale")


def paper_value(table: Table, row: Row, column: Column, metric: str) -> float | None:
    """Return the number that the paper prints in a cell; None where it prints none."""
    wanted = {"table": table.paper, **column.paper, **row.paper, "metric": metric}
    for entry in _paper():
        if all(entry[key] == value for key, value in wanted.items()):
            return float(entry["value"])
    return None


def paper_class_table() -> list[list[int]]:
    """Return the paper's table of training samples by cluster and class."""
    found: dict[tuple[int, int], int] = {}
    for entry in _paper():
        if entry["metric"] == "samples":
            label, cluster = (int(number) for number in re.findall(r"class (\d+) cluster (\d+)", entry["setting"])[0])
            found[cluster, label] = int(float(entry["value"]))
    clusters, labels = (sorted({key[axis] for key in found}) for axis in (0, 1))
    return [[found[cluster, label] for label in labels] for cluster in clusters]


@cache
def _paper() -> list[dict[str, str]]:
    with (HERE / "paper.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
