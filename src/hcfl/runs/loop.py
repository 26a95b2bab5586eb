"""A run that was prepared is played: round by round into its folder."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from hcfl.config import Config
from hcfl.core import cluster_profiles, rounds
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.collect import NoQuorumError
from hcfl.core.record import Record, Row
from hcfl.core.setting import Setting
from hcfl.core.state import RunState
from hcfl.errors import SavingError
from hcfl.models.precision import matrix_products, threads
from hcfl.runs import checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.run import Run
from hcfl.runs.save import is_due, saving
from hcfl.runs.tables import missing_rows

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
    """Play from a state to the end in a run folder that is there, with checkpoints on the way.

    Whatever ends it before, and `on_round` may, leaves the folder whole up to the last round.
    """
    config, setting, state = prepared.config, prepared.setting, prepared.state
    federation, method, network = setting.federation, setting.method, setting.network
    saved, cost = perf_counter(), 0.0
    with threads(config.threads), matrix_products(rounded=config.precision != "fp32"):
        try:
            for after, record in rounds.play(setting, prepared.state, config.training.rounds):
                with saving(path):
                    row = run_folder.append(path, record, federation.client_names)
                metrics.append(row)
                state = after
                began = perf_counter()
                if is_due(checkpoint_every, record.round, began - saved, cost):
                    with saving(path):
                        run_folder.save(path, config, federation, state)
                    saved, cost = perf_counter(), perf_counter() - began
                if on_round is not None:
                    on_round(record)
        except SavingError:
            raise
        except BaseException as error:
            if metrics and isinstance(error, NoQuorumError):
                with saving(path):
                    for row in missing_rows(error.round, error.missing, federation.client_names):
                        run_folder.append_event(path, row)
            if metrics:
                _finish(prepared, path, state, metrics, None)
            raise
        private = config.privacy.mode != "none"  # then nothing but sums may leave the clients
        found = None if private else cluster_profiles.measure(federation, network, method, state.server)
    summary = _finish(prepared, path, state, metrics, found)
    return Run(path, config, federation, summary, metrics, state, method, network, found)


def _finish(prepared: Prepared, path: Path, state: RunState, metrics: list[Row], found: Profiles | None) -> Row:
    federation = prepared.setting.federation
    with saving(path):
        summary = run_folder.finish(path, prepared.setting.method.name, prepared.config, federation, state, metrics)
        checkpoint.save_outline(path / run_folder.CHECKPOINT, federation, found)
    return summary
