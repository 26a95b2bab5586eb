"""When two runs are the same."""

from torch.testing import assert_close

from hcfl.runs import folder as run_folder
from hcfl.runs.checkpoint import load


def same_run(one, two):
    """Identical clusters and events, parameters within 1e-5."""
    mine, theirs = load(one / "checkpoint")[0].server, load(two / "checkpoint")[0].server
    assert mine.clusters == theirs.clusters
    assert mine.members.tolist() == theirs.members.tolist()
    for part in ("heads", "extractors"):
        assert_close(getattr(mine.ensemble, part), getattr(theirs.ensemble, part), rtol=0, atol=1e-5)
    assert_close(mine.weights, theirs.weights, rtol=0, atol=1e-5)
    assert _changes(one) == _changes(two)


WHO = ("absent", "refused", "joined", "left")
"""Events of clients, not of clusters."""


def _changes(path):
    """What happened to the clusters, without the last digits of distances and without who was absent."""
    rows = [row for row in run_folder.rows(path, "events.jsonl") if row["event"] not in WHO]
    return [{name: value for name, value in row.items() if "distance" not in name} for row in rows]
