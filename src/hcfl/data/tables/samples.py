"""From a table to samples: which column is the label, which the client, and which rows can be used."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hcfl.config import DataConfig
from hcfl.data.answers import Answers
from hcfl.data.samples import Samples
from hcfl.data.tables.columns import booleans, cleaned, dates, kind_of, numbers, texts
from hcfl.data.tables.fit import fit, label_columns
from hcfl.data.tables.read import FILE_COLUMN, check_names
from hcfl.data.tables.schema import Encoded, Schema, check_column
from hcfl.data.tables.tokens import Tokens
from hcfl.data.tables.windows import Windows, cut, usual_step
from hcfl.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ROLES = ("label", "client", "time", "truth", "groups", "test")
"""Settings that name one column."""

TABLE_SETTINGS = (
    *ROLES,
    *("text", "tokenizer", "text_length"),
    *("features", "drop", "history", "horizon", "season", "schema_file"),
)


def samples_of(table: "DataFrame", config: DataConfig, name: str, schema: Schema | None = None) -> Samples:
    """Encode the rows of a table: by a schema, by the one that the configuration names, or by one fitted to them."""
    where = f"data.source = {name!r}"
    if config.resize is not None:
        raise InputError(f"data.resize = {config.resize}: {name} is a table; only image files can be resized")
    if config.kind not in ("auto", "vector") and config.history is None:
        raise InputError(f"data.kind = {config.kind}: {name} is a table, its rows are vectors")
    check_names(where, list(table.columns))
    if schema is None and config.schema_file is not None:
        schema = Schema.load(config.schema_file)
    roles = columns_of(config, list(table.columns), where, schema)
    marked = None if "test" not in roles else _marked(table[roles["test"]])
    if schema is None:
        known = table if marked is None else table[~marked]
        features = features_of(config, list(table.columns), roles, where)
        schema = fit(known, roles["label"], features, where, *forecast_task(config), text_tokens(config))
    if schema.text is not None and config.scale != "none":
        raise InputError(f"{where}: the schema has texts; name their column with --text {schema.text.name}")
    encoded = schema.encode(table, where)
    answers = encoded.answers
    if answers is None:
        raise InputError(f"{where}: has no column {schema.label.name!r}, the label of the schema")
    notes = [*schema.notes, *encoded.notes]
    if config.task not in ("auto", answers.task.name):
        raise InputError(f"data.task = {config.task}: the schema's task is {answers.task.name}")
    labelled = answers.bins >= 0
    if not labelled.all():
        notes.append(f"{int((~labelled).sum())} rows without {schema.label.name!r} are left out")
    if not labelled.any():
        raise InputError(f"{where}: no row has a value in {schema.label.name!r}")
    client, truth, group, time = (
        None if role not in roles else read(table[roles[role]][labelled], f"data.{role} = {roles[role]!r}")
        for role, read in (("client", _names), ("truth", _names), ("groups", _names), ("time", times_of))
    )
    if client is not None and len(client) > 1 and len(np.unique(client)) == len(client):
        raise InputError(f"data.client = {roles['client']!r}: every row has another value, so each client has one row")
    if config.history is not None or schema.windows is not None:
        test = None if marked is None else marked[labelled]
        rows = SeriesRows(name, where, encoded.x[labelled], answers, labelled, client, truth, group, time, test)
        return windows_of(rows, schema, config, tuple(notes))
    return Samples(
        name=name,
        x=encoded.x[labelled],
        y=answers.bins[labelled],
        class_names=answers.names,
        client=client,
        concept=truth,
        group=group,
        test=None if marked is None else marked[labelled],
        notes=tuple(notes),
        time=time,
        task=answers.task,
        targets=None if answers.targets is None else answers.targets[labelled],
        schema=replace(schema, notes=()),
    )


def forecast_task(config: DataConfig) -> tuple[str, bool]:
    """Return the task to fit a schema for, and whether the label's own past is an input."""
    if config.history is None:
        for name in ("horizon", "season"):
            if (value := getattr(config, name)) is not None:
                raise InputError(f"data.{name} = {value}: is of forecasts, which need data.history")
        return config.task, False
    if config.time is None:
        raise InputError(f"data.history = {config.history}: a forecast needs data.time, the column of dates or numbers")
    if config.task not in ("auto", "regression"):
        raise InputError(f"data.task = {config.task}: a forecast is of numbers, so the task is regression")
    last = config.history - 1 + (config.horizon or 1)
    if config.season is not None and not (config.horizon or 1) <= config.season <= last:
        raise InputError(f"data.season = {config.season}: must lie in the window, from {config.horizon or 1} to {last}")
    return "regression", True


