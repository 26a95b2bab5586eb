"""Save and load a run's state, and what newcomers need to be met."""

from dataclasses import dataclass
from pathlib import Path

from hcfl.config import Config
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.state import RunState
from hcfl.data import Federation
from hcfl.data.outline import Outline
from hcfl.errors import InputError
from hcfl.models.inputs import Scaling
from hcfl.runs import state_file

FORMAT = 5
"""Version of the layout; another one is refused."""

NAME, SUFFIX = "round-", ".safetensors"
"""A checkpoint is called by its round."""

BEFORE = "state.safetensors"
"""What the only checkpoint of a run was called up to format 4."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to go on, and to predict: models, tables, every client's state, newcomers, scaling."""

    state: RunState
    scaling: Scaling
    config: str
    """The configuration of the run, as YAML: with another one it would not be the same run."""


def file_of(folder: Path, round_: int) -> Path:
    """Return where the checkpoint after a round is."""
    return folder / f"{NAME}{round_}{SUFFIX}"


def save(folder: Path, state: RunState, scaling: Scaling, config: Config) -> None:
    """Write a checkpoint; of the others, only the last few before it stay, as many as the configuration says."""
    round_ = state.server.round
    state_file.write(file_of(folder, round_), Checkpoint(state, scaling, config.to_yaml()), FORMAT)
    kept = [file_of(folder, number) for number in rounds(folder) if number <= round_][: config.checkpoints_kept]
    for path in files(folder):
        if path not in kept:  # too old, or of rounds that were taken back
            path.unlink(missing_ok=True)


def rounds(folder: Path) -> list[int]:
    """Return the rounds of which there is a checkpoint, the last first."""
    names = (path.name.removeprefix(NAME).removesuffix(SUFFIX) for path in folder.glob(f"{NAME}*{SUFFIX}"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def files(folder: Path) -> list[Path]:
    """Return the checkpoints, the newest first."""
    older = [folder / BEFORE] if (folder / BEFORE).exists() else []
    return [*(file_of(folder, round_) for round_ in rounds(folder)), *older]


def read(path: Path) -> Checkpoint:
    """Read one checkpoint."""
    return state_file.read(Checkpoint, path, FORMAT, f"checkpoint {path}")


def load(folder: Path) -> tuple[RunState, Scaling]:
    """Read the newest checkpoint."""
    newest, *others = files(folder) or [file_of(folder, 0)]
    try:
        found = read(newest)
    except state_file.DamagedError as error:
        hint = f"; `hcfl resume {folder.parent}` goes on from {others[0].name}" if others else ""
        raise InputError(f"{error}{hint}") from None
    return found.state, found.scaling


OUTLINE_FORMAT = 2
"""Version of the layout of what newcomers need."""

OUTLINE_FILE = "newcomers.safetensors"


@dataclass(frozen=True)
class ForNewcomers:
    """What a run needs beside its state to meet somebody new, without the data it was trained on."""

    outline: Outline
    profiles: Profiles | None


def save_outline(folder: Path, federation: Federation, profiles: Profiles | None) -> None:
    """Write what newcomers need beside a checkpoint."""
    state_file.write(folder / OUTLINE_FILE, ForNewcomers(Outline.of(federation), profiles), OUTLINE_FORMAT)


def load_outline(folder: Path) -> ForNewcomers:
    """Read what `save_outline` wrote."""
    return state_file.read(ForNewcomers, folder / OUTLINE_FILE, OUTLINE_FORMAT, f"checkpoint {folder}")
