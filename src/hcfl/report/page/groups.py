"""Runs that differ in their seed only, as one: mean and deviation, what is ahead beyond the spread, and a verdict."""

from collections.abc import Sequence
from typing import Any

from hcfl.core.record import Row
from hcfl.report.page.reading import Folder
from hcfl.studies.comparison import COLUMNS, Column, fairness
from hcfl.studies.seeds import as_text, statistic
from hcfl.studies.verdict import ahead, verdict, with_personal


def grouped(folders: Sequence[Folder], labels: Sequence[str] | None = None) -> list[tuple[str, list[int]]]:
    """Return the groups of runs: a label, and the positions of its runs.

    Without `labels`, one for each run, runs whose settings differ in the seed only are a group; its label is the method
    and, where several groups have the same, the settings in which they differ.
    """
    if labels is None:
        found: dict[str, list[int]] = {}
        for at, folder in enumerate(folders):
            found.setdefault(str(_settings(folder)), []).append(at)
        members = list(found.values())
        return list(zip(_names([folders[each[0]] for each in members]), members, strict=True))
    by_label: dict[str, list[int]] = {}
    for at, label in enumerate(labels):
        by_label.setdefault(label, []).append(at)
    return list(by_label.items())


def _settings(folder: Folder) -> dict[str, Any]:
    """Return all settings but the seed, and those that say where a run was, by path."""
    nested = folder.config.model_dump(exclude={"seed", "device", "threads", "checkpoint_every", "checkpoints_kept"})
    flat: dict[str, Any] = {}
    for section, values in nested.items():
        parts = values if isinstance(values, dict) else {"": values}
        flat |= {f"{section}.{name}".rstrip("."): value for name, value in parts.items()}
    return {key: value for key, value in flat.items() if key not in ("data.data_dir", "data.cache_dir")}


def _names(firsts: Sequence[Folder]) -> list[str]:
    """Return a label for each group, from the first run of each."""
    methods = [str(folder.summary["method"]) for folder in firsts]
    names = []
    for method, folder in zip(methods, firsts, strict=True):
        alike = [_settings(other) for other, name in zip(firsts, methods, strict=True) if name == method]
        mine = _settings(folder)
        differing = [key for key in mine if len({str(other.get(key)) for other in alike}) > 1]
        names.append(", ".join([method, *(f"{key.rpartition('.')[2]}={mine[key]}" for key in differing)]))
    return names


def as_groups(folders: Sequence[Folder], groups: Sequence[tuple[str, list[int]]]) -> dict[str, Any]:
    """Return the groups with their table for the page: texts, and whether each is ahead of all others."""
    numbers = with_personal(
        [
            {column.key: statistic([_number(folders[at], column) for at in members]) for column in COLUMNS}
            for _, members in groups
        ]
    )

    columns = [column for column in COLUMNS if any(each[column.key] is not None for each in numbers)]

    def cell(mine: int, column: Column) -> Row:
        number = numbers[mine][column.key]
        others = [each[column.key] for at, each in enumerate(numbers) if at != mine]
        known = [each for each in others if each is not None]
        best = column.best is not None and number is not None and bool(known)
        return {
            "text": as_text(number, column.decimals, column.scale),
            "ahead": best and all(ahead(number, each, str(column.best)) for each in known),  # type: ignore[arg-type]
            "mean": None if number is None else number.mean,
            "std": None if number is None else number.std,
        }

    return {
        "columns": [{"key": column.key, "title": column.title} for column in columns],
        "verdict": verdict([label for label, _ in groups], numbers),
        "groups": [
            {"label": label, "runs": members, "cells": {column.key: cell(at, column) for column in columns}}
            for at, (label, members) in enumerate(groups)
        ],
    }


def _number(folder: Folder, column: Column) -> float | None:
    if column.key != "mb_per_client_round":
        value = {**folder.summary, **fairness(folder.summary)}.get(column.key)
        return None if value is None else float(value)
    took_part = sum(row["participants"] for row in folder.metrics)
    return (folder.summary["bytes_up"] + folder.summary["bytes_down"]) / 1e6 / took_part if took_part else None