@dataclass(frozen=True)
class SeriesRows:
    """The rows of a table that have a label, before they become windows."""

    name: str
    where: str
    x: NDArray[np.float32]
    answers: Answers
    labelled: NDArray[np.bool_]
    client: NDArray[Any] | None
    truth: NDArray[Any] | None
    group: NDArray[Any] | None
    time: NDArray[np.float64] | None
    test: NDArray[np.bool_] | None


def windows_of(rows: SeriesRows, schema: Schema, config: DataConfig, notes: tuple[str, ...]) -> Samples:
    """Return windows of each client's rows; the label's own past is their first channel.

    A window of the test set has all rows in it, and comes after the client's other rows.
    """
    targets = None if rows.answers.targets is None else rows.answers.targets[rows.labelled]
    if targets is None or rows.answers.task.name != "regression":
        raise InputError(f"data.label = {schema.label.name!r}: a forecast is of numbers, but this is no number")
    if rows.time is None:
        raise InputError(f"{rows.where}: the schema is of forecasts, which need data.time")
    owner = np.zeros(len(targets), dtype=np.int64)
    if rows.client is not None:
        owner = np.unique(rows.client, return_inverse=True)[1]
    if schema.windows is None:
        assert config.history is not None
        assert config.time is not None
        step = usual_step(rows.time, owner, rows.where)
        schema = replace(schema, windows=Windows(config.history, config.horizon or 1, config.time, step))
    assert schema.windows is not None
    test = np.zeros(len(targets), dtype=bool) if rows.test is None else rows.test
    found = cut(schema.windows, rows.time, owner, np.ones(len(targets), dtype=bool), open_end=False)
    if not len(found.answers):
        raise InputError(
            f"data.history = {schema.windows.history}: no client has {schema.windows.span + 1} rows without a gap, "
            f"which history and horizon {schema.windows.horizon} need"
        )
    whole = np.concatenate([found.inputs, found.answers[:, None]], axis=1)
    pure = test[whole].all(axis=1) | ~test[whole].any(axis=1)
    for client in np.unique(owner[test]):
        mine = owner == client
        if (mine & ~test).any() and rows.time[mine & test].min() < rows.time[mine & ~test].max():
            raise InputError(
                f"data.test = {config.test!r}: rows of the test set come before other rows of their client"
            )
    inputs, answers = found.inputs[pure], found.answers[pure]
    stretches = f"{len(answers)} windows of {schema.windows.history} rows"
    told = f"{rows.name}: {stretches}, each to forecast the value {schema.windows.horizon} rows later"
    channels = np.concatenate([targets[:, None], rows.x], axis=1).astype(np.float32)

    def of(column: NDArray[Any] | None) -> NDArray[Any] | None:
        return None if column is None else column[answers]

    return Samples(
        name=rows.name,
        x=channels[inputs],
        y=rows.answers.bins[rows.labelled][answers],
        class_names=rows.answers.names,
        client=of(rows.client),
        concept=of(rows.truth),
        group=of(rows.group),
        test=of(rows.test),
        notes=(*notes, told),
        time=rows.time[answers],
        begin=rows.time[inputs[:, 0]],
        task=rows.answers.task,
        targets=targets[answers],
        schema=replace(schema, notes=()),
    )


def series_of(table: "DataFrame", schema: Schema, where: str) -> Encoded:
    """Return the windows of one client's table, in the order of time, also those whose answer lies beyond it."""
    encoded, windows = schema.encode(table, where), schema.windows
    assert windows is not None
    if encoded.answers is None or encoded.answers.targets is None:
        raise InputError(f"{where}: has no column {schema.label.name!r}, whose past is the input of a forecast")
    check_column(where, "the schema", windows.time, list(map(str, table.columns)))
    time = times_of(table[windows.time], f"{where}: column {windows.time!r}")
    known = encoded.answers.bins >= 0
    found = cut(windows, time, np.zeros(len(table), dtype=np.int64), known, open_end=True)
    if not len(found.answers):
        raise InputError(f"{where}: has no {windows.history} rows without a gap, which a forecast needs")
    channels = np.concatenate([encoded.answers.targets[:, None], encoded.x], axis=1).astype(np.float32)
    there, at = found.answers >= 0, np.maximum(found.answers, 0)
    bins = np.where(there, encoded.answers.bins[at], -1)
    answers = replace(encoded.answers, bins=bins, targets=encoded.answers.targets[at])
    return Encoded(channels[found.inputs], answers, encoded.notes)


