"""Drift: which concept and which corruption each client has at each step of time, and when they change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hcfl.config.yaml_files import read_yaml
from hcfl.data.corruptions import CORRUPTIONS
from hcfl.data.feature_shift import Corruption
from hcfl.errors import InputError

KINDS = ("none", "sudden", "staggered", "recurring", "gradual")
"""Schedules by name; any other schedule is a YAML file."""

Concepts = NDArray[np.int64]


@dataclass(frozen=True)
class Change:
    """From a step on, one client has another concept, another corruption, or both."""

    client: int
    at: int
    """The first step with it, from 0."""
    concept: int | None = None
    corruption: Corruption | None = None
    over: int = 1
    """Steps until all of its samples have the new concept; in between, both concepts are mixed. A corruption changes
    at once."""


@dataclass(frozen=True)
class Schedule:
    """What the data of each client are like at each step; the truth that measurements go by."""

    shares: NDArray[np.float64]
    """(clients, steps, concepts): the share of its samples that each concept labels; rows sum to 1."""
    concept: Concepts
    """(clients, steps): the concept of at least half of its samples; of two halves, the newer one."""
    corruptions: tuple[tuple[Corruption, ...], ...] | None = None
    """By step, the corruption of each client's images."""

    @property
    def steps(self) -> int:
        """The number of steps, T."""
        return int(self.concept.shape[1])


def schedule(
    changes: Sequence[Change],
    start: Concepts,
    concepts: int,
    steps: int,
    corruptions: Sequence[Corruption] | None = None,
) -> Schedule:
    """Carry out changes one after another, from the concepts and corruptions that clients start with, (clients,).

    >>> schedule([Change(0, at=1, concept=1, over=2)], np.array([0]), 2, 3).shares[0].tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    shares = np.repeat(np.eye(concepts)[start][:, None], steps, axis=1)
    concept = np.repeat(start[:, None], steps, axis=1)
    cameras = None if corruptions is None else [list(corruptions) for _ in range(steps)]
    for change in sorted(changes, key=lambda one: one.at):
        client, at = change.client, change.at
        if change.concept is not None:
            new = np.minimum(1, (np.arange(steps - at) + 1) / change.over)[:, None]
            shares[client, at:] = (1 - new) * shares[client, at] + new * np.eye(concepts)[change.concept]
            concept[client, at:] = np.where(new[:, 0] >= 0.5, change.concept, concept[client, at])
        if change.corruption is not None and cameras is not None:
            for step in range(at, steps):
                cameras[step][client] = change.corruption
    return Schedule(shares, concept, None if cameras is None else tuple(map(tuple, cameras)))


@dataclass(frozen=True)
class Moment:
    """From a step on, a client is away from what it started with, or back at it."""

    client: int
    at: int
    away: bool = True
    over: int = 1


def moments(kind: str, start: Concepts, concepts: int, steps: int, generator: np.random.Generator) -> list[Moment]:
    """Return who changes when.

    `sudden`: half of the clients change in the middle. `gradual`: the same, mixed over a third of the steps.
    `staggered`: every client changes once, one after another. `recurring`: all clients of the last concept (half of
    the clients, where there is one concept) change and change back, each time after a quarter of the steps.
    """
    clients = len(start)
    order = generator.permutation(clients)
    half = np.sort(order[: max(1, clients // 2)]).tolist()
    if kind in ("sudden", "gradual"):
        over = max(2, steps // 3) if kind == "gradual" else 1
        return [Moment(client, steps // 2, over=over) for client in half]
    if kind == "staggered":
        return [Moment(int(client), 1 + place * (steps - 1) // clients) for place, client in enumerate(order)]
    if kind == "recurring":
        period = max(1, steps // 4)
        some = half if concepts == 1 else np.flatnonzero(start == concepts - 1).tolist()
        turns = enumerate(range(period, steps, period))
        return [Moment(client, at, away=turn % 2 == 0) for turn, at in turns for client in some]
    return []


def simulated_changes(
    found: Sequence[Moment],
    of: Literal["concept", "corruption", "both"],
    start: Concepts,
    concepts: int,
    before: Sequence[Corruption],
    after: Sequence[Corruption],
) -> list[Change]:
    """Return what changes: the concept to the next one, the corruption to another one that was drawn, or both."""
    changes = []
    for moment in found:
        client = moment.client
        concept = int(start[client] + moment.away) % concepts
        camera = (after if moment.away else before)[client] if of != "concept" else None
        changes.append(Change(client, moment.at, None if of == "corruption" else concept, camera, moment.over))
    return changes


FIELDS = {"clients", "at", "concept", "corruption", "over"}


def read_changes(path: str, clients: int, steps: int, concepts: int) -> list[Change]:
    """Read a schedule: a YAML file with a list `changes`, in which steps are counted from 1."""
    values = read_yaml(Path(path), "drift")
    entries = values.get("changes")
    if set(values) - {"description", "changes"} or not isinstance(entries, list):
        raise InputError(f"data.drift = {path!r}: must hold a list `changes`, and may hold a `description`")
    return [
        change for entry in entries for change in _parsed(entry, f"data.drift = {path!r}", clients, steps, concepts)
    ]


def _parsed(entry: Any, where: str, clients: int, steps: int, concepts: int) -> list[Change]:
    if not isinstance(entry, Mapping) or set(entry) - FIELDS or not {"clients", "at"} <= set(entry):
        raise InputError(f"{where}: a change has clients, at, and concept or corruption (and over), not {entry!r}")
    named = list(range(clients)) if entry["clients"] == "all" else entry["clients"]
    if not isinstance(named, list) or not all(_whole(one, 0, clients - 1) for one in named):
        raise InputError(f"{where}: clients = {entry['clients']!r}: must be all, or a list of 0 to {clients - 1}")
    at, over, concept = entry["at"], entry.get("over", 1), entry.get("concept")
    if not _whole(at, 2, steps):
        raise InputError(f"{where}: at = {at!r}: must be a step from 2 to {steps}")
    if not _whole(over, 1, steps):
        raise InputError(f"{where}: over = {over!r}: must be a number of steps from 1 to {steps}")
    if concept is not None and not _whole(concept, 0, concepts - 1):
        raise InputError(f"{where}: concept = {concept!r}: must be a concept from 0 to {concepts - 1}")
    corruption = None if entry.get("corruption") is None else _corruption(str(entry["corruption"]), where)
    if concept is None and corruption is None:
        raise InputError(f"{where}: the change at step {at} names neither a concept nor a corruption")
    return [Change(client, at - 1, concept, corruption, over) for client in named]


def _whole(value: Any, lowest: int, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _corruption(text: str, where: str) -> Corruption:
    name, _, severity = text.rpartition(" ")
    name, severity = (name, severity) if severity.isdecimal() else (text, "1")
    if name not in CORRUPTIONS or not 1 <= int(severity) <= 5:
        raise InputError(
            f"{where}: corruption = {text!r}: must be a severity from 1 to 5 after {', '.join(CORRUPTIONS)}"
        )
    return Corruption(name, int(severity))
