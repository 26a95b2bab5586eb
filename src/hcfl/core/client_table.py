"""What clients keep between rounds, as columns: a million small objects would take gigabytes.

The states of a round become a block, whose rows are clients. A client that takes part again gets a row in a newer
block, and its old row is stale. Blocks of about the same size are put together: so there are few of them, a state is
copied only a few times, and a large block stays as it is for many rounds, in which checkpoints need not write it again
(`runs/client_blocks.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.core.serialization import flatten
from hcfl.core.state import ClientState
from hcfl.models.ensemble import Ensemble
from hcfl.tiers import Weights

Noted = tuple[Mapping[str, Tensor], ...]
"""What each client noted; nothing where no client did."""

Models = tuple[Ensemble | None, ...]
"""One client's models after another's; nothing where no client has any. They are not put into one tensor: they are
large, and stay where they are."""


@dataclass(frozen=True, eq=False)
class Block:
    """The states of some clients that know the same clusters, one row for each."""

    clusters: tuple[int, ...]
    clients: Tensor
    """(rows,): their ids, in order."""
    rounds: Tensor
    """(rows,): the last round that each took part in."""
    weights: Weights
    samples: Tensor | None = None
    """(rows,): how many rows of `weights.sample` are each client's, where there are some."""
    own: Models = ()
    velocity: Models = ()
    noted: Noted = ()

    def __post_init__(self) -> None:
        """Refuse columns that do not fit each other: blocks are read from files."""
        rows, weights, samples = len(self.clients), self.weights, self.samples
        fits = (
            rows > 0
            and self.clients.shape == self.rounds.shape == (rows,)
            and self.clients.dtype == self.rounds.dtype == torch.int64
            and bool((self.clients.diff() > 0).all())
            and len(weights.client) == rows
            and (weights.components is None or len(weights.components) == rows)
            and {len(self.own), len(self.velocity), len(self.noted)} <= {0, rows}
        )
        if samples is not None and weights.sample is not None:
            fits = fits and samples.shape == (rows,) and samples.dtype == torch.int64
            fits = fits and bool((samples >= 0).all()) and int(samples.sum()) == len(weights.sample)
        if not fits or (samples is None) != (weights.sample is None):
            raise ValueError("the columns of a block of clients do not fit each other")

    @staticmethod
    def of(states: Mapping[int, ClientState]) -> "Block":
        """Put states of the same form together."""
        clients = sorted(states)
        each = [states[client] for client in clients]
        lengths = [len(state.weights.sample) for state in each if state.weights.sample is not None]
        return Block(
            each[0].clusters,
            torch.tensor(clients),
            torch.tensor([state.round for state in each]),
            Weights.join([state.weights for state in each]),
            torch.tensor(lengths) if lengths else None,
            _models([state.own for state in each]),
            _models([state.velocity for state in each]),
            _noted([state.noted for state in each]),
        )

    def joined(self, other: "Block") -> "Block":
        """Return this block and another one of the same form and other clients as one."""
        clients = torch.cat([self.clients, other.clients])
        samples = [block.samples for block in (self, other) if block.samples is not None]
        return _rows(
            self.clusters,
            clients,
            torch.cat([self.rounds, other.rounds]),
            Weights.join([self.weights, other.weights]),
            torch.cat(samples) if samples else None,
            self._beside(self.own, other, other.own),
            self._beside(self.velocity, other, other.velocity),
            _noted([*(self.noted or ({},) * len(self.clients)), *(other.noted or ({},) * len(other.clients))]),
            clients.argsort(),
        )

    def rows(self, at: Tensor) -> "Block":
        """Return some rows, in this order."""
        columns = (self.clients, self.rounds, self.weights, self.samples, self.own, self.velocity, self.noted)
        return _rows(self.clusters, *columns, at)

    def state(self, row: int) -> ClientState:
        """Return the state in a row."""
        weights, sample = self.weights, self.weights.sample
        if sample is not None:
            end = int(self._ends[row])
            sample = sample[end - int(self._sizes[row]) : end]
        components = None if weights.components is None else weights.components[row : row + 1]
        mine = Weights(weights.client[row : row + 1], sample, components)
        own, velocity = (models[row] if models else None for models in (self.own, self.velocity))
        noted = self.noted[row] if self.noted else {}
        return ClientState(int(self._rounds[row]), self.clusters, mine, own, velocity, noted)

    def find(self, clients: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return which of some clients have a row, as positions, and their rows."""
        ids = self.ids
        rows = np.minimum(np.searchsorted(ids, clients), len(ids) - 1)
        found = np.flatnonzero(ids[rows] == clients)
        return found, rows[found]

    @property
    def form(self) -> tuple[object, ...]:
        """What blocks must share to be put together."""
        return _form(self.clusters, self.weights)

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The clients as numpy has them."""
        found: NDArray[np.int64] = self.clients.numpy()
        return found

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all columns: what names the block on disk. A column without anything does not count."""
        tree, tensors = flatten(self)
        found = sha256(repr({name: part for name, part in tree.items() if part not in (None, [])}).encode())
        for tensor in tensors.values():
            found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()

    @cached_property
    def bytes(self) -> int:
        """How large all columns are."""
        return sum(tensor.nbytes for tensor in flatten(self)[1].values())

    @cached_property
    def _rounds(self) -> NDArray[np.int64]:
        found: NDArray[np.int64] = self.rounds.numpy()
        return found

    @cached_property
    def _sizes(self) -> NDArray[np.int64]:
        assert self.samples is not None
        found: NDArray[np.int64] = self.samples.numpy()
        return found

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self._sizes)

    def _beside(self, mine: Models, other: "Block", others: Models) -> Models:
        """Return the models of this block and of another one; a block that has none has None for each client."""
        if not mine and not others:
            return ()
        return (mine or (None,) * len(self.clients)) + (others or (None,) * len(other.clients))


def _rows(
    clusters: tuple[int, ...],
    clients: Tensor,
    rounds: Tensor,
    weights: Weights,
    samples: Tensor | None,
    own: Models,
    velocity: Models,
    noted: Noted,
    at: Tensor,
) -> Block:
    """Return some rows of these columns, in this order, as a block."""
    sample, sizes = weights.sample, samples
    if sample is not None and samples is not None:
        sizes = samples[at]
        first = torch.repeat_interleave(samples.cumsum(0)[at] - sizes - (sizes.cumsum(0) - sizes), sizes)
        sample = sample[first + torch.arange(len(first))]
    components = None if weights.components is None else weights.components[at]
    mine, speed = (_models([models[row] for row in at.tolist()]) if models else () for models in (own, velocity))
    chosen = Weights(weights.client[at], sample, components)
    told = _noted([noted[row] for row in at.tolist()]) if noted else ()
    return Block(clusters, clients[at], rounds[at], chosen, sizes, mine, speed, told)


def _models(each: Sequence[Ensemble | None]) -> Models:
    return tuple(each) if any(models is not None for models in each) else ()


def _noted(each: Sequence[Mapping[str, Tensor]]) -> Noted:
    return tuple(each) if any(each) else ()


def _form(clusters: tuple[int, ...], weights: Weights) -> tuple[object, ...]:
    parts = (weights.client, weights.sample, weights.components)
    return (clusters, *(None if part is None else (part.dtype, part.shape[1:]) for part in parts))


@dataclass(frozen=True, eq=False)
class ClientTable(Mapping[int, ClientState]):
    """The state of each client that took part so far, by id.

    >>> table = ClientTable.of({3: ClientState(1, (0,), Weights(torch.ones(1, 1)))})
    >>> table.after({3: ClientState(2, (0,), Weights(torch.ones(1, 1)))})[3].round
    2
    """

    blocks: tuple[Block, ...] = ()
    """The newest last."""
    live: tuple[NDArray[np.bool_], ...] = ()
    """For each block, which rows are not stale. Each client has one row that is not."""

    @staticmethod
    def of(states: Mapping[int, ClientState]) -> "ClientTable":
        """Return states as a table."""
        return states if isinstance(states, ClientTable) else ClientTable().after(states)

    @staticmethod
    def of_blocks(blocks: Sequence[Block]) -> "ClientTable":
        """Return the table that has these blocks: of each client, the row of its last round counts."""
        if not blocks:
            return ClientTable()
        clients = np.concatenate([block.ids for block in blocks])
        rounds = np.concatenate([block._rounds for block in blocks])
        order = np.lexsort((np.arange(len(clients)), rounds, clients))
        live = np.zeros(len(clients), dtype=np.bool_)
        live[order[np.append(np.diff(clients[order]) > 0, True)]] = True
        ends = np.cumsum([len(block.ids) for block in blocks])
        return ClientTable(tuple(blocks), tuple(np.split(live, ends[:-1])))

    def after(self, states: Mapping[int, ClientState]) -> "ClientTable":
        """Return the table after a round in which some clients got new states."""
        clients = np.array(sorted(states), dtype=np.int64)
        kept = [(block, _without(block, live, clients)) for block, live in zip(self.blocks, self.live, strict=True)]
        groups: dict[tuple[object, ...], dict[int, ClientState]] = {}
        for client, state in states.items():
            groups.setdefault(_form(state.clusters, state.weights), {})[client] = state
        for group in groups.values():
            new = Block.of(group)
            kept.append((new, np.ones(len(new.ids), dtype=np.bool_)))
        tidied = _tidied(kept)
        return ClientTable(tuple(block for block, _ in tidied), tuple(live for _, live in tidied))

    def some(self, clients: Sequence[int]) -> dict[int, ClientState]:
        """Return the states of those of some clients that have one."""
        asked, found = np.asarray(clients, dtype=np.int64), {}
        for block, live in zip(self.blocks, self.live, strict=True):
            at, rows = block.find(asked)
            for client, row in zip(asked[at].tolist(), rows.tolist(), strict=True):
                if live[row]:
                    found[client] = block.state(row)
        return found

    def map(self, change: Callable[[Block], Block]) -> "ClientTable":
        """Change all blocks; each keeps its rows."""
        return ClientTable(tuple(map(change, self.blocks)), self.live)

    def __getitem__(self, client: int) -> ClientState:
        return self.some([client])[client]

    def __iter__(self) -> Iterator[int]:
        parts = [block.ids[live] for block, live in zip(self.blocks, self.live, strict=True)]
        return iter(np.sort(np.concatenate(parts)).tolist() if parts else ())

    def __len__(self) -> int:
        return sum(int(live.sum()) for live in self.live)


def _without(block: Block, live: NDArray[np.bool_], clients: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which rows of a block are not stale after some clients got newer ones."""
    _, rows = block.find(clients)
    if not len(rows):
        return live
    live = live.copy()
    live[rows] = False
    return live


Held = tuple[Block, NDArray[np.bool_]]
"""A block, and which of its rows are not stale."""


def _tidied(held: list[Held]) -> list[Held]:
    """Put blocks of the same form and about the same size together, and drop rows that are stale.

    Of the blocks that stay, each has more rows that are not stale than others, and is twice as large as the next.
    """
    done: list[Held] = []
    for block, live in held:
        if not live.any():
            continue
        block, live = _compact(block, live)
        while (place := _of_form(done, block)) is not None and int(done[place][1].sum()) < 2 * int(live.sum()):
            block = _only(*done.pop(place)).joined(_only(block, live))
            live = np.ones(len(block.ids), dtype=np.bool_)
        done.append((block, live))
    return done


def _of_form(held: list[Held], block: Block) -> int | None:
    """Return the place of the last block that another one can be put together with."""
    return next((place for place in reversed(range(len(held))) if held[place][0].form == block.form), None)


def _compact(block: Block, live: NDArray[np.bool_]) -> Held:
    """Drop the stale rows of a block that has more of them than of others."""
    if 2 * int(live.sum()) >= len(live):
        return block, live
    return _only(block, live), np.ones(int(live.sum()), dtype=np.bool_)


def _only(block: Block, live: NDArray[np.bool_]) -> Block:
    return block if live.all() else block.rows(torch.from_numpy(np.flatnonzero(live)))
