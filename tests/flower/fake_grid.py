"""Flower's transport without its processes: messages go through the same records, apps are called directly."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from uuid import uuid4

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from hcfl.errors import InputError
from hcfl.flower import client_app


@dataclass
class FakeGrid:
    """A grid whose nodes answer at once. `nodes`: node id → (registered name, node configuration)."""

    nodes: dict[int, tuple[str, dict]]
    sent: list[Message] = field(default_factory=list)
    replies: dict[str, Message] = field(default_factory=dict)
    answered: list[Message] = field(default_factory=list)
    before: dict[int, list] = field(default_factory=dict)
    """For each node, what happens to its next training messages: None as usual, or a function of the reply."""
    at_last: dict[int, Callable] = field(default_factory=dict)
    """For each node, what happens to its answer to the measurement at the end."""
    always: dict[tuple[int, str], Callable] = field(default_factory=dict)
    """For a node and a type of message, what happens to every reply."""
    contexts: dict[int, Context] = field(default_factory=dict)
    """What nodes keep in memory between messages."""

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, name=name) for node, (name, _) in self.nodes.items()]

    def push_messages(self, messages):
        names = []
        for message in messages:
            name = uuid4().hex
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            if node not in self.nodes:
                self.replies[name] = Message(Error(5, "Node Unavailable"), reply_to=message)
            else:
                self._answer(name, node, message)
            self.sent.append(message)
            names.append(name)
        return names

    def _answer(self, name, node, message):
        new = Context(run_id=1, node_id=node, node_config=self.nodes[node][1], state=RecordDict(), run_config={})
        try:
            reply = client_app.app(message, self.contexts.setdefault(node, new))
        except InputError as error:  # Flower says of any exception that there was one
            reply = Message(Error(2, str(error)), reply_to=message)
        planned = self.before.get(node, [])
        if message.metadata.message_type.startswith("train") and planned:
            change = planned.pop(0)
            reply = reply if change is None else change(message, reply)
        if message.metadata.message_type == "evaluate" and node in self.at_last:
            reply = self.at_last[node](message, reply)
        if change := self.always.get((node, message.metadata.message_type)):
            reply = change(message, reply)
        if reply is not None:
            self.replies[name] = reply
            self.answered.append(reply)

    def pull_messages(self, names):
        return [self.replies.pop(name) for name in list(names) if name in self.replies]


@pytest.fixture(autouse=True)
def _a_run(monkeypatch):
    for part in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, part, 1)
