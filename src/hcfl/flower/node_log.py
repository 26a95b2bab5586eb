"""`nodes.json`: what the server sees of its nodes, for `hcfl watch`. One small file that is replaced, not a log.

Nothing of a run depends on it: where it cannot be written, the run goes on without it.
"""

import csv
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from flwr.app import Message
from flwr.serverapp import Grid

from hcfl.config import Config
from hcfl.core.record import Record
from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.runs import atomic_file
from hcfl.runs import folder as run_folder
from hcfl.runs.csv_cells import plain
from hcfl.runs.defaults import rounds_of

HISTORY = 500
"""How many rounds of a node's Val and clusters are kept."""

STRANGERS = 20
"""How many nodes that are no clients of the run are kept."""

LOOK_EVERY, WRITE_EVERY = 5.0, 5.0
"""Seconds between two looks at who is connected while answers are awaited, and between two writes without news."""

DOING = {"train": "training", "evaluate": "measuring", "query": "asking"}
"""What the server waits for, by how the type of its message begins."""


@dataclass
class Node:
    """What the server has seen of one client."""

    connected: bool = False
    seen: float | None = None
    """When it was last connected, in seconds since 1970."""
    round: int = 0
    """The last round in which its upload counted."""
    missed: int = 0
    """In how many rounds it was asked for, and its upload did not count."""
    reason: str = ""
    """Why, the last time."""
    refused: str = ""
    """Why it cannot take part, if so."""
    val: list[list[float]] = field(default_factory=list)
    """Round, and accuracy on its held-out samples."""
    clusters: list[list[int]] = field(default_factory=list)
    """Round, and the cluster that it came to in this round."""


@dataclass
class NodeLog:
    """Keeps `nodes.json` of a run with clients on other machines."""

    out: Path
    """The run folder."""
    names: tuple[str, ...]
    about: dict[str, Any]
    quorum: float
    nodes: dict[str, Node] = field(default_factory=dict)
    strangers: list[list[str]] = field(default_factory=list)
    now: dict[str, Any] = field(default_factory=dict)
    clock: Callable[[], float] = time.time
    silent: bool = False
    """Whether nothing is written: the folder holds another run, and this one will be refused."""
    _waiting: dict[str, str] = field(default_factory=dict)
    """By message: the client whose answer is awaited."""
    _written: float = 0.0

    @staticmethod
    def begin(out: Path, names: tuple[str, ...], config: Config, quorum: float, resumed: bool) -> "NodeLog":
        """Start the file, or go on with the one of a run that is resumed; a run that is there is not touched."""
        about = {
            "method": config.method.name,
            "data": "clients",
            "seed": config.seed,
            "rounds": rounds_of(config.training, config.data.steps)[0],
        }
        taken = not resumed and (out / run_folder.CONFIG).exists()
        log = NodeLog(out, names, about, quorum, {name: Node() for name in names}, silent=taken)
        with suppress(OSError, ValueError, TypeError, KeyError):
            before = json.loads((out / run_folder.NODES).read_text(encoding="utf-8"))
            kept = {name: Node(**before["nodes"][name]) for name in names if name in before["nodes"]}
            log.nodes |= {name: Node(**{**asdict(node), "connected": False}) for name, node in kept.items()}
        log.tell("gathering", 0, names, 0)
        return log

    def tell(self, doing: str, round_: int, asked: Iterable[str], needed: int) -> None:
        """Say what the server does now, with whom, and how many of them are needed."""
        self._waiting.clear()
        self.now = {"doing": doing, "round": round_, "since": self.clock(), "asked": list(asked), "needed": needed}
        self.write(True)

    def connected(self, names: Iterable[str]) -> None:
        """Note which clients are connected now."""
        here, now, news = set(names), self.clock(), False
        for name, node in self.nodes.items():
            news |= node.connected != (name in here)
            node.connected = name in here
            if node.connected:
                node.seen = now
        self.write(news)

    def asked(self, messages: dict[str, str], kind: str) -> None:
        """Note that clients were sent these messages."""
        self._waiting = dict(messages)
        self.now |= {"doing": DOING.get(kind.split(".")[0], kind), "since": self.clock()}
        self.write(True)

    def answered(self, messages: Iterable[str]) -> None:
        """Note that these messages were answered."""
        news = False
        for message in messages:
            name = self._waiting.pop(message, None)
            if name in self.nodes:
                self.nodes[name].seen, news = self.clock(), True
        self.write(news)

    def refused(self, name: str, reason: str) -> None:
        """Note why a node cannot take part."""
        if name in self.nodes:
            self.nodes[name].refused = reason
        else:
            self.strangers = [*(one for one in self.strangers if one != [name, reason]), [name, reason]][-STRANGERS:]
        self.write(True)

    def measured(self, round_: int, update: Update) -> None:
        """Note what each client measured on its held-out samples, where the server knows it of each."""
        if update.held_out is None or update.sealed is not None or update.noised:
            return
        for client, counts in zip(update.clients, update.held_out.tolist(), strict=True):
            right, samples = counts[:2]
            if samples:
                values = self.nodes[self.names[client]].val
                values[:] = [*(one for one in values if one[0] < round_), [round_, right / samples]][-HISTORY:]

    def ended(self, record: Record) -> None:
        """Note who took part in a round, and the cluster of each client after it."""
        missing = {self.names[one.client]: one.reason for one in record.missing}
        for name in self.now["asked"]:
            node = self.nodes[name]
            if name in missing:
                node.missed, node.reason = node.missed + 1, missing[name]
            else:
                node.round, node.refused = record.round, ""
        for name, cluster in self._clusters().items():
            moves = self.nodes[name].clusters
            moves[:] = [one for one in moves if one[0] < record.round]
            if not moves or moves[-1][1] != cluster:
                moves[:] = [*moves, [record.round, cluster]][-HISTORY:]
        self.tell("between rounds", record.round, (), 0)

    def _clusters(self) -> dict[str, int]:
        """Return the clusters as `clients.csv` has them, which was written with the round's checkpoint."""
        with suppress(OSError, ValueError, KeyError), (self.out / run_folder.CLIENTS).open(encoding="utf-8") as file:
            rows = [(plain(row["client"]), row["cluster"]) for row in csv.DictReader(file)]
            return {name: int(cluster) for name, cluster in rows if cluster and name in self.nodes}
        return {}

    def write(self, news: bool) -> None:
        """Replace the file, where there is news, or now and then."""
        now = self.clock()
        if self.silent or (not news and now - self._written < WRITE_EVERY):
            return
        self._written = now
        waiting = [name for name in self.names if name in self._waiting.values()]
        table = {
            "about": self.about,
            "written": now,
            "quorum": self.quorum,
            "now": {**self.now, "waiting": waiting},
            "nodes": {name: asdict(node) for name, node in self.nodes.items()},
            "strangers": self.strangers,
        }
        with suppress(OSError):
            atomic_file.write_text(self.out / run_folder.NODES, json.dumps(table))

    @contextmanager
    def forgotten_on_error(self) -> Iterator[None]:
        """Remove the file after an error, and the folder if nothing else is in it: the run never began."""
        try:
            yield
        except BaseException:
            if not self.silent:
                with suppress(OSError):
                    (self.out / run_folder.NODES).unlink(missing_ok=True)
                    self.out.rmdir()
            raise


