"""Which client is on which node, now. Nodes come and go, and may come back under another number."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.serverapp import Grid

from hcfl.engines.flower.exchange import ask, brief
from hcfl.engines.flower.messages import Introduction, Question

PAUSE = 1.0
"""Seconds between two looks at which nodes are connected."""


@dataclass
class Directory:
    """The nodes that are connected, and which client each is."""

    grid: Grid
    question: Question
    timeout: float
    on_refused: Callable[[str, str], None] = lambda name, reason: None
    """Called with the name of a node that cannot take part, and the reason."""
    on_presence: Callable[[str, bool], None] = lambda name, here: None
    """Called with the name of a client that was connected, or is no longer."""
    accept: Callable[[Introduction], str | None] = lambda introduction: introduction.problem or None
    """Return why a client cannot take part, if so."""
    known: dict[int, Introduction] = field(default_factory=dict)
    """How each node introduced itself."""
    refused: dict[int, str] = field(default_factory=dict)
    """Nodes that cannot take part, with the reason."""
    introduced: frozenset[str] = frozenset()
    """Clients that introduced themselves before, where a run is resumed."""
    present: frozenset[str] = frozenset()
    """The clients that were connected at the last look."""

    def connected(self) -> dict[int, int]:
        """Return the node of every client that is connected; new nodes are asked first."""
        nodes = {node.node_id: node.name for node in self.grid.get_nodes()}
        for node, name in nodes.items():
            if name in self.introduced and node not in self.known:
                self.known[node] = Introduction(self.question.clients.index(name), name)
        new = [node for node in nodes if node not in self.known and node not in self.refused]
        if new:
            answers = ask(self.grid, Introduction, dict.fromkeys(new, self.question), "query", self.timeout)
            for node, introduction in answers.received.items():
                problem = self._problem(nodes[node], introduction)
                if problem is None:
                    self.known[node] = introduction
                else:
                    self.refuse(node, nodes[node] or introduction.name, problem)
            for node in answers.unreadable:
                self.refuse(node, nodes[node], answers.failed[node])
        self._notice(frozenset(self.known[node].name for node in nodes if node in self.known))
        return {self.known[node].client: node for node in nodes if node in self.known}

    def _notice(self, here: frozenset[str]) -> None:
        """Say which clients came and went since the last look."""
        for name in sorted(here ^ self.present):
            self.on_presence(brief(name), name in here)
        self.present = here

    def wait_for(self, clients: Iterable[int], number: int, patience: float) -> dict[int, int]:
        """Wait until `number` of the clients are connected, at most `patience` seconds; return the node of each."""
        wanted, end = set(clients), time.monotonic() + patience
        while len(wanted & set(found := self.connected())) < number and time.monotonic() < end:
            time.sleep(PAUSE)
        return found

    def refuse(self, node: int, name: str, problem: str) -> None:
        """Leave a node out from now on, and say why."""
        self.known.pop(node, None)
        self.refused[node] = brief(problem)
        self.on_refused(brief(name) or str(node), self.refused[node])

    def _problem(self, registered: str, introduction: Introduction) -> str | None:
        """Return why a node cannot take part: its name and number are those its key was registered under, no others."""
        if registered and introduction.name != registered:
            return f"says that it is {introduction.name!r}, but its key is that of {registered!r}"
        names, name = self.question.clients, registered or introduction.name
        if names and name not in names:
            return introduction.problem or f"{name!r} is not among the clients of this run"
        if names and introduction.client != names.index(name):
            return f"says that it is client {introduction.client}, but its key is that of client {names.index(name)}"
        if introduction.client < 0:
            return introduction.problem or f"says that it is client {introduction.client}"
        return self.accept(introduction)
