"""Estimates how long a round takes before the first one starts, from a part of its clients.

The trial changes nothing: states are data, and randomness comes from (seed, purpose, round, client).
"""

from math import log2
from time import perf_counter

from hcfl.core import rounds, server
from hcfl.core.setting import RoundTask
from hcfl.runs.loop import Prepared

MANY, TRIED = 1000, 100
"""Rounds of at least this many clients are estimated, from so many of them."""

LONG = 20.0
"""Seconds from which the user is told."""


def estimate(prepared: Prepared) -> float | None:
    """Return the seconds of a round; None where it has few clients, or clients are elsewhere.

    Clients' work grows with their number; the server's with a power of it between 1 and 2, which two trials show.
    """
    setting, state = prepared.setting, prepared.state
    if prepared.config.engine == "flower" or prepared.config.faults is not None:
        return None
    message = server.broadcast(setting.method, state.server, setting.federation.classes)
    participants = rounds.sample_clients(setting, message.round)
    if len(participants) < MANY:
        return None

    def tried(number: int) -> tuple[float, float]:
        began = perf_counter()
        update, _ = setting.engine.execute(RoundTask(setting, message, participants[:number], state.clients))
        trained = perf_counter()
        server.conclude(setting.method, setting.network, state.server, update, setting.seed)
        return trained - began, perf_counter() - trained

    tried(TRIED)  # the first time, libraries are imported
    (_, few), (clients, more) = tried(TRIED), tried(2 * TRIED)
    power = min(2.0, max(1.0, log2(more / few)))
    times = len(participants) / (2 * TRIED)
    return float(clients * times + more * times**power)


def sentence(prepared: Prepared) -> str | None:
    """Return a sentence for the user where a round may take long."""
    seconds = estimate(prepared)
    if seconds is None or seconds < LONG:
        return None
    return f"a round takes about {seconds:.0f} s, judged by {2 * TRIED} of its clients"
