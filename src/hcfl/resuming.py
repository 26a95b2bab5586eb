"""`hcfl resume`: a run that was interrupted goes on as if it had not been."""

import warnings
from collections.abc import Callable
from pathlib import Path

from hcfl import checkpoint, plugins, run_folder, trackers
from hcfl.experiment import prepare, simulate
from hcfl.playing import OnRound, Prepared, Run, play_on
from hcfl.reopening import held, reopen


def resume(
    path: Path,
    on_round: OnRound | None = None,
    track: trackers.Wanted = (),
    on_note: Callable[[str], None] = warnings.warn,
    allow_code: bool = False,
) -> Run:
    """Play the rounds that a run has left, from its newest whole checkpoint, or from the beginning.

    `on_note` is told, in a sentence, what people should know: a checkpoint that was damaged, a run that is complete.
    Code that its configuration names runs only with `allow_code`: the folder may be somebody else's.
    """
    with held(path):
        opened = reopen(path)
    plugins.check_trusted(f"run = {str(path)!r}", opened.config.model_dump(), allow_code)
    for note in opened.notes:
        on_note(note)
    config, prepared = opened.config, prepare(opened.config)
    prepared = Prepared(config, prepared.setting, opened.state or prepared.state)
    ends = (path / run_folder.SUMMARY, path / run_folder.CHECKPOINT / checkpoint.OUTLINE_FILE)
    if prepared.state.server.round >= config.training.rounds and all(file.exists() for file in ends):
        on_note(f"run = {str(path)!r}: is complete, all its {prepared.state.server.round} rounds were played")
    with trackers.followed(track, path, config, on_round) as tell:
        if config.engine == "flower":
            if opened.state is None:  # then clients begin anew, too
                run_folder.discard(path)
            return simulate(prepared, path, tell, going_on=opened.state is not None)
        with held(path):
            return play_on(prepared, path, opened.metrics, tell, config.checkpoint_every)
