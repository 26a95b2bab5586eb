"""The models that a run ends with, measured by the clients on their held-out data: one more message to each, or two.

Where clients make personal parts, the first answer says what each client found of the candidates on the samples that it
set aside; the second message brings the weights of all clients together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from hcfl.core import server
from hcfl.core.admission import most_held_out
from hcfl.core.held_out import Tally
from hcfl.core.setting import Setting
from hcfl.core.state import ClientScores, RunState
from hcfl.data import Federation
from hcfl.engines.flower.directory import Directory
from hcfl.engines.flower.exchange import ask, brief
from hcfl.engines.flower.messages import Common, Measured, Task, task_for
from hcfl.personal.inner_split import Gains
from hcfl.personal.measuring import PersonalParts
from hcfl.personal.stacking import common_weights


@dataclass(frozen=True)
class LastMeasurement:
    """Ask the clients that are connected when a run ends."""

    directory: Directory
    common: Common
    setting: Setting
    timeout: float
    on_missing: Callable[[int, str], None]
    """Called with a client whose measurement does not count, and the reason."""

    def __call__(self, state: RunState) -> tuple[ClientScores, Tally | None] | None:
        """Return what all clients that answered measured on their held-out samples; None if there are none."""
        federation, method = self.setting.at(state.server.round).federation, self.setting.method
        broadcast = server.broadcast(method, state.server, federation.classes)
        nodes = {client: node for client, node in self.directory.connected().items() if len(federation.val[client])}
        tasks = {
            client: task_for(self.common, method, broadcast, client, state.clients.get(client)) for client in nodes
        }
        answers = self._answers(state, nodes, tasks)
        if self.setting.personal is not None and (gains := [one.gains for one in answers.values() if one.gains]):
            common = common_weights(Gains.join(gains))
            again = {client: replace(tasks[client], personal=common) for client in answers}
            answers |= self._answers(state, {client: nodes[client] for client in answers}, again)
        table, personal = torch.zeros(2, federation.clients), torch.zeros(federation.clients)
        for client, answer in answers.items():
            table[:, client] = torch.tensor([answer.samples, answer.right])
            personal[client] = answer.right if answer.personal is None else answer.personal
        if not bool(table[0].any()):
            return None
        confusions = {client: one.confusion for client, one in answers.items() if one.confusion is not None}
        tally = Tally.of(confusions, federation.classes) if self._labelled else None
        return ClientScores(table[0], table[1], None if self.setting.personal is None else personal), tally

    def _answers(self, state: RunState, nodes: Mapping[int, int], tasks: Mapping[int, Task]) -> dict[int, Measured]:
        """Ask clients, and return the answers that count, by client."""
        asked = {nodes[client]: task for client, task in tasks.items()}
        found, answers = ask(self.directory.grid, Measured, asked, "evaluate", self.timeout), dict[int, Measured]()
        for client, node in sorted(nodes.items()):
            answer = found.received.get(node)
            size = float(state.server.sizes[client])
            federation = self.setting.at(state.server.round).federation
            problem = found.failed[node] if answer is None else self._problem_with(answer, federation, client, size)
            if answer is None or problem is not None:
                self.on_missing(client, str(problem))
            else:
                answers[client] = answer
        return answers

    @property
    def _labelled(self) -> bool:
        return self.setting.network.task.name == "classification"

    def _problem_with(self, answer: Measured, federation: Federation, client: int, size: float) -> str | None:
        """Return why an answer cannot be; `size` is the number of samples that the client last trained on."""
        if answer.problem:
            return brief(answer.problem)
        if (answer.experiment, answer.client) != (self.common.experiment, client):
            return "answered as another client, or of another run"
        train = (federation.news if federation.timeline else federation).train_sizes
        held_out = federation.val_sizes
        lowest = self.setting.network.task.lowest
        if not lowest <= answer.right <= answer.samples <= most_held_out(train, held_out, client, size):
            return f"sent counts that cannot be: {answer.right:g} of {answer.samples} held-out samples right"
        if answer.personal is not None and not lowest <= answer.personal <= answer.samples:
            return f"sent counts that cannot be: {answer.personal:g} of {answer.samples} right with its personal part"
        task, parts = self.setting.network.task, self.setting.personal
        if answer.gains is not None and not (isinstance(parts, PersonalParts) and parts.possible(task, answer.gains)):
            return "sent gains of personal parts that cannot be"
        return self._problem_with_confusion(answer)

    def _problem_with_confusion(self, answer: Measured) -> str | None:
        """Return why a confusion matrix cannot be: it has whole numbers from 0 on, which add up to the other counts."""
        counts, classes = answer.confusion, self.setting.federation.classes
        if counts is None or not self._labelled:
            return None if counts is None and not self._labelled else "sent other counts than it was asked for"
        if counts.dtype != torch.int64 or counts.shape != (classes, classes) or bool((counts < 0).any()):
            return "sent a confusion matrix that cannot be"
        if (int(counts.trace()), int(counts.sum())) != (answer.right, answer.samples):
            return "sent a confusion matrix that does not fit its other counts"
        return None
