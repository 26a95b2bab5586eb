"""The models that a run ends with, measured by the clients on their held-out data: one more message to each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hcfl.core import server
from hcfl.core.admission import most_held_out
from hcfl.core.setting import Setting
from hcfl.core.state import ClientScores, RunState
from hcfl.engines.flower.directory import Directory
from hcfl.engines.flower.exchange import ask, brief
from hcfl.engines.flower.messages import Common, Measured, task_for


@dataclass(frozen=True)
class LastMeasurement:
    """Ask the clients that are connected when a run ends."""

    directory: Directory
    common: Common
    setting: Setting
    timeout: float
    on_missing: Callable[[int, str], None]
    """Called with a client whose measurement does not count, and the reason."""

    def __call__(self, state: RunState) -> ClientScores | None:
        """Return what all clients that answered measured on their held-out samples; None if there are none."""
        federation, method = self.setting.federation, self.setting.method
        broadcast = server.broadcast(method, state.server, federation.classes)
        nodes = {client: node for client, node in self.directory.connected().items() if len(federation.val[client])}
        tasks = {
            node: task_for(self.common, method, broadcast, client, state.clients.get(client))
            for client, node in nodes.items()
        }
        found = ask(self.directory.grid, Measured, tasks, "evaluate", self.timeout)
        table, personal = torch.zeros(2, federation.clients), torch.zeros(federation.clients)
        for client, node in sorted(nodes.items()):
            answer = found.received.get(node)
            size = float(state.server.sizes[client])
            problem = found.failed[node] if answer is None else self._problem_with(answer, client, size)
            if answer is None or problem is not None:
                self.on_missing(client, str(problem))
                continue
            table[:, client] = torch.tensor([answer.samples, answer.right])
            personal[client] = answer.right if answer.personal is None else answer.personal
        if not bool(table[0].any()):
            return None
        return ClientScores(table[0], table[1], None if self.setting.personal is None else personal)

    def _problem_with(self, answer: Measured, client: int, size: float) -> str | None:
        """Return why an answer cannot be; `size` is the number of samples that the client last trained on."""
        if answer.problem:
            return brief(answer.problem)
        federation = self.setting.federation
        if (answer.experiment, answer.client) != (self.common.experiment, client):
            return "answered as another client, or of another run"
        train, held_out = ([len(rows) for rows in part] for part in (federation.train, federation.val))
        lowest = self.setting.network.task.lowest
        if not lowest <= answer.right <= answer.samples <= most_held_out(train, held_out, client, size):
            return f"sent counts that cannot be: {answer.right:g} of {answer.samples} held-out samples right"
        if answer.personal is not None and not 0 <= answer.personal <= answer.samples:
            return f"sent counts that cannot be: {answer.personal} of {answer.samples} right with its personal part"
        return None
