"""The fields of `metrics.jsonl`: one list, which files, pages and trackers share."""

import json
from pathlib import Path

import pytest

from hcfl.core.record import CURVES, METRICS, metrics_row, record_of

REPOSITORY = Path(__file__).parents[2]
LINES = (REPOSITORY / "tests" / "runs" / "run-0.1" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("line", LINES)
def test_a_record_is_what_its_line_was_written_from(line):
    row = json.loads(line)
    assert list(row) == list(METRICS), "version 0.1 wrote the same fields"
    assert metrics_row(record_of(row)) == row


def test_curves_are_one_number_a_round():
    row = json.loads(LINES[0])
    assert all(isinstance(row[name], int | float) for name in CURVES)


def test_every_field_is_documented():
    page = (REPOSITORY / "docs" / "run-folder.md").read_text(encoding="utf-8")
    assert [name for name in METRICS if f"`{name}`" not in page] == []
