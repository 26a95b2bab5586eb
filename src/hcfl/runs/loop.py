"""Runs a prepared experiment round by round and writes each round into the run folder."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from hcfl.config import Config
from hcfl.core import cluster_profiles, rounds
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.collect import NoQuorumError
from hcfl.core.held_out import HeldOut, Tally
from hcfl.core.record import Record, Row
from hcfl.core.setting import Setting
from hcfl.core.state import ClientScores, RunState
from hcfl.errors import SavingError
from hcfl.models.precision import matrix_products, threads
from hcfl.own_code import OwnCodeError, each_naming_the_line
from hcfl.runs import backbone, best_round, checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.best_round import Best
from hcfl.runs.measured import Measured, held_out, measure
from hcfl.runs.run import Run
from hcfl.runs.save import is_due, saving
from hcfl.runs.tables import missing_rows

OnRound = Callable[[Record], None]
"""A function that is called with the record of each round as it ends."""

Scored = tuple[ClientScores, Tally | None]
"""What clients measured, and the counts by class, where they tell them."""


@dataclass(frozen=True)
class Measuring:
    """Clients measure the models that a round ends with, where a round measures those that it began with."""

    ask: Callable[[RunState], Scored | None]
    """Lets clients measure a state; None if no client did."""
    every_round: bool = False
    """After each round; otherwise only at the end."""


ShouldStop = Callable[[], bool]
"""A function that is asked after each round whether the run must end there."""


@dataclass(frozen=True)
class Prepared:
    """A run that could start: the configuration with everything filled in, the parts, and the state before round 1."""

    config: Config
    setting: Setting
    state: RunState
    groups_kept: "Callable[[], Prepared] | None" = None
    """Prepares a run of the given groups as they are, to compare with."""


def play_on(
    prepared: Prepared,
    path: Path,
    metrics: list[Row],
    on_round: OnRound | None = None,
    checkpoint_every: int | None = None,
    should_stop: ShouldStop | None = None,
    measuring: Measuring | None = None,
) -> Run:
    """Run the remaining rounds in an existing run folder, with checkpoints on the way.

    `metrics` are the rows of the rounds so far; new rows are appended to it. `on_round` gets each round's record. Where
    `should_stop` answers True, the run is saved and returned as it is after that round. `measuring` measures Val at
    the end, for the summary, or after each round. An exception leaves the folder complete up to the last round, too.
    """
    config, setting, state = prepared.config, prepared.setting, prepared.state
    federation, method, network = setting.at(state.server.round).federation, setting.method, setting.network
    saved, cost, stopped = perf_counter(), 0.0, False
    scored: Scored | None = None
    private = config.privacy.mode != "none"  # then only sums may leave the clients
    remote = measuring is not None or config.engine == "flower"  # then clients predict on their machines
    choose = config.evaluation.serve == "best" and not private
    best = best_round.restored(path / run_folder.CHECKPOINT, metrics, state) if choose else None
    with saving(path):
        backbone.keep(path / run_folder.CHECKPOINT, network)
    with threads(config.threads), matrix_products(rounded=config.precision != "fp32"):
        try:
            early = best_round.overdue(metrics, config.training.patience)
            wanted = state.server.round if early else config.training.rounds
            for after, record in each_naming_the_line(rounds.play(setting, prepared.state, wanted), "training"):
                due = record.val is not None or _begins_step_unmeasured(setting, record.round)
                if measuring is not None and measuring.every_round and due:
                    scored = measuring.ask(after)
                    after, record = _measured(scored, after, record)
                with saving(path):
                    row = run_folder.append(path, record, federation.client_names)
                metrics.append(row)
                state = after
                if setting.begins_step(record.round):
                    best = None  # rounds are compared on the same held-out data
                best = best_round.better(best, state, record) if choose else None
                federation = setting.at(record.round).federation
                began = perf_counter()
                if is_due(checkpoint_every, record.round, began - saved, cost):
                    with saving(path):
                        run_folder.save(path, config, federation, state, best)
                        run_folder.show_clients(path, federation, state)
                    saved, cost = perf_counter(), perf_counter() - began
                if on_round is not None:
                    on_round(record)
                if should_stop is not None and should_stop():
                    stopped = True
                    break
                if best_round.overdue(metrics, config.training.patience):
                    early = True
                    break
        except SavingError:
            raise
        except BaseException as error:
            if metrics and isinstance(error, NoQuorumError):
                with saving(path):
                    for row in missing_rows(error.round, error.missing, federation.client_names):
                        run_folder.append_event(path, row)
            if metrics:
                _finish(
                    prepared,
                    path,
                    state,
                    metrics,
                    best,
                    measured=Measured() if remote or isinstance(error, OwnCodeError) else None,
                )
            raise
        if early and setting.personal is not None:
            state = _with_personal_parts(prepared, state)
        found, told = None, Measured() if remote else None
        if not private and not stopped:
            found = cluster_profiles.measure(federation, network, method, state.server)
            if best is not None and best.round < state.server.round:
                best = replace(best, profiles=cluster_profiles.measure(federation, network, method, best.state.server))
        if measuring is not None and not measuring.every_round and not stopped:
            scored = measuring.ask(state)
        if scored is not None:
            state, told = replace(state, scores=scored[0]), Measured.by_clients(*scored)
        kept_groups = None
        if prepared.groups_kept is not None and not stopped:
            kept_groups = held_out_of_groups(prepared.groups_kept())
        summary = _finish(prepared, path, state, metrics, best, found, told, kept_groups)
    served = best if best is not None and best.round < state.server.round else None
    kept, profiles = (None, found) if served is None else (served.state, served.profiles)
    return Run(path, config, federation, summary, metrics, state, method, network, profiles, kept)


def _begins_step_unmeasured(setting: Setting, round_: int) -> bool:
    """Whether Val of a round is due, but clients measured prequential Val instead: a step began."""
    return setting.begins_step(round_) and round_ % setting.evaluate_every == 0


def _with_personal_parts(prepared: Prepared, state: RunState) -> RunState:
    """Let clients make their personal parts after a run that stopped early: its last round was not known before."""
    setting, measured = prepared.setting, held_out(prepared.config, prepared.setting, state)
    if setting.personal is None or measured is None:
        return state
    groups = measured.scores_of(setting.federation.clients)
    scores, parts = setting.personal.measure(setting, state.server, state.clients, groups)
    return replace(state, scores=scores, personal=parts)


def held_out_of_groups(prepared: Prepared) -> HeldOut | None:
    """Train the given groups as they are, and return what their models say of the held-out samples."""
    state = prepared.state
    for after, _ in rounds.play(prepared.setting, state, prepared.config.training.rounds):
        state = after
    return held_out(prepared.config, prepared.setting, state)


def _measured(scored: Scored | None, state: RunState, record: Record) -> tuple[RunState, Record]:
    """Return a round's end with what clients measured of it; if no client answered, Val is not known."""
    if scored is None:
        return state, replace(record, val=None)
    scores, _ = scored
    return replace(state, scores=scores), replace(record, val=scores.val, val_personal=scores.val_personal)


def _finish(
    prepared: Prepared,
    path: Path,
    state: RunState,
    metrics: list[Row],
    best: Best | None,
    found: Profiles | None = None,
    measured: Measured | None = None,
    kept_groups: HeldOut | None = None,
) -> Row:
    config, setting = prepared.config, prepared.setting.at(state.server.round)
    if measured is None:
        measured = measure(config, setting, metrics, state, state if best is None else best.state)
    measured = replace(measured, groups=kept_groups)
    with saving(path):
        run_folder.save(path, config, setting.federation, state, best)
        summary = run_folder.finish(
            path, setting.method.name, config, setting.federation, state, metrics, best, measured
        )
        checkpoint.save_outline(path / run_folder.CHECKPOINT, setting.federation, found)
    return summary
