"""The record of one round, and the fields of `metrics.jsonl`, which are listed here and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from hcfl.core.cluster_log import Change
from hcfl.core.evaluation import Quality
from hcfl.core.held_out import ByClass
from hcfl.core.state import Missing
from hcfl.core.suspicion import Anomalies
from hcfl.tiers.distance import Distances

PHASES = ("clients", "server", "evaluation")
"""What takes time in a round, in this order."""


@dataclass(frozen=True)
class Moment:
    """Where a round is in time, in runs whose clients change."""

    step: int
    """From 1."""
    prequential: float | None
    """Val on all new samples of the step, before any of them was trained on; in the first round of a step."""
    members: tuple[int | None, ...]
    """The id of each client's cluster; None where it has none."""
    concepts: tuple[int, ...] | None
    """Each client's true concept, where it is known."""


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
    """K: how many clusters have clients."""
    cluster_sizes: dict[int, int]
    """How many clients have each cluster as their own, by id; clusters without clients, too."""
    quality: Quality
    without_shared_class: float | None
    down: dict[str, int]
    up: dict[str, int]
    seconds: dict[str, float]
    """By phase: the clients' work (on Flower, with the waiting for them), the server's, evaluation."""
    changes: tuple[Change, ...]
    distances: Distances | None = field(default=None, compare=False)
    """The distances that splits were decided by, where there were some."""
    val_error: float | None = None
    """The standard error of Val, where it is of a sample of the clients."""
    val_personal: float | None = None
    """Val with personal parts, in rounds that measure them."""
    missing: tuple[Missing, ...] = ()
    """Clients that were sampled and whose uploads do not count, of all attempts."""
    val_worst_client: float | None = None
    by_class: ByClass | None = None
    likelihood: float | None = None
    """The mean log-likelihood of the held-out samples that choose the round to serve."""
    received_likelihood: float | None = None
    """The same of the models that the round began with, where clients tell it because a run may stop early."""
    val_honest: float | None = None
    """Val over the clients that do not attack, where some do."""
    backdoor: float | None = None
    """The share of marked test inputs that are taken for the backdoor's target, where there is one."""
    anomalies: Anomalies | None = field(default=None, compare=False)
    """How unlike the others each upload was, where suspicious clients are put into quarantine."""
    time: Moment | None = None
    """Where the round is in time, where there are steps."""


def used_clusters(sizes: Mapping[int, int]) -> int:
    """Return how many clusters have clients; all of them where the server does not know who belongs where.

    >>> used_clusters({0: 36, 1: 0})
    1
    """
    return sum(size > 0 for size in sizes.values()) or len(sizes)


Row = dict[str, Any]
"""A line of a JSON-lines file."""


class Metric(NamedTuple):
    """A field of `metrics.jsonl`."""

    of: Callable[[Record], Any]
    """Its value, as JSON has it."""
    plotted: bool = False
    """Whether the HTML page shows it as a curve over rounds."""
    optional: bool = False
    """Whether lines without a value leave it out."""


