"""One question to many nodes and their answers, with a bounded wait; for other nodes, the reason."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from hcfl.engines.flower import records

T = TypeVar("T")

POLLS = (0.1, 1.0)
"""Seconds between two looks for answers: few at first, as simulated clients are quick, more later."""


@dataclass(frozen=True)
class Answers(Generic[T]):
    """The answers by node, and why other nodes did not answer."""

    received: dict[int, T]
    failed: dict[int, str]


def ask(grid: Grid, kind: type[T], questions: Mapping[int, object], message_type: str, timeout: float) -> Answers[T]:
    """Send each node its question; an answer counts if it comes in time and is of the right kind."""
    nodes = list(questions)
    messages = [
        Message(records.pack(questions[node]), dst_node_id=node, message_type=message_type, ttl=timeout)
        for node in nodes
    ]
    # An error's sender is the SuperLink, so answers are told apart by the message that they answer.
    waiting = {sent: node for sent, node in zip(grid.push_messages(messages), nodes, strict=False) if sent is not None}
    received: dict[int, T] = {}
    failed = {node: "could not be asked" for node in nodes if node not in waiting.values()}
    pause, end = POLLS[0], time.monotonic() + timeout
    while waiting and time.monotonic() < end:
        for message in grid.pull_messages(list(waiting)):
            node = waiting.pop(message.metadata.reply_to_message_id)
            if message.has_error():
                failed[node] = f"error {message.error.code}: {message.error.reason}"
                continue
            try:
                received[node] = records.unpack(kind, message.content)
            except ValueError as error:
                failed[node] = f"sent what cannot be read ({error})"
        if waiting:
            time.sleep(pause)
            pause = min(POLLS[1], pause * 1.2)
    return Answers(received, {**failed, **dict.fromkeys(waiting.values(), f"no answer within {timeout:g} s")})
