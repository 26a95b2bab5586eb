"""Which client is on which node, now. Nodes come and go, and may come back under another number."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from flwr.serverapp import Grid

from hcfl.engines.flower.exchange import ask
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
    accept: Callable[[Introduction], str | None] = lambda introduction: introduction.problem or None
    """Return why a client cannot take part, if so."""
    known: dict[int, Introduction] = field(default_factory=dict)
    """How each node introduced itself."""
    refused: dict[int, str] = field(default_factory=dict)
    """Nodes that cannot take part, with the reason."""
    introduced: frozenset[str] = frozenset()
    """Clients that introduced themselves before, where a run is resumed."""

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
                    self.refused[node] = problem
                    self.on_refused(nodes[node] or introduction.name or str(node), problem)
        return {self.known[node].client: node for node in nodes if node in self.known}

    def wait_for(self, clients: Iterable[int], number: int, patience: float) -> dict[int, int]:
        """Wait until `number` of the clients are connected, at most `patience` seconds; return the node of each."""
        wanted, end = set(clients), time.monotonic() + patience
        while len(wanted & set(found := self.connected())) < number and time.monotonic() < end:
            time.sleep(PAUSE)
        return found

    def _problem(self, registered: str, introduction: Introduction) -> str | None:
        """Return why a node cannot take part: its name is the one its key was registered under, and no other."""
        if registered and introduction.name != registered:
            return f"says that it is {introduction.name!r}, but its key is that of {registered!r}"
        return self.accept(introduction)
