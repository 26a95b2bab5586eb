"""Samples that were dealt to clients become a federation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hcfl.config import DataConfig
from hcfl.data.client_rows import ClientRows
from hcfl.data.feature_shift import Corruption
from hcfl.data.federation import Federation, Newcomer, Step, Truth
from hcfl.data.given_groups import GivenGroups, by_column, by_mapping
from hcfl.data.held_out import train_and_val, train_then_val
from hcfl.data.samples import Rows, Samples
from hcfl.data.times import NO_STEPS, Times
from hcfl.errors import InputError
from hcfl.models.inputs import Scaling

SPLIT_AT_ONCE = 10_000
"""How many clients' rows are kept as single tensors at a time."""

Halves = tuple[Sequence[Tensor], Sequence[Tensor]]
"""Training and held-out rows of each client."""


@dataclass(frozen=True)
class Dealt:
    """Which client holds which samples, with which labels."""

    samples: Samples
    labels: Rows
    """The label of every sample, as its client sees it."""
    clients: tuple[Any, ...]
    parts: Sequence[Rows]
    """The rows of each client."""
    test: Rows
    newcomers: tuple[Newcomer, ...]
    truth: Truth | None
    notes: tuple[str, ...]
    corruptions: tuple[Corruption, ...] | None = None
    times: Times = NO_STEPS


def federation(dealt: Dealt, config: DataConfig, seed: int) -> Federation:
    """Split each client's samples into training and held-out ones, and return the federation."""
    samples, newcomers = dealt.samples, dealt.newcomers
    config = config.model_copy(update={"test_on": config.test_on or "halves", "task": samples.task.name})
    if config.test_on == "halves":
        newcomers = tuple(half for newcomer in newcomers for half in newcomer.halves())
    images = (len(samples.y) - len(dealt.test)) // config.copies if config.copies > 1 else None
    halves = _halves(dealt.parts, samples, config, seed, images)
    timeline = _timeline(dealt.times, samples, config, seed, images)
    truth, corruptions = dealt.truth, dealt.corruptions
    if timeline:
        halves, truth, corruptions = (timeline[0].train, timeline[0].val), timeline[0].truth, timeline[0].corruptions
    x = torch.from_numpy(np.ascontiguousarray(samples.x))
    train, val = halves
    return Federation(
        name=samples.name,
        settings=config,
        x=x,
        y=torch.from_numpy(dealt.labels),
        train=train,
        val=val,
        test_x=_rows(x, dealt.test) if len(dealt.test) else None,
        newcomers=newcomers,
        scaling=Scaling.none(x) if config.scale == "none" else Scaling.of(x, ClientRows.of(train).flat),
        class_names=samples.class_names,
        client_names=dealt.clients,
        truth=truth,
        corruptions=corruptions,
        notes=dealt.notes,
        groups=_groups(dealt, config),
        schema=samples.schema,
        task=samples.task,
        targets=None if samples.targets is None else torch.from_numpy(samples.targets),
        timeline=timeline,
    )


def _halves(
    parts: Sequence[Rows], samples: Samples, config: DataConfig, seed: int, images: int | None, step: int = 0
) -> Halves:
    def half(client: int) -> tuple[Tensor, Tensor]:
        if samples.time is None:
            return train_and_val(parts[client], config.val_share, seed, client, images, step)
        return train_then_val(parts[client], config.val_share, samples.time, samples.begin)

    train, val = list[ClientRows](), list[ClientRows]()
    for start in range(0, len(parts), SPLIT_AT_ONCE):  # tensors of a million clients would take gigabytes
        found = [half(client) for client in range(start, min(start + SPLIT_AT_ONCE, len(parts)))]
        train.append(ClientRows.of([rows for rows, _ in found]))
        val.append(ClientRows.of([rows for _, rows in found]))
    return ClientRows.joined(train), ClientRows.joined(val)


def _timeline(times: Times, samples: Samples, config: DataConfig, seed: int, images: int | None) -> tuple[Step, ...]:
    return tuple(
        Step(
            *_halves(parts, samples, config, seed, images, step),
            truth=times.truths[step] if times.truths else None,
            corruptions=None if times.cameras is None else times.cameras[step],
        )
        for step, parts in enumerate(times.parts)
    )


def _groups(dealt: Dealt, config: DataConfig) -> GivenGroups | None:
    """Return the groups that clients begin in, by a column of theirs or by their names; None where none are given."""
    if config.groups is None:
        return None
    if isinstance(config.groups, dict):
        return by_mapping(config.groups, dealt.clients)
    if dealt.samples.group is None:
        raise InputError(f"data.groups = {config.groups!r}: {dealt.samples.name} has no columns; give CLIENT=GROUP,…")
    return by_column(config.groups, dealt.samples.group, dealt.parts, dealt.clients)


def _rows(x: Tensor, rows: Rows) -> Tensor:
    """Return rows of x; a view where they are contiguous, as a source's own test set is."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (np.diff(rows) == 1).all():
        return x[first : last + 1]
    return x[torch.from_numpy(rows)]
