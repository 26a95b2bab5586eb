"""Where checkpoints have the states of clients: small blocks inside, large ones in files that several of them share.

A file is named by what is in it (`Block.digest`), so a block that an earlier checkpoint wrote is not written again, and
a checkpoint that lists it finds any other content. Files that no checkpoint lists are removed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hcfl.core.client_table import Block, ClientTable
from hcfl.core.state import ClientState, RunState
from hcfl.runs import checksum, state_file
from hcfl.runs.state_file import DamagedError

FORMAT = 1
"""Version of the layout of a block's file."""

NAME, SUFFIX = "clients-", ".safetensors"
"""The name of a block's file is its digest between these two."""

SMALL = 1 << 18
"""Blocks of at most so many bytes are inside the checkpoint: another file would take longer to write."""


@dataclass(frozen=True)
class BlockFile:
    """A block that has a file of its own."""

    digest: str

    def __post_init__(self) -> None:
        """Refuse what is no digest: it becomes a part of a path."""
        if re.fullmatch("[0-9a-f]{64}", self.digest) is None:
            raise ValueError(f"{self.digest[:80]!r} is no digest")


Stored = tuple[Block | BlockFile, ...]
"""The blocks of a table, as a checkpoint has them."""


def path_of(folder: Path, digest: str) -> Path:
    """Return the path of a block's file."""
    return folder / f"{NAME}{digest}{SUFFIX}"


def store(folder: Path, states: Mapping[int, ClientState]) -> Stored:
    """Write the large blocks that have no file yet, and return what a checkpoint says of all of them."""
    return tuple(block if block.bytes <= SMALL else _written(folder, block) for block in ClientTable.of(states).blocks)


def _written(folder: Path, block: Block) -> BlockFile:
    path = path_of(folder, block.digest)
    if not path.exists():
        state_file.write(path, block, FORMAT)
    return BlockFile(block.digest)


def with_clients(state: RunState, stored: Stored, file: Path) -> RunState:
    """Return a state with the clients that the checkpoint in `file` has; before format 6 they were in the state."""
    if state.clients:
        return replace(state, clients=ClientTable.of(state.clients))
    blocks = [_read(file, one.digest) if isinstance(one, BlockFile) else one for one in stored]
    return replace(state, clients=ClientTable.of_blocks(blocks))


def _read(file: Path, digest: str) -> Block:
    path = path_of(file.parent, digest)
    what = f"checkpoint {file}: its part {path.name}"
    block = state_file.read(Block, path, FORMAT, what)
    if block.digest != digest:
        raise DamagedError(f"{what}: is damaged (it is another part)")
    return block


def sweep(folder: Path, files: Sequence[Path], damaged: bool = False) -> None:
    """Remove the files of blocks that none of these checkpoints lists, and with `damaged` those that are damaged."""
    listed = {path_of(folder, digest) for file in files for digest in _listed(file)}
    for path in folder.glob(f"{NAME}*{SUFFIX}"):
        if path not in listed or (damaged and not _intact(path)):
            path.unlink(missing_ok=True)


def _listed(file: Path) -> list[str]:
    tree = state_file.peek(file)
    stored = tree.get("clients") if isinstance(tree, dict) else None
    parts = stored if isinstance(stored, list) else []
    return [str(part["digest"]) for part in parts if isinstance(part, dict) and "digest" in part]


def _intact(path: Path) -> bool:
    try:
        return checksum.matches(path) is True
    except OSError:
        return False
