"""A run that was prepared is played: round by round into its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hcfl import checkpoint, profiles, rounds, run_folder
from hcfl.config import Config
from hcfl.precision import matrix_products
from hcfl.quorum import NoQuorumError, missing_rows
from hcfl.result import Run
from hcfl.rounds import Record, Setting
from hcfl.run_folder import Row
from hcfl.state import RunState
from hcfl.threads import threads

__all__ = ["OnRound", "Prepared", "Run", "play_on"]

OnRound = Callable[[Record], None]
"""Whoever is told about each round as it ends."""


@dataclass(frozen=True)
class Prepared:
    """A run that could start: the configuration with everything filled in, the parts, and the state before round 1."""

    config: Config
    setting: Setting
    state: RunState


def play_on(
    prepared: Prepared,
    path: Path,
    metrics: list[Row],
    on_round: OnRound | None = None,
    checkpoint_every: int | None = None,
) -> Run:
    """Play from a state to the end in a run folder that is there, with a checkpoint every few rounds if asked."""
    config, setting = prepared.config, prepared.setting
    federation, method, network = setting.federation, setting.method, setting.network
    state = prepared.state
    with threads(config.threads), matrix_products(rounded=config.precision != "fp32"):
        try:
            for after, record in rounds.play(setting, prepared.state, config.training.rounds):
                state = after
                metrics.append(run_folder.append(path, record, federation.client_names))
                if checkpoint_every and record.round % checkpoint_every == 0:
                    checkpoint.save(path / run_folder.CHECKPOINT, state, federation.scaling)
                if on_round is not None:
                    on_round(record)
        except BaseException as error:
            if metrics and isinstance(error, NoQuorumError):
                for row in missing_rows(error.round, error.missing, federation.client_names):
                    run_folder.append_event(path, row)
            if metrics:
                run_folder.finish(path, method.name, config, federation, state, metrics)
                checkpoint.save_outline(path / run_folder.CHECKPOINT, federation, None)
            else:
                run_folder.discard(path)
            raise
        private = config.privacy.mode != "none"  # then nothing but sums may leave the clients
        found = None if private else profiles.measure(federation, network, method, state.server)
    summary = run_folder.finish(path, method.name, config, federation, state, metrics)
    checkpoint.save_outline(path / run_folder.CHECKPOINT, federation, found)
    return Run(path, config, federation, summary, metrics, state, method, network, found)
