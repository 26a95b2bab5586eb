"""Finds the schema of a table, and joins the schemas of several clients into the one that all of them use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hcfl.data.answers import BINS, MOST_SETS, bin_names, fit_multi_label, fit_regression
from hcfl.data.tables.columns import Kind, booleans, cleaned, dates, kind_of, numbers, texts
from hcfl.data.tables.schema import Column, Label, Schema, yes_or_no
from hcfl.data.tables.tokens import Tokens
from hcfl.errors import InputError
from hcfl.models.tasks import MultiLabel, Regression

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_CATEGORIES = 100
"""A column with more different values is refused: each would be an input of its own."""

MOST_CLASSES = 1000


def fit(
    table: "DataFrame",
    label: str,
    features: Sequence[str],
    where: str,
    task: str = "auto",
    alone: bool = False,
    tokens: Tokens | None = None,
) -> Schema:
    """Find how the feature columns and the label (a column, or `a,b,c`) of a table become numbers.

    With `alone`, there may be no features: the label's own past is the input. With `tokens`, the only feature is a
    column of texts.
    """
    if not features and not alone:
        raise InputError(f"{where}: no column is left as an input")
    notes: list[str] = []
    if tokens is None:
        columns = tuple(_column(table[name], notes) for name in features)
    else:
        columns = (_text_column(table[features[0]], tokens, notes),)
    return Schema(columns, _label(table, label, task, notes), len(table), tuple(notes))


def _column(values: "Series[Any]", notes: list[str]) -> Column:
    values, name = cleaned(values), str(values.name)
    kind = kind_of(values)
    missing = float(values.isna().mean())
    if missing:
        notes.append(f"column {name!r}: {missing:.0%} of the values are missing" + _handled(kind))
    if kind == "category":
        categories = sorted(texts(values).dropna().unique().tolist())
        if len(categories) > MOST_CATEGORIES:
            every = "in nearly every row another one, " if len(categories) > len(values) / 2 else ""
            raise InputError(
                f"column {name!r}: has {len(categories)} different texts, {every}but a category can have "
                f"{MOST_CATEGORIES} values at most; leave it out with --drop {name}, or let a language model read it "
                f"with --text {name}"
            )
        _tell_constant(name, len(categories), notes)
        return Column(name, kind, missing, categories=tuple(categories))
    read = {"number": numbers, "boolean": booleans, "date": dates}[kind](values)
    known = read[~np.isnan(read)]
    _tell_constant(name, len(np.unique(known)), notes)
    return Column(name, kind, missing, float(np.median(known)))


def _text_column(values: "Series[Any]", tokens: Tokens, notes: list[str]) -> Column:
    values, name = cleaned(values), str(values.name)
    missing = float(values.isna().mean())
    if missing == 1:
        raise InputError(f"data.text = {name!r}: this column has no values at all")
    if missing:
        notes.append(f"column {name!r}: {missing:.0%} of the texts are missing; they are read as empty ones")
    if cut := tokens.cut(texts(values.dropna()).tolist()):
        notes.append(f"column {name!r}: {cut:.0%} of the texts are longer than {tokens.length} tokens, and are cut")
    return Column(name, "text", missing, tokens=tokens)


def _handled(kind: Kind) -> str:
    filled = "" if kind == "category" else "; they take the median"
    return f"{filled}, and a further input says which are missing"


def _tell_constant(name: str, different: int, notes: list[str]) -> None:
    if different == 1:
        notes.append(f"column {name!r}: has a single value, so it tells the model nothing")


FEW_NUMBERS = 20
"""A column of whole numbers is a number to predict if it has more different ones; with fewer, they are classes."""


def label_columns(label: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a label names: itself, or `a,b,c`."""
    return (label,) if label in names else tuple(part.strip() for part in label.split(",") if part.strip()) or (label,)


def _label(table: "DataFrame", label: str, task: str, notes: list[str]) -> Label:
    columns = label_columns(label, list(table.columns))
    if len(columns) > 1 or task == "multi-label":
        if task not in ("auto", "multi-label"):
            raise InputError(f"data.task = {task}: data.label = {label!r} names several columns, so it is multi-label")
        labels = fit_multi_label(columns, yes_or_no(table, columns))
        if len(labels.sets) < 2:
            raise InputError(f"data.label = {label!r}: all rows have the same labels")
        notes.append(f"the labels {', '.join(columns)} are yes or no each, so the task is multi-label")
        return Label(columns, bin_names(labels), labels)
    values, name = cleaned(table[columns[0]]), columns[0]
    if not values.notna().any():
        raise InputError(f"data.label = {name!r}: this column has no values at all")
    found = texts(values.dropna()).unique().tolist()
    if task == "regression" or (task == "auto" and _is_a_number(values, len(found))):
        if kind_of(values) != "number":
            raise InputError(f"data.task = regression: column {name!r} has {found[0]!r}, which is not a number")
        numeric = fit_regression(f"data.label = {name!r}", numbers(values))
        if task == "auto":
            notes.append(f"the label {name!r} has {len(found)} different numbers, so the task is regression")
        return Label(columns, bin_names(numeric), numeric)
    if len(found) == 1:
        raise InputError(f"data.label = {name!r}: this column has a single class, {found[0]!r}, but 2 are needed")
    if len(found) > MOST_CLASSES or (len(found) > 2 and len(found) > values.notna().sum() / 2):
        raise InputError(
            f"data.label = {name!r}: this column has {len(found)} different values in {len(values)} rows, "
            "which are too many classes"
        )
    return Label(columns, tuple(sorted(found, key=_class_order)))


