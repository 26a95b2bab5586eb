"""MLflow: a run of the experiment `hcfl`, in the store that MLFLOW_TRACKING_URI names."""

from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Param, RunTag

from hcfl.config import Config, flat_fields
from hcfl.core.record import Record, Row
from hcfl.trackers import numbers

EXPERIMENT = "hcfl"


@dataclass(frozen=True)
class MLflow:
    """Settings as parameters, metrics by round, the summary as tags."""

    client: MlflowClient
    run: str

    def on_round(self, record: Record) -> None:
        """Log a round's metrics."""
        for name, value in numbers(record).items():
            self.client.log_metric(self.run, name, value, step=record.round)

    def on_end(self, summary: Row | None) -> None:
        """Log the summary and end the run."""
        self.client.log_batch(self.run, tags=[RunTag(key, str(value)) for key, value in (summary or {}).items()])
        self.client.set_terminated(self.run, "KILLED" if summary is None else "FINISHED")


def open_tracker(path: Path, config: Config) -> MLflow:
    """Create the run."""
    client = MlflowClient()
    known = client.get_experiment_by_name(EXPERIMENT)
    experiment = client.create_experiment(EXPERIMENT) if known is None else known.experiment_id
    run = client.create_run(experiment, run_name=path.name).info.run_id
    client.log_batch(run, params=[Param(name, str(value)) for name, value in settings(config).items()])
    return MLflow(client, run)


def settings(config: Config) -> dict[str, object]:
    """Return all settings that have a value, by their dotted paths."""
    tree = config.model_dump()
    found: dict[str, object] = {}
    for path in flat_fields().values():
        value: object = tree
        for key in path.split("."):
            value = value[key] if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