def columns_of(config: DataConfig, names: list[str], where: str, schema: Schema | None = None) -> dict[str, str]:
    """Return the column of each role that has one; refuse names that the table does not have."""
    roles = {role: getattr(config, role) for role in ROLES if isinstance(getattr(config, role), str)}
    if schema is not None:
        for setting in ("features", "drop"):
            if (value := getattr(config, setting)) is not None:
                raise InputError(f"data.{setting} = {', '.join(value)}: the schema says which columns are inputs")
        if roles.setdefault("label", schema.label.name) != schema.label.name:
            raise InputError(f"data.label = {roles['label']!r}: the schema has the label {schema.label.name!r}")
    if FILE_COLUMN in names and config.client is None:
        roles["client"] = FILE_COLUMN
    if "label" not in roles:
        shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
        raise InputError(
            f"data.label = null: name the column of {where.partition(' = ')[2]} to predict; it has {shown}"
        )
    for role, name in roles.items():
        for column in label_columns(name, names) if role == "label" else (name,):
            check_column(where, f"data.{role}", column, names)
    for role, name in roles.items():
        other = next(other for other, same in roles.items() if same == name)
        if other != role and {role, other} != {"truth", "groups"}:
            raise InputError(f"data.{role} = {name!r}: is the same column as data.{other}")
    for role in ("truth", "groups"):
        if role in roles and "client" not in roles:
            raise InputError(f"data.{role} = {roles[role]!r}: needs data.client, because groups are of clients")
    return roles


def text_tokens(config: DataConfig) -> Tokens | None:
    """Return how the column of texts is read, where there is one."""
    if config.text is None:
        for name in ("tokenizer", "text_length"):
            if (value := getattr(config, name)) is not None:
                raise InputError(f"data.{name} = {value!r}: is of texts, which need data.text, their column")
        return None
    if config.history is not None:
        raise InputError(f"data.text = {config.text!r}: a forecast (data.history) is made from numbers, not from texts")
    return Tokens.of(config.text, config.tokenizer, config.text_length)


def features_of(config: DataConfig, names: list[str], roles: dict[str, str], where: str) -> list[str]:
    """Return the input columns: the texts, those that were named, or all that have no role and were not dropped."""
    chosen = _chosen_features(config, names, roles, where)
    if config.text is None:
        return chosen
    check_column(where, "data.text", config.text, names)
    if config.text not in chosen:
        raise InputError(f"data.text = {config.text!r}: has another role, or is no input")
    if others := [name for name in chosen if name != config.text]:
        raise InputError(
            f"data.text = {config.text!r}: texts are the only input, but there is also "
            f"{', '.join(others[:5])}{', …' if len(others) > 5 else ''}; add --features {config.text}"
        )
    return chosen


def _chosen_features(config: DataConfig, names: list[str], roles: dict[str, str], where: str) -> list[str]:
    for setting in ("features", "drop"):
        for name in getattr(config, setting) or ():
            check_column(where, f"data.{setting}", name, names)
    dropped, labels = set(config.drop or ()), label_columns(roles["label"], names)
    if config.features is None:
        taken = dropped | set(roles.values()) | set(labels)
        return [name for name in names if name not in taken]
    for name in config.features:
        if name in dropped:
            raise InputError(f"data.drop = {name!r}: is also in data.features")
        if name in labels:
            raise InputError(f"data.features = {name!r}: is the label, so it cannot be an input")
    return list(dict.fromkeys(config.features))


def _names(column: "Series[Any]", where: str) -> NDArray[Any]:
    """Return names as whole numbers where all of them are, else as text; refuse rows without one."""
    values = cleaned(column)
    if values.isna().any():
        absent = values.isna().to_numpy()
        raise InputError(f"{where}: is missing in {absent.sum()} rows, first in row {int(absent.argmax()) + 1}")
    found = texts(values).to_numpy(dtype=str)
    if all(name.isascii() and name.isdecimal() and str(int(name)) == name for name in set(found.tolist())):
        return found.astype(np.int64)
    return found


def times_of(column: "Series[Any]", where: str) -> NDArray[np.float64]:
    """Return dates as days, or numbers; refuse other values, and missing ones."""
    values = cleaned(column)
    kind = kind_of(values)
    if kind not in ("date", "number"):
        raise InputError(f"{where}: has a {kind}, but dates (2024-03-31) or numbers are needed")
    found = (dates if kind == "date" else numbers)(values)
    if np.isnan(found).any():
        raise InputError(f"{where}: is missing in {int(np.isnan(found).sum())} rows")
    return found


def _marked(column: "Series[Any]") -> NDArray[np.bool_]:
    values, where = cleaned(column), f"data.test = {str(column.name)!r}"
    found = numbers(values) if kind_of(values) == "number" else booleans(values)
    if not np.isin(found, (0, 1)).all():
        raise InputError(f"{where}: must be true or false in each row")
    if not 0 < found.sum() < len(found):
        raise InputError(f"{where}: marks {int(found.sum())} of {len(found)} rows, but some of each kind are needed")
    return found.astype(bool)
