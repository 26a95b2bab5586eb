"""The schema of one or several files: tables are fitted, schemas are joined."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hcfl.config import DataConfig
from hcfl.data.tables.fit import fit, join
from hcfl.data.tables.read import check_names, read_table
from hcfl.data.tables.samples import columns_of, features_of, forecast_task, text_tokens, times_of
from hcfl.data.tables.schema import Schema
from hcfl.data.tables.windows import Windows, usual_step
from hcfl.errors import InputError


def schema_of_files(files: Sequence[Path], config: DataConfig) -> Schema:
    """Return the schema that all files can be encoded by: each is a table, or a schema that a client sends."""
    if not files:
        raise InputError("hcfl data schema: name a table, or the schemas to join")
    parts = [Schema.load(file) if file.suffix == ".json" else _fitted(file, config) for file in files]
    if len(parts) == 1:
        return parts[0]
    return join(parts, " and ".join(map(str, files)))


def _fitted(file: Path, config: DataConfig) -> Schema:
    table, where = read_table(file, "data"), f"data = {str(file)!r}"
    names = list(table.columns)
    check_names(where, names)
    roles = columns_of(config, names, where)
    features = features_of(config, names, roles, where)
    schema = fit(table, roles["label"], features, where, *forecast_task(config), text_tokens(config))
    if config.history is None or config.time is None:
        return schema
    step = usual_step(times_of(table[config.time], where), np.zeros(len(table), dtype=np.int64), where)
    return replace(schema, windows=Windows(config.history, config.horizon or 1, config.time, step))
