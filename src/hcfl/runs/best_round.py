"""The round whose models are served: the one with the largest likelihood of held-out samples, kept beside the last.

Half of the held-out samples choose the round, the other half measure it (`HeldOut`), so training and Val are the same
with and without. The state waits in memory and goes to disk with the checkpoints.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hcfl.core.client_table import Block, ClientTable
from hcfl.core.cluster_profiles import Profiles
from hcfl.core.record import Record, Row
from hcfl.core.state import RunState
from hcfl.runs import client_blocks, state_file
from hcfl.runs.client_blocks import Stored
from hcfl.runs.state_file import DamagedError
from hcfl.tiers import Weights

Serve = Literal["best", "last"]
"""Which round's models predict, assign and are exported."""

FORMAT, OLDER = 2, (1,)
"""Version of the layout of `best.safetensors`, and those before it that are read."""

FILE = "best.safetensors"


@dataclass(frozen=True)
class Best:
    """The state after the best round so far, without what only training needs."""

    likelihood: float
    state: RunState
    profiles: Profiles | None = None
    """Statistics of each cluster's inputs; measured at the end of a run."""
    clients: Stored = ()
    """On disk, the states of the clients; else they are in `state`."""

    @property
    def round(self) -> int:
        """The round."""
        return self.state.server.round


def better(best: Best | None, state: RunState, record: Record) -> Best | None:
    """Return the state of this round where its likelihood is larger than the best one so far, else the best one."""
    if record.likelihood is None or (best is not None and record.likelihood <= best.likelihood):
        return best
    return Best(record.likelihood, servable(state))


def servable(state: RunState) -> RunState:
    """Return what predictions need of a state: no newcomers, no weights of samples, no momentum."""
    return RunState(state.server, ClientTable.of(state.clients).map(_servable), ())


def _servable(block: Block) -> Block:
    if block.samples is None and not block.velocity:
        return block
    weights = Weights(block.weights.client, components=block.weights.components)
    return replace(block, weights=weights, samples=None, velocity=())


def best_row(rows: Sequence[Row], metric: str = "likelihood") -> Row | None:
    """Return the first round with the largest likelihood, of the last step; None where it was not measured."""
    measured = [row for row in rows if row.get(metric) is not None and row.get("step") == rows[-1].get("step")]
    return max(measured, key=lambda row: row[metric]) if measured else None


def overdue(rows: Sequence[Row], patience: int | None) -> bool:
    """Whether a run must stop: the likelihood was measured now, and has not grown for `patience` rounds.

    Clients that measure by themselves tell that of the models which the round before ended with.
    """
    if patience is None or not rows:
        return False
    metric = "received_likelihood" if "received_likelihood" in rows[-1] else "likelihood"
    best = best_row(rows, metric)
    if best is None or rows[-1].get(metric) is None:
        return False
    return bool(rows[-1]["round"] - best["round"] >= patience)


def write(folder: Path, best: Best) -> None:
    """Write `best.safetensors` into the checkpoint's folder."""
    blocks = client_blocks.store(folder, best.state.clients)
    state_file.write(folder / FILE, replace(best, state=replace(best.state, clients={}), clients=blocks), FORMAT)


def read(folder: Path) -> Best | None:
    """Read what `write` wrote; None where the last round is the one to serve."""
    file = folder / FILE
    if not file.exists():
        return None
    found = state_file.read(Best, file, FORMAT, f"checkpoint {file}", OLDER)
    return replace(found, state=client_blocks.with_clients(found.state, found.clients, file), clients=())


def restored(folder: Path, rows: Sequence[Row], state: RunState) -> Best | None:
    """Return the best round of the rounds that were played before a run goes on with `state`.

    A file of a later round, or a damaged one, does not count: its round is played again, or another one is served.
    """
    row = best_row(rows)
    if row is None:
        return None
    if row["round"] == state.server.round:
        return Best(row["likelihood"], servable(state))
    try:
        found = read(folder)
    except DamagedError:
        return None
    if found is None or found.round != row["round"]:
        return None
    return replace(found, state=found.state.to(state.device))
