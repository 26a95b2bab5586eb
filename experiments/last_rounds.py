"""A table of what runs ended with, over seeds; experiments share it."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

COLUMNS = {"val_last": 100, "test_last": 100, "clusters_last": 1, "ari_affected_last": 1}


def head(first: str) -> str:
    """Return the table's first two lines."""
    return f"| {first} | Val, last | Test, last | K | ARI, affected |\n|---|---|---|---|---|"


def row(label: str, runs: Sequence[Path]) -> str:
    """Return one line: mean and deviation over some runs."""
    found = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    cells = []
    for key, scale in COLUMNS.items():
        values = [scale * summary[key] for summary in found]
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        cells.append(f"{mean(values):.2f}{spread}")
    return f"| {label} | {' | '.join(cells)} |"
