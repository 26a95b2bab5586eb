"""The output of `hcfl run`, `resume` and `demo`: progress, then a table, a picture and the run folder."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from hcfl import trackers
from hcfl.config import Config
from hcfl.core.scores import shown
from hcfl.launch import execute, resume
from hcfl.report import page, plots, tables
from hcfl.runs import folder as run_folder
from hcfl.runs import interrupt, progress, round_estimate
from hcfl.runs.engine_trial import Way
from hcfl.runs.folder import place_of
from hcfl.runs.loop import OnRound, ShouldStop
from hcfl.runs.prepare import prepare
from hcfl.runs.run import Run


def run_and_show(config: Config, out: Path | None, console: Console, track: Sequence[str] = ()) -> Run:
    """Run a configuration and show its results."""
    return _show(_run(config, out, console, track), console)


def resume_and_show(path: Path, console: Console, track: Sequence[str] = (), allow_code: bool = False) -> Run:
    """Resume a run that was interrupted and show its results."""
    config = Config.load(path / run_folder.CONFIG)
    with _shown(config, path, console) as (on_round, should_stop):
        on_note = partial(_note, console)
        run = resume(path, on_round, track, on_note, allow_code, should_stop)
    return _show(run, console)


def _show(run: Run, console: Console) -> Run:
    console.print(tables.summary_table([run]))
    _tell(run, console)
    scores = {name.removeprefix("score_"): value for name, value in run.summary.items() if name.startswith("score_")}
    if scores:
        console.print(f"Held-out data: {shown(scores)}", highlight=False, soft_wrap=True)
    plots.save(plots.plot_runs([run]), run.path / run_folder.PICTURE)
    if run.config.threads is not None:
        console.print(f"Engine: {Way(run.config.engine, run.config.threads)}", highlight=False)
    console.print(f"Run folder: {run.path}", highlight=False, soft_wrap=True)
    return run


def _tell(run: Run, console: Console) -> None:
    for line in tables.remarks(run):
        console.print(line, highlight=False, soft_wrap=True)


def demo(config: Config, console: Console) -> tuple[Run, Run]:
    """Run HCFL+(FedRC) beside FedAvg on the default federation."""
    console.print(
        "30 clients hold handwritten digits. They fall into three groups that give the same image different labels,\n"
        "and neither the server nor the clients know the groups. HCFL+ starts from a single cluster.\n",
        highlight=False,
    )
    found, single = (_run(config.updated("method", name=name), None, console) for name in ("hcfl+(fedrc)", "fedavg"))
    console.print(tables.summary_table([found, single]))
    for run in (found, single):
        _tell(run, console)
    titles = ("one model does not fit all clients", "HCFL+ finds the groups")
    picture = plots.save(plots.plot_runs([found, single], titles), found.path / run_folder.PICTURE)
    console.print(f"Run folders: {found.path}, {single.path}", highlight=False, soft_wrap=True)
    console.print(f"Picture: {picture}", highlight=False, soft_wrap=True)
    report = page.write([found.path, single.path], found.path / run_folder.REPORT)
    console.print(f"Report, for a browser: {report}", highlight=False, soft_wrap=True)
    return found, single


def _run(config: Config, out: Path | None, console: Console, track: Sequence[str] = ()) -> Run:
    trackers.openers(track)  # before anything is built
    prepared = prepare(config)
    for note in prepared.setting.federation.notes:
        _note(console, note)
    if (told := round_estimate.sentence(prepared)) is not None:
        _note(console, told)
    path = out or place_of(prepared.config)
    with _shown(prepared.config, path, console) as (on_round, should_stop):
        return execute(prepared, path, on_round, track, should_stop)


@contextmanager
def _shown(config: Config, path: Path, console: Console) -> Iterator[tuple[OnRound, ShouldStop]]:
    """Give the function that shows each round, and the one that says whether a signal asked the run to stop."""
    with (
        progress.show(config.method.name, config.training.rounds, console) as on_round,
        interrupt.stop_after_round(path, in_other_process=config.engine == "flower") as should_stop,
    ):
        yield on_round, should_stop


def _note(console: Console, note: str) -> None:
    console.print(f"Note: {note}.", highlight=False, soft_wrap=True)
