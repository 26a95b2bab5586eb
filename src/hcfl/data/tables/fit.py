"""Finds the schema of a table, and joins the schemas of several clients into the one that all of them use."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hcfl.data.tables.columns import Kind, booleans, cleaned, dates, kind_of, numbers, texts
from hcfl.data.tables.schema import Column, Label, Schema
from hcfl.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MOST_CATEGORIES = 100
"""A column with more different values is refused: each would be an input of its own."""

MOST_CLASSES = 1000


def fit(table: "DataFrame", label: str, features: Sequence[str], where: str) -> Schema:
    """Find how the feature columns and the label of a table become numbers."""
    if not features:
        raise InputError(f"{where}: no column is left as an input")
    notes: list[str] = []
    columns = tuple(_column(table[name], notes) for name in features)
    return Schema(columns, _label(table[label]), len(table), tuple(notes))


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
                f"{MOST_CATEGORIES} values at most; leave it out with --drop {name}"
            )
        _tell_constant(name, len(categories), notes)
        return Column(name, kind, missing, categories=tuple(categories))
    read = {"number": numbers, "boolean": booleans, "date": dates}[kind](values)
    known = read[~np.isnan(read)]
    _tell_constant(name, len(np.unique(known)), notes)
    return Column(name, kind, missing, float(np.median(known)))


def _handled(kind: Kind) -> str:
    filled = "" if kind == "category" else "; they take the median"
    return f"{filled}, and a further input says which are missing"


def _tell_constant(name: str, different: int, notes: list[str]) -> None:
    if different == 1:
        notes.append(f"column {name!r}: has a single value, so it tells the model nothing")


def _label(values: "Series[Any]") -> Label:
    values, name = cleaned(values), str(values.name)
    if not values.notna().any():
        raise InputError(f"data.label = {name!r}: this column has no values at all")
    found = texts(values.dropna()).unique().tolist()
    if len(found) == 1:
        raise InputError(f"data.label = {name!r}: this column has a single class, {found[0]!r}, but 2 are needed")
    if len(found) > MOST_CLASSES or (len(found) > 2 and len(found) > values.notna().sum() / 2):
        raise InputError(
            f"data.label = {name!r}: this column has {len(found)} different values in {len(values)} rows, "
            "which are too many classes"
        )
    return Label(name, tuple(sorted(found, key=_class_order)))


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
    classes = sorted({name for schema in schemas for name in schema.label.classes}, key=_class_order)
    return Schema(tuple(columns), Label(first.label.name, tuple(classes)), sum(schema.rows for schema in schemas))


def _named(schema: Schema, name: str) -> Column:
    return next(column for column in schema.columns if column.name == name)


def _joined(columns: Sequence[Column], rows: Sequence[int]) -> Column:
    name, kinds = columns[0].name, sorted({column.kind for column in columns})
    if len(kinds) > 1:
        raise InputError(f"column {name!r}: is a {kinds[0]} in one schema and a {kinds[1]} in another")
    categories = tuple(sorted({category for column in columns for category in column.categories}))
    if len(categories) > MOST_CATEGORIES:
        raise InputError(f"column {name!r}: has {len(categories)} categories in all, but {MOST_CATEGORIES} at most")
    missing = float(np.average([column.missing for column in columns], weights=rows))
    fill = float(np.average([column.fill for column in columns], weights=rows))
    return Column(name, columns[0].kind, missing, fill, categories)