METRICS: dict[str, Metric] = {
    "round": Metric(lambda record: record.round, plotted=True),
    "participants": Metric(lambda record: record.participants, plotted=True),
    "clients_seen": Metric(lambda record: sum(record.cluster_sizes.values())),
    "objective": Metric(lambda record: record.objective, plotted=True),
    "val": Metric(lambda record: record.val, plotted=True),
    "val_error": Metric(lambda record: record.val_error, optional=True),
    "val_worst_client": Metric(lambda record: record.val_worst_client, plotted=True),
    "balanced_accuracy": Metric(lambda record: record.by_class and record.by_class.balanced_accuracy, plotted=True),
    "macro_f1": Metric(lambda record: record.by_class and record.by_class.macro_f1, plotted=True),
    "likelihood": Metric(lambda record: record.likelihood),
    "received_likelihood": Metric(lambda record: record.received_likelihood, optional=True),
    "val_personal": Metric(lambda record: record.val_personal, plotted=True),
    "test": Metric(lambda record: record.test, plotted=True),
    "test_per_concept": Metric(lambda record: list(record.test_per_concept) or None),
    "clusters": Metric(lambda record: record.clusters, plotted=True),
    "absent": Metric(lambda record: sum(not one.refused for one in record.missing)),
    "refused": Metric(lambda record: sum(one.refused for one in record.missing)),
    "cluster_ids": Metric(lambda record: list(record.cluster_sizes)),
    "cluster_sizes": Metric(lambda record: list(record.cluster_sizes.values())),
    "ari": Metric(lambda record: record.quality.ari, plotted=True),
    "ari_affected": Metric(lambda record: record.quality.ari_affected),
    "nmi": Metric(lambda record: record.quality.nmi, plotted=True),
    "purity": Metric(lambda record: record.quality.purity, plotted=True),
    "pairs_without_shared_class": Metric(lambda record: record.without_shared_class),
    "bytes_up": Metric(lambda record: sum(record.up.values())),
    "bytes_down": Metric(lambda record: sum(record.down.values())),
    "bytes_up_by_part": Metric(lambda record: record.up),
    "bytes_down_by_part": Metric(lambda record: record.down),
    "seconds": Metric(lambda record: sum(record.seconds.values()), plotted=True),
    "seconds_by_phase": Metric(lambda record: record.seconds),
    "step": Metric(lambda record: record.time and record.time.step, optional=True),
    "prequential": Metric(lambda record: record.time and record.time.prequential, plotted=True, optional=True),
    "client_clusters": Metric(lambda record: record.time and list(record.time.members), optional=True),
    "client_concepts": Metric(
        lambda record: record.time and record.time.concepts and list(record.time.concepts), optional=True
    ),
    "val_honest": Metric(lambda record: record.val_honest, optional=True),
    "backdoor": Metric(lambda record: record.backdoor, optional=True),
    "anomalies": Metric(
        lambda record: None if record.anomalies is None else anomaly_table(record.anomalies), optional=True
    ),
}
"""Every field of `metrics.jsonl`, in the order of a line. A new metric is a line here and one in docs/run-folder.md."""

CURVES = tuple(name for name, metric in METRICS.items() if metric.plotted)
"""The fields that the HTML page shows as curves: one number a round."""


def anomaly_table(found: Anomalies) -> Row:
    """Return the scores of a round's uploads by client, with three digits."""
    columns = {**found.scores, "suspicion": found.suspicion}
    rounded = {name: [float(f"{value:.3g}") for value in values] for name, values in columns.items()}
    return {"client": list(found.clients), **rounded}


def metrics_row(record: Record) -> Row:
    """Return a round's line of `metrics.jsonl`."""
    row = {name: metric.of(record) for name, metric in METRICS.items()}
    return {name: value for name, value in row.items() if value is not None or not METRICS[name].optional}


def _by_class(row: Row) -> ByClass | None:
    balanced_accuracy, macro_f1 = row.get("balanced_accuracy"), row.get("macro_f1")
    if balanced_accuracy is None or macro_f1 is None:
        return None
    return ByClass(balanced_accuracy, macro_f1)


def _moment(row: Row) -> Moment | None:
    if "step" not in row:
        return None
    concepts = row.get("client_concepts")
    members = tuple(row.get("client_clusters") or ())
    return Moment(row["step"], row.get("prequential"), members, None if concepts is None else tuple(concepts))


def record_of(row: Row, changes: Sequence[Change] = ()) -> Record:
    """Return the record that a line of `metrics.jsonl` was written from, with the changes of the clusters."""
    unchanged = {each.name: row[each.name] for each in fields(Record) if each.name in row and each.name != "anomalies"}
    nested = {
        "test_per_concept": tuple(row["test_per_concept"] or ()),
        "cluster_sizes": dict(zip(row["cluster_ids"], row["cluster_sizes"], strict=True)),
        "quality": Quality(**{each.name: row[each.name] for each in fields(Quality)}),
        "without_shared_class": row["pairs_without_shared_class"],
        "down": row["bytes_down_by_part"],
        "up": row["bytes_up_by_part"],
        "seconds": row["seconds_by_phase"],
        "by_class": _by_class(row),
        "time": _moment(row),
    }
    return Record(**{**unchanged, **nested, "changes": tuple(changes)})
