"""The engine whose clients are on other machines: one message to each in a round, bounded waits, a quorum."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hcfl.core import admission
from hcfl.core.collect import NoQuorumError
from hcfl.core.refusal import UNLIKE
from hcfl.core.setting import RoundTask, Setting
from hcfl.core.state import ClientState, Missing, Update
from hcfl.engines.flower.directory import PAUSE, Directory
from hcfl.engines.flower.exchange import ask, brief
from hcfl.engines.flower.messages import Common, Reply, Task, answers, asked_of, task_for
from hcfl.tiers import Weights


@dataclass(frozen=True)
class Patience:
    """How long a round waits for its clients."""

    timeout: float = 300.0
    """Seconds that a client has for its part of a round."""
    limit: float = 1800.0
    """Seconds that a round waits for its quorum in all."""


@dataclass
class Remote:
    """Ask the clients of a round and put together what they answer."""

    directory: Directory
    common: Common
    patience: Patience
    lost: set[int] = field(default_factory=set)
    """Clients that no longer have the state that the server knows of; they start anew."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the clients that answered sent, and the states known to the server: never more than they sent."""
        broadcast, participants, needed = task.broadcast, task.participants, task.needed
        end = time.monotonic() + self.patience.limit
        updates: dict[int, Update] = {}
        missing: dict[int, Missing] = {}
        refused: list[Missing] = []
        while True:
            wanted = [client for client in participants if client not in updates]
            nodes = self.directory.wait_for(wanted, needed - len(updates), end - time.monotonic())
            missing |= {client: Missing(client, "is not connected") for client in wanted if client not in nodes}
            known = {client: None if client in self.lost else task.states.get(client) for client in wanted}
            method, connected = task.setting.method, [client for client in wanted if client in nodes]
            tasks = {client: task_for(self.common, method, broadcast, client, known[client]) for client in connected}
            failed, lost = self._ask(task.setting, tasks, nodes, updates)
            missing |= failed
            refused += [one for one in failed.values() if one.refused and one not in refused]
            still = tuple(missing[client] for client in sorted(missing) if client not in updates)
            gone = (*(one for one in refused if one not in still), *still)
            if not lost and len(updates) >= needed:
                break
            self.lost |= lost
            if time.monotonic() >= end:
                raise NoQuorumError(
                    f"quorum = {task.setting.admission.quorum:g}: {len(updates)} of {len(participants)} clients "
                    f"answered in round {broadcast.round}, but {needed} are needed; resume when more of them are there",
                    broadcast.round,
                    gone,
                )
            time.sleep(PAUSE)
        self.lost -= set(updates)
        update = replace(Update.join([updates[client] for client in sorted(updates)]), missing=gone)
        rows = [update.weights[[row]] for row in range(len(update.clients))]
        return update, [ClientState(broadcast.round, broadcast.clusters, Weights(row)) for row in rows]

    def _ask(
        self, setting: Setting, tasks: Mapping[int, Task], nodes: Mapping[int, int], updates: dict[int, Update]
    ) -> tuple[dict[int, Missing], set[int]]:
        """Ask clients; add what they answer to `updates`. Return which failed and why, and which start anew."""
        client_of = {nodes[client]: client for client in tasks}
        questions = {nodes[client]: task for client, task in tasks.items()}
        found = ask(self.directory.grid, Reply, questions, "train", self.patience.timeout)
        failed = {
            client_of[node]: Missing(client_of[node], reason, refused=node in found.unreadable)
            for node, reason in found.failed.items()
        }
        lost: set[int] = set()
        for node, reply in found.received.items():
            client = client_of[node]
            if reply.problem or reply.update is None:
                failed[client] = Missing(client, brief(reply.problem) or "sent nothing")
                if reply.lost and client not in self.lost:
                    lost.add(client)
            elif problem := self._problem_with(reply, reply.update, tasks[client], setting):
                failed[client] = Missing(client, brief(problem), refused=True)
            else:
                updates[client] = reply.update
        for client in admission.unlike(list(updates.values())):
            del updates[client]
            failed[client] = Missing(client, UNLIKE.text, refused=True)
        return failed, lost

    def _problem_with(self, reply: Reply, update: Update, task: Task, setting: Setting) -> str | None:
        if not answers(reply, task, self.common.experiment):
            return f"answered as client {reply.client} of {reply.experiment}"
        return admission.problem_with(update, reply.round, asked_of(task, setting))
