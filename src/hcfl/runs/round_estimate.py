"""Estimates how long a round takes before the first one starts, from a part of its clients.

The trial changes nothing: states are data, and randomness comes from (seed, purpose, round, client).
"""

from time import perf_counter

from hcfl.core import rounds, server
from hcfl.core.setting import RoundTask
from hcfl.runs.loop import Prepared

MANY, TRIED = 1000, 100
"""Rounds of at least this many clients are estimated, from so many of them."""

LONG = 20.0
"""Seconds from which the user is told."""


def estimate(prepared: Prepared) -> tuple[float, float] | None:
    """Return the seconds of a round, at least and at most; None where a round is short, or clients are elsewhere.

    Clients' work grows with their number; the server's with their number or, where it compares pairs, with its square.
    """
    setting, state = prepared.setting, prepared.state
    if prepared.config.engine == "flower" or prepared.config.faults is not None:
        return None
    message = server.broadcast(setting.method, state.server, setting.federation.classes)
    participants = rounds.sample_clients(setting, message.round)
    if len(participants) < MANY:
        return None
    began = perf_counter()
    update, _ = setting.engine.execute(RoundTask(setting, message, participants[:TRIED], state.clients))
    trained = perf_counter()
    server.conclude(setting.method, setting.network, state.server, update, setting.seed)
    concluded = perf_counter()
    times = len(participants) / TRIED
    clients, ours = trained - began, concluded - trained
    return (clients + ours) * times, clients * times + ours * times**2


def sentence(prepared: Prepared) -> str | None:
    """Return a sentence for the user where a round may take long."""
    found = estimate(prepared)
    if found is None or found[1] < LONG:
        return None
    low, high = found
    return (
        f"a round takes about {low:.0f} to {high:.0f} s here, as {TRIED} of its clients took; Ctrl-C ends after a round"
    )
