"""The engine whose clients are on other machines: one message to each in a round, bounded waits, a quorum."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from hcfl.errors import InputError
from hcfl.flower.directory import PAUSE, Directory
from hcfl.flower.exchange import ask
from hcfl.flower.messages import Common, Reply, Task, evidence_of, problem_with, task_for
from hcfl.rounds import Setting
from hcfl.state import Broadcast, ClientState, Update
from hcfl.tiers import Weights

Absent = Mapping[int, str]
"""Clients who were asked and do not count in a round, with the reason."""


@dataclass(frozen=True)
class Patience:
    """How long a round waits, and for whom."""

    timeout: float = 300.0
    """Seconds that a client has for its part of a round."""
    quorum: float = 0.5
    """A round counts with at least this share of the sampled clients."""
    limit: float = 1800.0
    """Seconds that a round waits for its quorum in all."""


@dataclass
class Remote:
    """Ask the clients of a round and put together what they answer."""

    directory: Directory
    common: Common
    patience: Patience
    on_absent: Callable[[int, Absent], None] = lambda round_, absent: None
    lost: set[int] = field(default_factory=set)
    """Clients who no longer have the state that the server knows of; they start anew."""

    def execute(
        self,
        setting: Setting,
        broadcast: Broadcast,
        participants: Sequence[int],
        states: Mapping[int, ClientState],
    ) -> tuple[Update, list[ClientState]]:
        """Return what those who answered sent, and what the server knows of them: never more than they sent."""
        needed = max(1, ceil(self.patience.quorum * len(participants)))
        end = time.monotonic() + self.patience.limit
        updates: dict[int, Update] = {}
        absent: dict[int, str] = {}
        while True:
            wanted = [client for client in participants if client not in updates]
            here = self.directory.wait_for(wanted, needed - len(updates), end - time.monotonic())
            absent |= {client: "is not connected" for client in wanted if client not in here}
            known = {client: None if client in self.lost else states.get(client) for client in wanted}
            tasks = {c: task_for(self.common, setting.method, broadcast, c, known[c]) for c in wanted if c in here}
            failed, lost = self._ask(tasks, here, updates)
            absent |= failed
            if not lost and len(updates) >= needed:
                break
            self.lost |= lost
            if time.monotonic() >= end:
                raise InputError(
                    f"quorum = {self.patience.quorum:g}: {len(updates)} of {len(participants)} clients answered in "
                    f"round {broadcast.round}, but {needed} are needed; resume when more of them are there"
                )
            time.sleep(PAUSE)
        absent = {client: reason for client, reason in absent.items() if client not in updates}
        self.on_absent(broadcast.round, absent)
        self.lost -= set(updates)
        update = Update.join([updates[client] for client in sorted(updates)])
        rows = [update.weights[[row]] for row in range(len(update.clients))]
        return update, [ClientState(broadcast.round, broadcast.clusters, Weights(row)) for row in rows]

    def _ask(
        self, tasks: Mapping[int, Task], here: Mapping[int, int], updates: dict[int, Update]
    ) -> tuple[dict[int, str], set[int]]:
        """Ask clients; add what they answer to `updates`. Return who failed and why, and who has to start anew."""
        client_of = {here[client]: client for client in tasks}
        questions = {here[client]: task for client, task in tasks.items()}
        answers = ask(self.directory.grid, Reply, questions, "train", self.patience.timeout)
        failed = {client_of[node]: reason for node, reason in answers.failed.items()}
        lost: set[int] = set()
        for node, reply in answers.said.items():
            client = client_of[node]
            problem = problem_with(reply, tasks[client], self.common.experiment)
            if problem is not None:
                failed[client] = problem
                if reply.lost and client not in self.lost:
                    lost.add(client)
            elif reply.update is not None:
                updates[client] = reply.update
        for client in unlike(updates):
            del updates[client]
            failed[client] = "sent counts, prototypes or moments unlike the others'"
        return failed, lost


def unlike(updates: Mapping[int, Update]) -> list[int]:
    """Return the clients whose evidence has another shape than that of most: it cannot be put together."""
    kinds = {client: evidence_of(update) for client, update in updates.items()}
    usual = Counter(kinds.values()).most_common(1)
    return [client for client, kind in kinds.items() if kind != usual[0][0]]
