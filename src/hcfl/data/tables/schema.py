"""How the rows of a table become numbers: fitted once, written into the run, and the same wherever it is applied.

A number stays a number, yes or no is 1 or 0, a category is one column of zeros and ones for each of its values, a date
is its day and its place in the year. A missing number takes the median; where values were missing when the schema was
fitted, a further column says so.
"""

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcfl.data.tables.columns import Kind, booleans, cleaned, dates, numbers, texts
from hcfl.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

YEAR = 365.2425


@dataclass(frozen=True)
class Column:
    """One input column, and how it becomes numbers."""

    name: str
    kind: Kind
    missing: float = 0.0
    """The share of missing values when the schema was fitted; above 0, a column of numbers says which are missing."""
    fill: float = 0.0
    """What a missing value is taken to be: the median; days since 1970 for dates; nothing for categories."""
    categories: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the numbers that it becomes."""
        if self.kind == "category":
            made = tuple(f"{self.name}={category}" for category in self.categories)
        elif self.kind == "date":
            made = (f"{self.name}: day", f"{self.name}: sin of year", f"{self.name}: cos of year")
        else:
            made = (self.name,)
        return (*made, f"{self.name}: missing") if self.missing else made

    def encode(self, values: "Series[Any]") -> tuple[NDArray[np.float32], int, int]:
        """Return numbers (rows, outputs), how many values were missing, and how many categories are not known."""
        values = cleaned(values)
        absent = values.isna().to_numpy()
        unseen = 0
        if self.kind == "category":
            positions = {category: at for at, category in enumerate(self.categories)}
            at = texts(values).map(positions).to_numpy(dtype=np.float64, na_value=np.nan)
            known = np.flatnonzero(~np.isnan(at))
            made = np.zeros((len(values), len(self.categories)))
            made[known, at[known].astype(int)] = 1
            unseen = int((np.isnan(at) & ~absent).sum())
        else:
            read = {"number": numbers, "boolean": booleans, "date": dates}[self.kind]
            filled = np.where(absent, self.fill, read(values))
            angle = 2 * np.pi * filled / YEAR
            made = np.stack([filled, np.sin(angle), np.cos(angle)] if self.kind == "date" else [filled], axis=1)
        if self.missing:
            made = np.concatenate([made, absent[:, None]], axis=1)
        return made.astype(np.float32), int(absent.sum()), unseen


@dataclass(frozen=True)
class Label:
    """What is predicted: the column, and its classes in order."""

    name: str
    classes: tuple[str, ...]

    def encode(self, values: "Series[Any]") -> NDArray[np.int64]:
        """Return the number of each row's class, −1 where the label is missing; refuse other classes."""
        values = cleaned(values)
        positions = {name: at for at, name in enumerate(self.classes)}
        found = texts(values).map(positions).to_numpy(dtype=np.float64, na_value=np.nan)
        strange = np.isnan(found) & values.notna().to_numpy()
        if strange.any():
            shown = ", ".join(self.classes[:20]) + (", …" if len(self.classes) > 20 else "")
            odd = texts(values)[strange].iloc[0]
            raise InputError(f"column {self.name!r}: has the label {odd!r}, but the classes are {shown}")
        return np.nan_to_num(found, nan=-1).astype(np.int64)


@dataclass(frozen=True)
class Encoded:
    """Rows of a table as numbers."""

    x: NDArray[np.float32]
    y: NDArray[np.int64] | None
    """−1 where a row has no label."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """Columns and label of a federation's tables; `hcfl data schema` writes one, all clients encode by it."""

    columns: tuple[Column, ...]
    label: Label
    rows: int = 0
    """How many rows it was fitted on."""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """For the user, from fitting; they are not kept."""

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the inputs of the network."""
        return tuple(name for column in self.columns for name in column.outputs)

    def encode(self, table: "DataFrame", where: str = "table") -> Encoded:
        """Turn a table into numbers; further columns are ignored, and the label may be missing."""
        found = list(map(str, table.columns))
        for column in self.columns:
            check_column(where, "the schema", column.name, found)
        parts, notes = [], []
        for column in self.columns:
            made, absent, unseen = column.encode(table[column.name])
            parts.append(made)
            if absent and not column.missing:
                notes.append(f"column {column.name!r}: {absent} missing values {_taken(column)}")
            if unseen:
                notes.append(
                    f"column {column.name!r}: {unseen} rows have a category that the schema does not know; it counts "
                    "as none"
                )
        y = self.label.encode(table[self.label.name]) if self.label.name in found else None
        return Encoded(np.concatenate(parts, axis=1), y, tuple(notes))

    def to_json(self) -> str:
        """Return it as text."""
        columns = [
            {
                "name": column.name,
                "kind": column.kind,
                "missing": column.missing,
                **({"categories": list(column.categories)} if column.kind == "category" else {"fill": column.fill}),
            }
            for column in self.columns
        ]
        label = {"name": self.label.name, "classes": list(self.label.classes)}
        return json.dumps({"rows": self.rows, "label": label, "columns": columns}, indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str, where: str) -> "Schema":
        """Read what `to_json` wrote."""
        try:
            read = json.loads(text)
            columns = tuple(_column(one) for one in read["columns"])
            label = Label(_text(read["label"]["name"]), tuple(map(_text, read["label"]["classes"])))
            rows = int(read["rows"])
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{where}: is not a schema ({type(error).__name__}: {error})") from None
        if not columns or len(label.classes) < 2:
            raise InputError(f"{where}: is not a schema (it needs columns, and a label with classes)")
        return Schema(columns, label, rows)

    @staticmethod
    def load(path: str | Path) -> "Schema":
        """Read a schema file."""
        where = f"data.schema_file = {str(path)!r}"
        try:
            return Schema.from_json(Path(path).read_text(encoding="utf-8"), where)
        except OSError as error:
            raise InputError(f"{where}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError:
            raise InputError(f"{where}: is not a schema (it is not UTF-8 text)") from None


def _taken(column: Column) -> str:
    return "count as none of the categories" if column.kind == "category" else f"are taken to be {column.fill:g}"


def _column(read: dict[str, Any]) -> Column:
    kind: Kind
    for kind in ("number", "boolean", "category", "date"):
        if read["kind"] == kind:
            categories = tuple(map(_text, read["categories"])) if kind == "category" else ()
            missing, fill = float(read["missing"]), float(read.get("fill", 0))
            if not (0 <= missing <= 1 and np.isfinite(fill)):
                raise ValueError(f"column {read['name']!r}")
            return Column(_text(read["name"]), kind, missing, fill, categories)
    raise ValueError(f"kind {read['kind']!r}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def check_column(where: str, setting: str, name: str, known: list[str]) -> None:
    """Refuse a column that a table does not have, with the nearest names."""
    if name in known:
        return
    close = get_close_matches(name, known, n=3, cutoff=0.5) or [
        other for other in known if other.lower() == name.lower()
    ]
    hint = f"did you mean {' or '.join(close)}?" if close else f"it has {_listed(known)}"
    raise InputError(f"{where}: has no column {name!r}, which {setting} names; {hint}")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
