"""Starts or resumes a run, in this process or on Flower."""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hcfl import flower, trackers
from hcfl.config import Config, flat_fields, from_flat, plugins
from hcfl.core.record import Record, Row
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import Builder, Pair
from hcfl.runs import checkpoint, notebook
from hcfl.runs import folder as run_folder
from hcfl.runs.best_round import overdue
from hcfl.runs.folder import place_of
from hcfl.runs.loop import OnRound, Prepared, ShouldStop, play_on
from hcfl.runs.prepare import prepare
from hcfl.runs.restore import held, reopen
from hcfl.runs.run import Run
from hcfl.trackers import Tracker, Wanted, openers


@contextmanager
def followed(
    wanted: Wanted, path: Path, config: Config, on_round: Callable[[Record], None] | None
) -> Iterator[Callable[[Record], None]]:
    """Give a function that passes each round's record to all trackers and to `on_round`.

    Trackers open when the first round ends, so that a run that never starts leaves no trace in them. At the end they
    get the summary, or None where the run did not reach its last round.
    """
    to_open, opened = openers(wanted), list[Tracker]()

    def tell(record: Record) -> None:
        while to_open:
            opened.append(to_open.pop(0)(path, config))
        for tracker in opened:
            tracker.on_round(record)
        if on_round is not None:
            on_round(record)

    summary: Row | None = None
    try:
        yield tell
        summary = _summary_of_complete_run(path, config)
    finally:
        for tracker in opened:
            tracker.on_end(summary)


def _summary_of_complete_run(path: Path, config: Config) -> Row | None:
    file = path / run_folder.SUMMARY
    summary: Row | None = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    complete = summary is not None and (summary["rounds"] >= config.training.rounds or summary.get("stopped_early"))
    return summary if complete else None


def execute(
    prepared: Prepared,
    out: Path | None = None,
    on_round: OnRound | None = None,
    track: trackers.Wanted = (),
    should_stop: ShouldStop | None = None,
) -> Run:
    """Run all rounds and write each as it ends.

    `out` is the run folder (by default a new one under `runs/`), `on_round` is called with each round's record, and
    where `should_stop()` is true after a round, the run is saved and returned there.
    """
    config, path = prepared.config, out or place_of(prepared.config)
    with followed(track, path, config, on_round) as tell:
        if config.engine == "flower":
            return simulate(prepared, path, tell, should_stop)
        with run_folder.begun(path, config), held(path):
            return play_on(prepared, path, [], tell, config.checkpoint_every, should_stop)


def simulate(
    prepared: Prepared,
    path: Path,
    on_round: OnRound | None,
    should_stop: ShouldStop | None = None,
    resumed: bool = False,
) -> Run:
    """Run, or resume, an experiment in Flower's simulation."""
    flower.require("engine = 'flower'")
    from hcfl.flower import simulation  # only now, since it imports Flower

    return simulation.run(prepared, path, on_round, should_stop, resumed)


def run(
    method: str | Method = "hcfl++",
    data: str | Path | Federation = "digits",
    model: str | Pair | Builder = "auto",
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    track: trackers.Wanted = (),
    **settings: Any,
) -> Run:
    """Run a method and return the result; in a notebook, a figure grows with each round.

    `method` is a name or a `Method` of your own; `data` a source's name, a file, or a `Federation`; `model` a name, an
    (extractor, head) pair of modules, or a function that builds one. `out` is the run folder, by default a new one
    under `runs/`. `on_round` is called with the `Record` of each round. `track` names trackers that follow the run
    (tensorboard, mlflow, wandb), or is one of your own. `settings` are those of the command line: rounds, clients,
    alpha, beta, rho, lr, seed, …

    >>> import hcfl
    >>> run = hcfl.run("hcfl++", data="digits", rounds=30, alpha=0.5)  # doctest: +SKIP
    """
    trackers.openers(track)  # before anything is built
    data = str(data) if isinstance(data, Path) else data
    parts = {"method": method, "data": data, "model": model}
    wanted = {"method": (str, Method), "data": (str, Federation)}
    for name, kinds in wanted.items():
        if not isinstance(parts[name], kinds):
            raise InputError(f"{name} = {parts[name]!r}: must be a name or a {kinds[1].__name__}")
    named = {name: part for name, part in parts.items() if isinstance(part, str)}
    for name, value in settings.items():
        section = flat_fields().get(name, "").split(".")[0]
        if section in parts and section not in named:
            raise InputError(f"{name} = {value!r}: the {section} that was passed is already built")
    prepared = prepare(
        from_flat(**named, **settings),
        None if isinstance(data, str) else data,
        None if isinstance(model, str) else model,
        None if isinstance(method, str) else method,
    )
    path = place_of(prepared.config) if out is None else Path(out)
    listeners = [listen for listen in (on_round, notebook.progress(prepared.config, path)) if listen is not None]

    def tell(record: Record) -> None:
        for listen in listeners:
            listen(record)

    return execute(prepared, path, tell, track)


def resume(
    path: str | Path,
    on_round: OnRound | None = None,
    track: trackers.Wanted = (),
    on_note: Callable[[str], None] = warnings.warn,
    allow_code: bool = False,
    should_stop: ShouldStop | None = None,
    *,
    data: Federation | None = None,
    model: Pair | Builder | None = None,
    method: Method | None = None,
) -> Run:
    """Run the remaining rounds of a run from its newest intact checkpoint, or from the beginning.

    `on_note` is called with sentences for the user, such as that a checkpoint is damaged, or that the run is complete.
    Code that the configuration names runs only with `allow_code`: the folder may come from another user. Where
    `should_stop()` is true after a round, the run is saved and returned there. A federation, model or method that was
    passed to the run as a Python object is not in its folder, and has to be passed again.

    >>> import hcfl
    >>> run = hcfl.resume("runs/digits-fedavg-seed0")  # doctest: +SKIP
    """
    path = Path(path)
    with held(path):
        opened = reopen(path)
    given = {name for name, part in (("data", data), ("model", model), ("method", method)) if part is not None}
    plugins.check_trusted(f"run = {str(path)!r}", opened.config.model_dump(exclude=given), allow_code)
    if opened.config.model.name == "custom" and model is None:
        raise InputError("model = None: the run's model was passed from Python, so it has to be passed again")
    for note in opened.notes:
        on_note(note)
    config, prepared = opened.config, prepare(opened.config, data, model, method)
    # A checkpoint is read on the CPU, whatever device the run trains on.
    state = prepared.state if opened.state is None else opened.state.to(prepared.state.device)
    prepared = replace(prepared, config=config, state=state)
    ends = (path / run_folder.SUMMARY, path / run_folder.CHECKPOINT / checkpoint.OUTLINE_FILE)
    if prepared.state.server.round >= config.training.rounds and all(file.exists() for file in ends):
        on_note(f"run = {str(path)!r}: is complete, all its {prepared.state.server.round} rounds were played")
    elif overdue(opened.metrics, config.training.patience):
        on_note(f"run = {str(path)!r}: is complete, it stopped early after round {prepared.state.server.round}")
    with followed(track, path, config, on_round) as tell:
        if config.engine == "flower":
            if opened.state is None:  # then clients begin anew, too
                run_folder.discard(path)
            return simulate(prepared, path, tell, should_stop, resumed=opened.state is not None)
        with held(path):
            return play_on(prepared, path, opened.metrics, tell, config.checkpoint_every, should_stop)
