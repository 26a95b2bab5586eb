"""TensorBoard: event files in the run folder's `tensorboard`."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from hcfl.config import Config
from hcfl.core.record import Record, Row
from hcfl.trackers import numbers

FOLDER = "tensorboard"


@dataclass(frozen=True)
class TensorBoard:
    """Scalars by round; configuration and summary as text."""

    writer: SummaryWriter

    def on_round(self, record: Record) -> None:
        """Write a round's scalars."""
        for name, value in numbers(record).items():
            self.writer.add_scalar(name, value, record.round)
        self.writer.flush()

    def on_end(self, summary: Row | None) -> None:
        """Write the summary and close the files."""
        if summary is not None:
            self.writer.add_text("summary", _as_code(json.dumps(summary, indent=2)))
        self.writer.close()


def open_tracker(path: Path, config: Config) -> TensorBoard:
    """Open the event files of a run."""
    writer = SummaryWriter(path / FOLDER)
    writer.add_text("config", _as_code(config.to_yaml()))
    return TensorBoard(writer)


def _as_code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
