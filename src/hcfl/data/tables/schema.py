"""How the rows of a table become numbers: fitted once, written into the run, and the same wherever it is applied.

A number stays a number, yes or no is 1 or 0, a category is one column of zeros and ones for each of its values, a date
is its day and its place in the year. A missing number takes the median; where values were missing when the schema was
fitted, a further column says so. A text is the numbers of its tokens, by the tokenizer of a language model.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcfl.data.answers import Answers, bin_names, of_classes, of_labels, of_numbers
from hcfl.data.tables.columns import Kind, booleans, cleaned, dates, kind_of, numbers, texts
from hcfl.data.tables.tokens import Tokens
from hcfl.data.tables.windows import Windows
from hcfl.errors import InputError
from hcfl.models.tasks import CLASSES, AnyTask, MultiLabel, Regression

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
    tokens: Tokens | None = None
    """Of a column of texts."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the numbers that it becomes."""
        if self.tokens is not None:
            return tuple(f"{self.name}: token {place + 1}" for place in range(self.tokens.length))
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
        if self.tokens is not None:
            return self.tokens.encode(self.name, texts(values).fillna("").tolist()), int(absent.sum()), 0
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
    """What is predicted: one column, or one for each label."""

    columns: tuple[str, ...]
    classes: tuple[str, ...]
    """Names of the classes, in order; of other answers, of their bins."""
    task: AnyTask = CLASSES

    @property
    def name(self) -> str:
        """The columns."""
        return ", ".join(self.columns)

    def encode(self, table: "DataFrame") -> Answers:
        """Return the answers of a table; refuse other classes."""
        if isinstance(self.task, Regression):
            return of_numbers(self.task, numbers(cleaned(table[self.columns[0]])))
        if isinstance(self.task, MultiLabel):
            return of_labels(self.task, yes_or_no(table, self.columns))
        values = cleaned(table[self.columns[0]])
        positions = {name: at for at, name in enumerate(self.classes)}
        found = texts(values).map(positions).to_numpy(dtype=np.float64, na_value=np.nan)
        strange = np.isnan(found) & values.notna().to_numpy()
        if strange.any():
            shown = ", ".join(self.classes[:20]) + (", …" if len(self.classes) > 20 else "")
            odd = texts(values)[strange].iloc[0]
            raise InputError(f"column {self.name!r}: has the label {odd!r}, but the classes are {shown}")
        return of_classes(self.classes, np.nan_to_num(found, nan=-1).astype(np.int64))


def yes_or_no(table: "DataFrame", columns: Sequence[str]) -> NDArray[np.float64]:
    """Return columns of labels, (rows, columns), each 1, 0, or NaN where it is missing."""
    found = []
    for name in columns:
        values = cleaned(table[name])
        kind = kind_of(values)
        if kind not in ("number", "boolean"):
            raise InputError(f"data.label = {name!r}: one of several labels is yes or no, but this is a {kind}")
        read = (numbers if kind == "number" else booleans)(values)
        if not np.isin(read[~np.isnan(read)], (0, 1)).all():
            raise InputError(f"data.label = {name!r}: one of several labels is 0 or 1, but this has other numbers")
        found.append(read)
    return np.stack(found, axis=1)


