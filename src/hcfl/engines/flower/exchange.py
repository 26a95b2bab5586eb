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


LONGEST_REASON = 500
"""Letters of what a client says that are printed and kept."""


@dataclass(frozen=True)
class Answers(Generic[T]):
    """The answers by node, and why other nodes did not answer."""

    received: dict[int, T]
    failed: dict[int, str]
    unreadable: frozenset[int] = frozenset()
    """The nodes among those that failed whose answers came, but cannot be read."""


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
    unreadable: set[int] = set()
    pause, end = POLLS[0], time.monotonic() + timeout
    while waiting and time.monotonic() < end:
        for message in grid.pull_messages(list(waiting)):
            node = waiting.pop(message.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if message.has_error():
                failed[node] = brief(f"error {message.error.code}: {message.error.reason}")
                continue
            try:
                received[node] = records.unpack(kind, message.content)
            except Exception as error:  # whatever one client's bytes raise is the fault of that client, and of no other
                failed[node] = brief(f"sent what cannot be read ({error or type(error).__name__})")
                unreadable.add(node)
        if waiting:
            time.sleep(pause)
            pause = min(POLLS[1], pause * 1.2)
    late = dict.fromkeys(waiting.values(), f"no answer within {timeout:g} s")
    return Answers(received, {**failed, **late}, frozenset(unreadable))


def brief(text: str) -> str:
    """Return what another machine says as one short line: it is printed, and kept in the log of events."""
    line = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * LONGEST_REASON]).strip()
    return line if len(line) <= LONGEST_REASON else f"{line[:LONGEST_REASON]}…"
