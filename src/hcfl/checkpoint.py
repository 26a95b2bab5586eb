"""Save and load a run's state, and what newcomers need to be met."""

from dataclasses import dataclass
from pathlib import Path

from hcfl import state_file
from hcfl.data import Federation
from hcfl.data.outline import Outline
from hcfl.inputs import Scaling
from hcfl.profiles import Profiles
from hcfl.state import RunState

FORMAT = 4
"""Version of the layout; another one is refused."""

FILE = "state.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to go on, and to predict: models, tables, every client's state, newcomers, scaling."""

    state: RunState
    scaling: Scaling


def save(folder: Path, state: RunState, scaling: Scaling) -> None:
    """Write a checkpoint; an older one is replaced as a whole or not at all."""
    state_file.write(folder / FILE, Checkpoint(state, scaling), FORMAT)


def load(folder: Path) -> tuple[RunState, Scaling]:
    """Read what `save` wrote."""
    found = state_file.read(Checkpoint, folder / FILE, FORMAT, f"checkpoint {folder}")
    return found.state, found.scaling


OUTLINE_FORMAT = 1
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