@dataclass
class WatchedGrid:
    """A grid that passes everything on and notes who is connected, who was asked, and who answered."""

    grid: Grid
    log: NodeLog
    names: dict[int, str] = field(default_factory=dict)
    _looked: float = 0.0

    def __getattr__(self, name: str) -> Any:
        """Pass everything else on."""
        return getattr(self.grid, name)

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes that are connected."""
        nodes = list(self.grid.get_nodes())
        self.names |= {node.node_id: node.name or str(node.node_id) for node in nodes}
        self._looked = self.log.clock()
        self.log.connected(self.names[node.node_id] for node in nodes)
        return nodes

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        sent = list(messages)
        ids = list(self.grid.push_messages(sent))
        asked = zip(ids, sent, strict=False)
        to = {id_: self.names.get(one.metadata.dst_node_id, "") for id_, one in asked if id_ is not None}
        if sent:
            self.log.asked(to, sent[0].metadata.message_type)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have come; look now and then who is still connected."""
        found = list(self.grid.pull_messages(message_ids))
        self.log.answered(message.metadata.reply_to_message_id for message in found)
        if self.log.clock() - self._looked >= LOOK_EVERY:
            self.get_nodes()
        return found


@dataclass(frozen=True)
class NotedEngine:
    """An engine that notes each round's participants, and what they measured."""

    engine: Engine
    log: NodeLog

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Execute a round."""
        round_ = task.broadcast.round
        self.log.tell("connecting", round_, [self.log.names[client] for client in task.participants], task.needed)
        update, states = self.engine.execute(task)
        self.log.measured(round_, update)
        return update, states


def watched(grid: Grid, log: NodeLog) -> Grid:
    """Return the grid, watched."""
    return cast(Grid, WatchedGrid(grid, log))
