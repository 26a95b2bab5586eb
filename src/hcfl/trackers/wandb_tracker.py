"""Weights & Biases: a run of the project `hcfl`; WANDB_MODE=offline keeps it in the run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wandb

from hcfl.config import Config
from hcfl.core.record import Record, Row
from hcfl.trackers import numbers

PROJECT = "hcfl"


@dataclass(frozen=True)
class WeightsAndBiases:
    """The configuration, metrics by round, and the summary."""

    run: Any

    def on_round(self, record: Record) -> None:
        """Log a round's metrics."""
        self.run.log(numbers(record), step=record.round)

    def on_end(self, summary: Row | None) -> None:
        """Log the summary and end the run."""
        self.run.summary.update(summary or {})
        self.run.finish(exit_code=1 if summary is None else 0)


def open_tracker(path: Path, config: Config) -> WeightsAndBiases:
    """Start the run."""
    return WeightsAndBiases(wandb.init(project=PROJECT, name=path.name, dir=path, config=config.model_dump()))
