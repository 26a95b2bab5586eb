"""Tables for the terminal."""

from collections.abc import Sequence

from rich.table import Table

from hcfl import methods
from hcfl.data import Federation
from hcfl.experiment import Run
from hcfl.report.progress import percent
from hcfl.run_folder import Row

SHADES = " ░▒▓█"
"""From no samples of a class to the most that any client holds."""

MOST_ROWS = 60
"""Clients shown one by one; of larger federations the table shows the first."""


def method_table() -> Table:
    """Every method as its choices on the four tiers."""
    table = Table(title="Methods and their choices on the four tiers", show_edge=False)
    for column in ("method", "1 formulation", "2 weights", "3 clusters", "4 distance", "model", "settings"):
        table.add_column(column)
    for name in methods.METHODS:
        method = methods.build(name)
        settings = ", ".join(f"{key}={value}" for key, value in methods.settings_of(name).items())
        table.add_row(name, *method.choices().values(), settings or "–")
    return table


def federation_table(federation: Federation) -> Table:
    """Classes × clients: how many samples of each class each client holds, and its true concept."""
    counts = federation.class_table()
    shown = min(len(counts), MOST_ROWS)
    title = f"{federation.name}: {federation.clients} clients, {federation.classes} classes"
    if shown < len(counts):
        title += f" (the first {shown})"
    table = Table(title=title, show_edge=False, pad_edge=False)
    table.add_column("client", justify="right")
    table.add_column("samples", justify="right")
    if federation.truth is not None:
        table.add_column("concept", justify="right")
    narrow = federation.classes > 20
    if narrow:
        table.add_column("classes 0 …")
    else:
        for name in federation.class_names:
            table.add_column(name, justify="right")
    most = max(1, int(counts.max()))
    for client in range(shown):
        row = counts[client]
        cells = [str(federation.client_names[client]), str(row.sum())]
        if federation.truth is not None:
            cells.append(str(federation.truth.names[federation.truth.concept[client]]))
        shades = [SHADES[-(-int(n) * (len(SHADES) - 1) // most)] for n in row]
        table.add_row(
            *cells,
            *(["".join(shades)] if narrow else [f"{n} {shade}" for n, shade in zip(row, shades, strict=True)]),
        )
    return table


def summary_table(runs: Sequence[Run]) -> Table:
    """Show runs side by side."""
    table = Table(show_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(run.summary["method"], justify="right")

    def add(label: str, cell: str, *keys: str) -> None:
        table.add_row(label, *(cell.format(*(_shown(run.summary, key) for key in keys)) for run in runs))

    add("Val, last round (best)", "{} ({})", "val_last", "val_best")
    add("Test, last round (best)", "{} ({})", "test_last", "test_best")
    add("Test at the best-Val round", "{}", "test_at_best_val")
    add("clusters found (true)", "{} ({})", "clusters_last", "clusters_true")
    add("ARI against the truth", "{}", "ari_last")
    add("megabytes up + down", "{} + {}", "bytes_up", "bytes_down")
    add("seconds per round", "{}", "seconds_per_round")
    return table


def _shown(summary: Row, key: str) -> str:
    value = summary[key]
    if value is None:
        return "–"
    if key.startswith(("val", "test")):
        return percent(value).strip()
    if key.startswith("bytes"):
        return f"{value / 1e6:.1f}"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