def _is_a_number(values: "Series[Any]", different: int) -> bool:
    """Whether a label is a number to predict: it has fractions, or many different values."""
    if kind_of(values) != "number":
        return False
    known = numbers(values.dropna())
    return different > 2 and (different > FEW_NUMBERS or bool((known != np.floor(known)).any()))


def _class_order(name: str) -> tuple[bool, float, str]:
    """Order numbers by size, and before names."""
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name


def join(schemas: Sequence[Schema], where: str = "schemas") -> Schema:
    """Join the schemas of several clients: all categories and classes of any of them, medians weighted by rows."""
    first = schemas[0]
    names = [column.name for column in first.columns]
    for other in schemas[1:]:
        if sorted(column.name for column in other.columns) != sorted(names) or other.label.name != first.label.name:
            odd = sorted({c.name for c in other.columns} ^ set(names)) or [first.label.name, other.label.name]
            raise InputError(f"{where}: the schemas have different columns ({', '.join(odd)})")
    rows = [max(1, schema.rows) for schema in schemas]
    columns = [_joined([_named(schema, name) for schema in schemas], rows) for name in names]
    label = _joined_label([schema.label for schema in schemas], rows)
    windows = first.windows
    for other in schemas[1:]:
        if (other.windows is None) != (windows is None) or (
            windows and other.windows and replace(other.windows, step=windows.step) != windows
        ):
            raise InputError(f"{where}: the schemas have different history, horizon or time")
    return Schema(tuple(columns), label, sum(schema.rows for schema in schemas), windows=windows)


def _joined_label(labels: Sequence[Label], rows: Sequence[int]) -> Label:
    """Join labels: all classes or label sets of any; of numbers, the mean and deviation of all, and mean edges."""
    columns, kinds = labels[0].columns, sorted({label.task.name for label in labels})
    if len(kinds) > 1:
        raise InputError(f"label {labels[0].name!r}: the task is {kinds[0]} in one schema and {kinds[1]} in another")
    several = [label.task for label in labels if isinstance(label.task, MultiLabel)]
    if several:
        sets = tuple(sorted({one for task in several for one in task.sets}))
        joined = MultiLabel(columns, sets[:MOST_SETS], len(sets) > MOST_SETS or any(task.others for task in several))
        return Label(columns, bin_names(joined), joined)
    tasks = [label.task for label in labels if isinstance(label.task, Regression)]
    if tasks:
        mean = float(np.average([task.mean for task in tasks], weights=rows))
        squares = np.average([task.std**2 + task.mean**2 for task in tasks], weights=rows)
        quantiles = np.linspace(0, 1, BINS + 1)[1:-1]
        each = [np.quantile(task.edges or [task.mean], quantiles) for task in tasks]
        edges = np.unique(np.average(each, axis=0, weights=rows))
        numeric = Regression(mean, float(np.sqrt(squares - mean**2)), tuple(edges.tolist()))
        return Label(columns, bin_names(numeric), numeric)
    classes = sorted({name for label in labels for name in label.classes}, key=_class_order)
    return Label(columns, tuple(classes))


def _named(schema: Schema, name: str) -> Column:
    return next(column for column in schema.columns if column.name == name)


def _joined(columns: Sequence[Column], rows: Sequence[int]) -> Column:
    name, kinds = columns[0].name, sorted({column.kind for column in columns})
    if len(kinds) > 1:
        raise InputError(f"column {name!r}: is a {kinds[0]} in one schema and a {kinds[1]} in another")
    categories = tuple(sorted({category for column in columns for category in column.categories}))
    if len(categories) > MOST_CATEGORIES:
        raise InputError(f"column {name!r}: has {len(categories)} categories in all, but {MOST_CATEGORIES} at most")
    if len({column.tokens for column in columns}) > 1:
        raise InputError(f"column {name!r}: the schemas have different tokenizers, or another text_length")
    missing = float(np.average([column.missing for column in columns], weights=rows))
    fill = float(np.average([column.fill for column in columns], weights=rows))
    return Column(name, columns[0].kind, missing, fill, categories, columns[0].tokens)
