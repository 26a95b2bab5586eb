"""The output of `hcfl assign`: the clusters of a new client."""

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from hcfl.runs.progress import percent
from hcfl.serving.newcomers import Assignment

EVIDENCE = {
    "labels": "mean log-likelihood",
    "descriptors": "−W²",
    "prototypes": "mean log density",
    "confidence": "expected log-likelihood",
}
"""The title of the column with the evidence for a cluster, by where the evidence comes from."""


def show(found: Assignment, console: Console) -> None:
    """Print the clusters with their weights and the evidence, the chosen cluster, and a note where there is one."""
    table = Table(title=f"{found.samples} samples, by {found.evidence}", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("cluster", "weight", EVIDENCE[found.evidence], "confidence", "prototype distance", "accuracy alone"):
        table.add_column(name, justify="right")
    for each in found.clusters:
        table.add_row(
            str(each.cluster),
            f"{each.weight:.3f}",
            f"{each.evidence:.3f}",
            percent(each.confidence).strip(),
            "–" if each.prototype_distance is None else f"{each.prototype_distance:.4f}",
            percent(each.accuracy).strip(),
        )
    console.print(table)
    accuracy = "" if found.accuracy is None else f", accuracy {percent(found.accuracy).strip()}"
    console.print(f"Cluster {found.cluster}{accuracy}.", highlight=False)
    if found.note:
        console.print(found.note, highlight=False, soft_wrap=True)


def assignments_table(found: Mapping[Any, Assignment]) -> Table:
    """Return a table with a row for each of several new clients."""
    table = Table(title=f"{len(found)} newcomers", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("newcomer", "samples", "cluster", "weight", "accuracy", "by"):
        table.add_column(name, justify="right")
    for name, each in found.items():
        by = f"{each.evidence}, doubtful" if each.doubtful else each.evidence
        weight = f"{each.weights[each.cluster]:.3f}"
        table.add_row(str(name), str(each.samples), str(each.cluster), weight, percent(each.accuracy).strip(), by)
    return table
