"""The fields of `metrics.jsonl`: one list, which files, pages and trackers share."""

import json
from pathlib import Path

import pytest

from hcfl.core.record import CURVES, METRICS, metrics_row, record_of, used_clusters

REPOSITORY = Path(__file__).parents[2]
LINES = (REPOSITORY / "tests" / "runs" / "run-0.1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES)
def test_a_record_is_what_its_line_was_written_from(line):
    row = json.loads(line)
    later = {"val_worst_client", "balanced_accuracy", "macro_f1", "likelihood", "absent", "refused", "val_personal"}
    later |= {name for name, metric in METRICS.items() if metric.optional}
    assert [name for name in METRICS if name not in later] == list(row), "fields of version 0.1"
    written = metrics_row(record_of(row))
    assert {name: written[name] for name in row} == row
    assert not any(written.get(name) for name in later)


def test_k_counts_clusters_that_have_clients():
    assert used_clusters({0: 36, 1: 0}) == 1
    assert used_clusters({4: 2, 7: 1, 9: 0}) == 2
    assert used_clusters({0: 0, 1: 0}) == 2, "the server does not know who belongs where"


def test_a_line_of_today_is_read_back():
    row = json.loads(LINES[0]) | {
        "val_worst_client": 0.1,
        "balanced_accuracy": 0.4,
        "macro_f1": 0.3,
        "likelihood": -2.0,
        "val_personal": 0.6,
    }
    assert metrics_row(record_of(row)) == row | {"absent": 0, "refused": 0}


def test_curves_are_one_number_a_round():
    row = json.loads(LINES[0])
    assert all(isinstance(row[name], int | float) for name in CURVES if name in row)


def test_every_field_is_documented():
    page = (REPOSITORY / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`{name}`" not in page] == []