@dataclass(frozen=True)
class Encoded:
    """Rows of a table as numbers."""

    x: NDArray[np.float32]
    answers: Answers | None
    """None where the table has no label column."""
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
    windows: Windows | None = None
    """How rows become windows of a series, where the task is a forecast."""

    @property
    def text(self) -> Column | None:
        """The column of texts, which is then the only one."""
        return next((column for column in self.columns if column.kind == "text"), None)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the inputs of the network; in a forecast, of each row of a window."""
        own = tuple(name for column in self.columns for name in column.outputs)
        return own if self.windows is None else (self.label.name, *own)

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
        labelled = all(name in found for name in self.label.columns)
        x = np.concatenate([np.zeros((len(table), 0), dtype=np.float32), *parts], axis=1)
        return Encoded(x, self.label.encode(table) if labelled else None, tuple(notes))

    def to_json(self) -> str:
        """Return it as text."""
        columns = [
            {
                "name": column.name,
                "kind": column.kind,
                "missing": column.missing,
                **_details(column),
            }
            for column in self.columns
        ]
        task = self.label.task
        label: dict[str, Any] = {"columns": list(self.label.columns), "task": task.name}
        if isinstance(task, Regression):
            label |= {"mean": task.mean, "std": task.std, "edges": list(task.edges)}
        elif isinstance(task, MultiLabel):
            label |= {"sets": list(task.sets), "others": task.others}
        else:
            label |= {"classes": list(self.label.classes)}
        whole: dict[str, Any] = {"rows": self.rows, "label": label, "columns": columns}
        if self.windows is not None:
            whole["windows"] = asdict(self.windows)
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"

    @staticmethod
    def from_json(text: str, where: str) -> "Schema":
        """Read what `to_json` wrote."""
        try:
            read = json.loads(text)
            columns = tuple(_column(one) for one in read["columns"])
            label = _label(read["label"])
            rows = int(read["rows"])
            windows = _windows(read["windows"]) if "windows" in read else None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"{where}: is not a schema ({type(error).__name__}: {error})") from None
        if not (columns or windows) or not label.columns:
            raise InputError(f"{where}: is not a schema (it needs columns, and a label)")
        found = Schema(columns, label, rows, windows=windows)
        if found.text is not None and (len(columns) > 1 or windows):
            raise InputError(f"{where}: is not a schema (a column of texts is the only input)")
        return found

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


def _details(column: Column) -> dict[str, Any]:
    """Return what a schema says of a column of its kind."""
    if column.tokens is not None:
        return asdict(column.tokens)
    return {"categories": list(column.categories)} if column.kind == "category" else {"fill": column.fill}


def _taken(column: Column) -> str:
    if column.kind == "text":
        return "are read as empty texts"
    return "count as none of the categories" if column.kind == "category" else f"are taken to be {column.fill:g}"


def _windows(read: dict[str, Any]) -> Windows:
    found = Windows(int(read["history"]), int(read["horizon"]), _text(read["time"]), float(read["step"]))
    if min(found.history, found.horizon) < 1 or not found.step > 0:
        raise ValueError("history, horizon and step of the windows")
    return found


def _column(read: dict[str, Any]) -> Column:
    kind: Kind
    if read["kind"] == "text":
        return Column(_text(read["name"]), "text", float(read["missing"]), tokens=Tokens.read(read))
    for kind in ("number", "boolean", "category", "date"):
        if read["kind"] == kind:
            categories = tuple(map(_text, read["categories"])) if kind == "category" else ()
            missing, fill = float(read["missing"]), float(read.get("fill", 0))
            if not (0 <= missing <= 1 and np.isfinite(fill)):
                raise ValueError(f"column {read['name']!r}")
            return Column(_text(read["name"]), kind, missing, fill, categories)
    raise ValueError(f"kind {read['kind']!r}")


def _label(read: dict[str, Any]) -> Label:
    columns = tuple(map(_text, read["columns"]))
    if read["task"] == "regression":
        task = Regression(float(read["mean"]), float(read["std"]), tuple(map(float, read["edges"])))
        if not task.std > 0 or not np.isfinite([task.mean, task.std, *task.edges]).all():
            raise ValueError("mean, std and edges of the label")
        return Label(columns, bin_names(task), task)
    if read["task"] == "multi-label":
        sets = tuple(map(_text, read["sets"]))
        if not sets or not all(len(one) == len(columns) and set(one) <= {"0", "1"} for one in sets):
            raise ValueError("sets of the labels")
        labels = MultiLabel(columns, sets, bool(read["others"]))
        return Label(columns, bin_names(labels), labels)
    if read["task"] != "classification" or len(read["classes"]) < 2:
        raise ValueError("task and classes of the label")
    return Label(columns, tuple(map(_text, read["classes"])))


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
