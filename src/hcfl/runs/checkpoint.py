"""Save and load a run's state, and what it takes to assign new clients to its clusters."""

from dataclasses import dataclass, replace
from pathlib import Path

from hcfl.config import Config
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.state import RunState
from hcfl.data import Federation
from hcfl.data.outline import Outline
from hcfl.errors import InputError
from hcfl.models.inputs import Scaling
from hcfl.runs import client_blocks, state_file
from hcfl.runs.client_blocks import Stored

FORMAT, OLDER = 6, (5,)
"""Version of a checkpoint's layout, and those before it that are read; other versions are refused."""

NAME, SUFFIX = "round-", ".safetensors"
"""A checkpoint's file name is its round between these two."""

FORMAT_4_FILE = "state.safetensors"
"""The name of a run's only checkpoint up to format 4."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything needed to resume a run and to predict: models, tables, client states, newcomers, scaling."""

    state: RunState
    scaling: Scaling
    config: str
    """The configuration of the run, as YAML; a run resumes only with the same one."""
    clients: Stored = ()
    """On disk, the states of the clients; else they are in `state`."""


def file_of(folder: Path, round_: int) -> Path:
    """Return the path of the checkpoint after a round."""
    return folder / f"{NAME}{round_}{SUFFIX}"


def save(folder: Path, state: RunState, scaling: Scaling, config: Config) -> None:
    """Write a checkpoint and delete old ones; the configuration says how many are kept."""
    round_ = state.server.round
    blocks = client_blocks.store(folder, state.clients)  # first, so that there is no checkpoint without them
    saved = Checkpoint(replace(state, clients={}), scaling, config.to_yaml(), blocks)
    state_file.write(file_of(folder, round_), saved, FORMAT)
    kept = [file_of(folder, number) for number in rounds(folder) if number <= round_][: config.checkpoints_kept]
    for path in files(folder):
        if path not in kept:  # too old, or of later rounds that will be repeated
            path.unlink(missing_ok=True)


def rounds(folder: Path) -> list[int]:
    """Return the rounds that have a checkpoint, the last first."""
    names = (path.name.removeprefix(NAME).removesuffix(SUFFIX) for path in folder.glob(f"{NAME}*{SUFFIX}"))
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)


def files(folder: Path) -> list[Path]:
    """Return the checkpoints, the newest first."""
    older = [folder / FORMAT_4_FILE] if (folder / FORMAT_4_FILE).exists() else []
    return [*(file_of(folder, round_) for round_ in rounds(folder)), *older]


def read(path: Path) -> Checkpoint:
    """Read one checkpoint."""
    found = state_file.read(Checkpoint, path, FORMAT, f"checkpoint {path}", OLDER)
    return replace(found, state=client_blocks.with_clients(found.state, found.clients, path), clients=())


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
"""Version of the layout of `newcomers.safetensors`."""

OUTLINE_FILE = "newcomers.safetensors"


@dataclass(frozen=True)
class ForNewcomers:
    """What a run needs beside its state to assign new clients, without the data it was trained on."""

    outline: Outline
    profiles: Profiles | None


def save_outline(folder: Path, federation: Federation, profiles: Profiles | None) -> None:
    """Write `newcomers.safetensors` into the checkpoint's folder."""
    state_file.write(folder / OUTLINE_FILE, ForNewcomers(Outline.of(federation), profiles), OUTLINE_FORMAT)


def load_outline(folder: Path) -> ForNewcomers:
    """Read what `save_outline` wrote."""
    return state_file.read(ForNewcomers, folder / OUTLINE_FILE, OUTLINE_FORMAT, f"checkpoint {folder}")
