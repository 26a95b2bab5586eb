"""What one round gave: the numbers of `metrics.jsonl`, and what changed."""

from dataclasses import dataclass, field
from typing import Any

from hcfl.core.cluster_log import Change
from hcfl.core.evaluation import Quality
from hcfl.core.state import Missing
from hcfl.tiers.distance import Distances

PHASES = ("clients", "server", "evaluation")
"""What takes time in a round, in this order."""


@dataclass(frozen=True)
class Record:
    """What one round gave: the numbers of `metrics.jsonl`, and what changed."""

    round: int
    participants: int
    objective: float | None
    """Mean log-likelihood of the participants' samples after the E-step, where all took one."""
    val: float | None
    test: float | None
    test_per_concept: tuple[float, ...]
    clusters: int
    cluster_sizes: dict[int, int]
    quality: Quality
    without_shared_class: float | None
    down: dict[str, int]
    up: dict[str, int]
    seconds: dict[str, float]
    """By phase: the clients' work (on Flower, with the waiting for them), the server's, evaluation."""
    changes: tuple[Change, ...]
    distances: Distances | None = field(default=None, compare=False)
    """The distances that splits were decided by, where there were some."""
    missing: tuple[Missing, ...] = ()
    """Clients that were sampled and whose uploads do not count, of all attempts."""


Row = dict[str, Any]


def metrics_row(record: Record) -> Row:
    """Return one line of `metrics.jsonl`."""
    return {
        "round": record.round,
        "participants": record.participants,
        "clients_seen": sum(record.cluster_sizes.values()),
        "objective": record.objective,
        "val": record.val,
        "test": record.test,
        "test_per_concept": list(record.test_per_concept) or None,
        "clusters": record.clusters,
        "cluster_ids": list(record.cluster_sizes),
        "cluster_sizes": list(record.cluster_sizes.values()),
        "ari": record.quality.ari,
        "ari_affected": record.quality.ari_affected,
        "nmi": record.quality.nmi,
        "purity": record.quality.purity,
        "pairs_without_shared_class": record.without_shared_class,
        "bytes_up": sum(record.up.values()),
        "bytes_down": sum(record.down.values()),
        "bytes_up_by_part": record.up,
        "bytes_down_by_part": record.down,
        "seconds": sum(record.seconds.values()),
        "seconds_by_phase": record.seconds,
    }
