"""A client's own file: read as the run says, and split as in a pooled federation in which the client has its number."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcfl.config import DataConfig
from hcfl.data import Federation
from hcfl.data.federation import Step
from hcfl.data.held_out import train_and_val, train_then_val
from hcfl.data.samples import Rows, Samples
from hcfl.data.sources import read
from hcfl.data.tables import Schema, is_table, read_table
from hcfl.data.tables.columns import cleaned, texts
from hcfl.data.tables.samples import samples_of
from hcfl.data.tables.schema import check_column
from hcfl.errors import InputError
from hcfl.models.inputs import Scaling


@dataclass(frozen=True)
class Split:
    """How a client's own file is read, and which part of it is held out."""

    kind: str
    val_share: float
    seed: int
    schema: str = ""
    """As JSON, where the file is a table."""
    time: str = ""
    scale: str = "standardise"
    steps: int = 1
    window: int = 1


def own_samples(node: Mapping[str, Any], how: Split) -> Samples:
    """Read the file of a node; it has the samples of one client, and nothing that only a federation has."""
    samples = _read(str(node["data"]), how)
    for part in ("client", "concept", "test"):
        if getattr(samples, part) is not None:
            raise InputError(f"data = {node['data']}: has {part!r}, but a client's own file has x and y only")
    if samples.targets is not None and samples.schema is None:
        raise InputError(f"data = {node['data']}: the task is {samples.task.name}, which needs a table and its schema")
    return samples


def _read(source: str, how: Split) -> Samples:
    if not is_table(source, how.schema or None):
        # whole: the file may be written anew while this process lives
        return read(DataConfig.model_validate({"source": source, "kind": how.kind, "scale": how.scale}), whole=True)
    if not how.schema:
        raise InputError(f"data = {source}: is a table, so the run needs schema-file, which `hcfl data schema` writes")
    settings = {"source": source, "kind": how.kind, "time": how.time or None, "scale": how.scale}
    config = DataConfig.model_validate(settings)
    return samples_of(read_table(source, "data"), config, source, Schema.from_json(how.schema, "the run's schema"))


def own_group(source: str, column: str) -> str:
    """Return the group of a client, the only value of a column of its table."""
    where = f"data = {source}"
    if not is_table(source, column):
        raise InputError(f"{where}: is no table, so data.groups = {column!r} must be CLIENT=GROUP,… instead")
    table = read_table(source, "data")
    check_column(where, "data.groups", column, list(table.columns))
    found = sorted(set(texts(cleaned(table[column]).dropna()).tolist()))
    if len(found) != 1:
        raise InputError(f"{where}: has {len(found)} groups in {column!r}, but a client begins in one")
    return str(found[0])


def federation_of(samples: Samples, how: Split, client: int, name: str, ends: Sequence[int] = ()) -> Federation:
    """Return a client's samples as a federation of one.

    With `ends`, there are steps: how many samples the file had at each of them so far. Later steps have none yet.
    """
    edges = (0, *ends) if ends else (0, len(samples.y))
    parts = [np.arange(start, end) for start, end in pairwise(edges)]
    parts += [np.arange(0)] * (how.steps - len(parts))
    timeline = [Step(*_halves(rows, samples, how, client, step)) for step, rows in enumerate(parts)]
    x: Tensor = torch.from_numpy(np.ascontiguousarray(samples.x))
    return Federation(
        name=samples.name,
        settings=DataConfig(steps=how.steps, window=how.window),
        x=x,
        y=torch.from_numpy(samples.y),
        train=timeline[0].train,
        val=timeline[0].val,
        test_x=None,
        newcomers=(),
        scaling=Scaling.none(x) if how.scale == "none" else Scaling(torch.zeros(()), torch.ones(())),
        class_names=samples.class_names,
        client_names=(name,),
        truth=None,
        schema=samples.schema,
        task=samples.task,
        targets=None if samples.targets is None else torch.from_numpy(samples.targets),
        timeline=tuple(timeline) if how.steps > 1 else (),
    )


def _halves(
    rows: Rows, samples: Samples, how: Split, client: int, step: int
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return the rows of one step that the client trains on, and those that it holds out."""
    if samples.time is None:
        train, val = train_and_val(rows, how.val_share, how.seed, client, step=step)
    else:
        train, val = train_then_val(rows, how.val_share, samples.time, samples.begin)
    return (train,), (val,)
