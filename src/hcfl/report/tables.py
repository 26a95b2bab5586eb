"""Tables for the terminal: methods, scenarios, a federation, runs side by side."""

from collections.abc import Sequence

import numpy as np
from rich import box
from rich.table import Table

from hcfl import methods
from hcfl.config import scenarios
from hcfl.core.record import Row
from hcfl.data import Federation
from hcfl.data.readers.available_memory import format_bytes
from hcfl.data.tables import Schema
from hcfl.runs import folder as run_folder
from hcfl.runs.progress import percent
from hcfl.runs.run import Run

SHADES = " ░▒▓█"
"""Shades for the number of samples of a class, from none to the largest number of any client."""

CLIENTS_SHOWN = 60
"""The table shows at most this many clients, the first ones."""

CLASSES_AS_NUMBERS = 20
"""With at most this many classes, cells are numbers; with more, shades."""


PRINCIPLES = (
    "ASCP, the any-shift clustering principle: clients that differ in any way are separated; "
    "CSCP, the concept-shift clustering principle: only clients that label the same thing differently"
)
"""What the distances of HCFL+ are called by."""


def method_table() -> Table:
    """Return a table of every method with its choices on the four tiers."""
    table = Table(title="Methods and their choices on the four tiers", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in ("formulation", "weights", "clusters", "distance", "model"):
        table.add_column(column)
    for name in methods.METHODS:
        table.add_row(name, *methods.build(name).choices().values())
    table.caption = f"{PRINCIPLES}."
    return table


def settings_lines() -> list[str]:
    """Return a line for each method: its settings with their defaults, as flags."""
    lines = []
    for name in methods.METHODS:
        flags = [f"--{key.replace('_', '-')} {value}" for key, value in methods.settings_of(name).items()]
        lines.append(f"{name}: {', '.join(flags) or 'no settings'}")
    return lines


def scenario_table() -> Table:
    """Return a table of every scenario with its description."""
    table = Table(title="Scenarios, for --scenario", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("scenario", no_wrap=True)
    table.add_column("what")
    for name in scenarios.names():
        table.add_row(name, scenarios.load(name)["description"])
    return table


def federation_table(federation: Federation) -> Table:
    """Return a table of clients × classes: how many samples of each class a client holds, and its true shifts."""
    counts = federation.class_table()
    shown = min(len(counts), CLIENTS_SHOWN)
    title = f"{federation.name}: {federation.clients} clients, {federation.classes} {_bins(federation)}"
    if federation.settings.copies > 1:
        title += f", {federation.settings.copies} copies of the training set"
    if shown < len(counts):
        title += f" (the first {shown} clients)"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    truth = federation.truth
    as_numbers = federation.classes <= CLASSES_AS_NUMBERS
    shifts = [*(["concept"] if truth else []), *(["corruption"] if federation.corruptions else [])]
    for name in ("client", "samples", *shifts):
        table.add_column(name, justify="right", no_wrap=True)
    for name in federation.class_names if as_numbers else ("classes, in order",):
        table.add_column(name, justify="right" if as_numbers else "left")
    largest = max(1, int(counts.max()))
    for client in range(shown):
        row = counts[client].tolist()
        cells = [str(federation.client_names[client]), str(sum(row))]
        if truth is not None:
            cells.append(str(truth.names[truth.concept[client]]))
        if federation.corruptions is not None:
            cells.append(str(federation.corruptions[client]))
        if as_numbers:
            cells += [str(number) if number else "·" for number in row]
        else:
            cells.append("".join(SHADES[-(-number * (len(SHADES) - 1) // largest)] for number in row))
        table.add_row(*cells)
    return table


BINS = {"classification": "classes", "regression": "quantile bins", "multi-label": "label sets"}
"""What answers are counted by, for each task."""


def _bins(federation: Federation) -> str:
    return BINS[federation.task.name]


def column_table(schema: Schema) -> Table:
    """Return a table of a table's columns: kind, missing values, and how each becomes inputs."""
    kind = (
        f"{len(schema.label.classes)} classes" if schema.label.task.name == "classification" else schema.label.task.name
    )
    label = f"{schema.label.name} ({kind})"
    title = f"{len(schema.columns)} columns, {len(schema.outputs)} inputs, label {label}"
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name, justify in (("column", "left"), ("kind", "left"), ("missing", "right"), ("inputs", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    table.add_column("values")
    for column in schema.columns:
        missing = f"{column.missing:.1%}" if column.missing else "–"
        values = ", ".join(column.categories[:8]) + (", …" if len(column.categories) > 8 else "")
        if column.kind == "date":
            values = f"median {np.datetime64(int(column.fill), 'D')}"
        elif column.tokens is not None:
            values = f"tokens of {column.tokens.tokenizer}"
        elif column.kind != "category":
            values = f"median {column.fill:.4g}"
        table.add_row(column.name, column.kind, missing, str(len(column.outputs)), values)
    return table


def summary_table(runs: Sequence[Run]) -> Table:
    """Return a table with a column for each run."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for run in runs:
        table.add_column(run.summary["method"], justify="right")

    def add(label: str, cell: str, *keys: str) -> None:
        table.add_row(label, *(cell.format(*(_shown(run.summary, key) for key in keys)) for run in runs))

    add("Val, last round (best)", "{} ({})", "val_last", "val_best")
    if any(run.summary.get("val_personal_last") is not None for run in runs):
        add("Val with personal parts", "{}", "val_personal_last")
        add("worst tenth of clients (personal)", "{} ({})", "val_worst_tenth", "val_personal_worst_tenth")
    add("Test, last round (best)", "{} ({})", "test_last", "test_best")
    add("Test at the best-Val round", "{}", "test_at_best_val")
    if any(run.summary.get("val_worst_client") is not None for run in runs):
        add("Val of the worst client", "{}", "val_worst_client")
        add("balanced accuracy, macro F1", "{}, {}", "balanced_accuracy", "macro_f1")
    add("clusters with clients (true)", "{} ({})", "clusters_last", "clusters_true")
    add("agreement with the truth (adjusted Rand index, ARI)", "{}", "ari_last")
    if any(run.summary.get("prequential_mean") is not None for run in runs):
        add("steps of time: prequential Val, Val at their ends", "{}, {}", "prequential_mean", "val_step_mean")
        changes = "concept_changes", "concept_changes_missed", "delay_mean"
        add("changes of concept (missed), rounds until followed", "{} ({}), {}", *changes)
        add("clients that moved without a change, each step", "{}", "false_moves")
    if any(run.summary.get("wasserstein_silhouette") is not None for run in runs):
        scores = "wasserstein_silhouette", "wasserstein_davies_bouldin"
        add("class frequencies within clusters: silhouette, Davies-Bouldin", "{}, {}", *scores)
    if any(run.summary.get("groups_given") is not None for run in runs):
        add("agreement with the given groups, clients moved", "{}, {}", "groups_ari", "groups_moved")
        add("Val of the given groups' own models", "{}", "val_groups")
    if any(run.summary.get("clients_refused") or run.summary.get("clients_absent") for run in runs):
        add("uploads refused, absent", "{}, {}", "clients_refused", "clients_absent")
    if any(run.summary.get("served_by") == "likelihood" for run in runs):
        add("round that is served", "{} of {}", "served_round", "rounds")
        add("Val, Test of that round", "{}, {}", "val_served", "test_served")
    add("megabytes up + down", "{} + {}", "bytes_up", "bytes_down")
    add("seconds per round", "{}", "seconds_per_round")
    if any(run.summary["epsilon"] is not None for run in runs):
        add("privacy spent: ε (at δ)", "{} ({})", "epsilon", "delta")
    return table


def remarks(run: Run) -> list[str]:
    """Return sentences below the table: what is served, and what should be known before it is used."""
    summary, told = run.summary, []
    if served := summary.get("served_bytes"):
        told.append(
            f"Served: round {summary['served_round']}, with the largest likelihood of held-out samples, not the last; "
            f"it takes {format_bytes(served)} in {run.path / run_folder.CHECKPOINT}. --serve last takes the last."
        )
    if forecast := summary.get("forecast"):
        told.append(f"Forecast: {forecast}.")
    if groups := summary.get("groups"):
        told.append(f"Groups: {groups}.")
    return [*told, *(f"Warning: {each}." for each in summary.get("warnings") or ())]


def _shown(summary: Row, key: str) -> str:
    value = summary.get(key)
    if value is None:
        return "–"
    if key.startswith(("val", "test", "balanced", "macro", "prequential", "false_moves")):
        return percent(value).strip()
    if key.startswith("bytes"):
        return f"{value / 1e6:.1f}"
    if key == "delta":
        return f"{value:g}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
