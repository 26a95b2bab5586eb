"""Save and load a run's state."""

from dataclasses import dataclass
from pathlib import Path

from hcfl import state_file
from hcfl.inputs import Scaling
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
