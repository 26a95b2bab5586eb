"""A run that was prepared is played: round by round into its folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hcfl import checkpoint, rounds, run_folder
from hcfl.config import Config
from hcfl.data import Federation
from hcfl.precision import matrix_products
from hcfl.rounds import Record, Setting
from hcfl.run_folder import Row
from hcfl.state import RunState
from hcfl.threads import threads

OnRound = Callable[[Record], None]
"""Whoever is told about each round as it ends."""


@dataclass(frozen=True)
class Prepared:
    """A run that could start: the configuration with everything filled in, the parts, and the state before round 1."""

    config: Config
    setting: Setting
    state: RunState


@dataclass(frozen=True)
class Run:
    """A run that ended."""

    path: Path
    config: Config
    federation: Federation
    summary: Row
    metrics: Sequence[Row]
    state: RunState

    def report(self, out: str | Path | None = None) -> Path:
        """Write the run as one HTML page, into its folder unless told otherwise; return where it is."""
        from hcfl.report import page  # it reads what runs write

        return page.write([self.path], None if out is None else Path(out))


def play_on(
    prepared: Prepared,
    path: Path,
    metrics: list[Row],
    on_round: OnRound | None = None,
    checkpoint_every: int | None = None,
) -> Run:
    """Play from a state to the end in a run folder that is there, with a checkpoint every few rounds if asked."""
    config, federation, method = prepared.config, prepared.setting.federation, prepared.setting.method.name
    state = prepared.state
    try:
        with threads(config.threads), matrix_products(rounded=config.precision != "fp32"):
            for after, record in rounds.play(prepared.setting, prepared.state, config.training.rounds):
                state = after
                metrics.append(run_folder.append(path, record, federation.client_names))
                if checkpoint_every and record.round % checkpoint_every == 0:
                    checkpoint.save(path / run_folder.CHECKPOINT, state, federation.scaling)
                if on_round is not None:
                    on_round(record)
    except BaseException:
        if metrics:
            run_folder.finish(path, method, config, federation, state, metrics)
        else:
            run_folder.discard(path)
        raise
    summary = run_folder.finish(path, method, config, federation, state, metrics)
    return Run(path, config, federation, summary, metrics, state)
