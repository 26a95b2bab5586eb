"""A short trial of engines and CPU threads before a run: which is fastest depends on the network and on the machine.

Engines agree except for rounding, and so do numbers of threads. A run with the same settings should not end with other
last digits because another program was busy during the trial. So the trial overrules the rule of `engine_choice.py`
only by a clear margin, its result is kept in the cache folder for the next runs, and a run records what was chosen.
"""

import os
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter, thread_time
from typing import NamedTuple

import numpy as np
import torch

from hcfl.config import Config
from hcfl.core import rounds, server
from hcfl.core.setting import Engine, RoundTask, Setting
from hcfl.core.state import RunState
from hcfl.data.client_rows import ClientRows
from hcfl.data.readers import cache
from hcfl.engines.drawing import drawing_layers
from hcfl.models.precision import threads
from hcfl.runs import memory_estimate
from hcfl.runs.engine_choice import plain_engine

MARGIN = 1.5
"""How many times as fast as the rule's choice another one must be to take its place."""

STEPS, REPEATS = 2, 3
"""SGD steps of each client, and how often each way is timed; the shortest time counts."""

HOPELESS = 2.0
"""A way that took so many times as long as another is not timed again."""

SHORT, FEW = 0.02, 8
"""Seconds of one client from which no way is much faster than another; so few samples are tried first."""

WANTED, MOST = 0.05, 32
"""Seconds of all clients that are tried, one after another, and how many they are at most."""


class Way(NamedTuple):
    """A way to execute clients on a CPU."""

    engine: str
    threads: int

    def __str__(self) -> str:
        return f"{self.engine} with {self.threads} thread{'s' if self.threads > 1 else ''}"


def ways(asked: Config, usual: Way) -> list[Way]:
    """Return the ways to try: the usual one, and others that the user's settings leave open.

    >>> [str(way) for way in ways(Config(threads=2), Way("batched", 2))]
    ['batched with 2 threads', 'sequential with 2 threads']
    """
    others = [Way("sequential", asked.threads or torch.get_num_threads()), Way("batched", asked.threads or 1)]
    return [usual, *(way for way in others if way != usual and asked.engine in ("auto", way.engine))]


def overruled(asked: Config, config: Config, setting: Setting, state: RunState) -> tuple[Config, tuple[str, ...]]:
    """Return the configuration with an engine and threads that a trial found clearly faster, and what to tell.

    `asked` are the user's settings, `config` the same with what the rule chose.
    """
    network, usual = setting.network, Way(config.engine, config.threads or 1)
    if config.device != "cpu" or network.frozen:
        return config, ()

    def with_(way: Way) -> Config:
        return config.model_copy(update={"engine": way.engine, "threads": way.threads})

    parts = network, setting.method, setting.federation
    possible = [way for way in ways(asked, usual) if way == usual or memory_estimate.fits(*parts, with_(way))]
    if len(possible) < 2 or drawing_layers(network, setting.federation.shape, setting.federation.scaling.dtype):
        return config, ()

    def tried() -> cache.Entry:
        engines = [plain_engine(with_(way)) for way in possible]
        return cache.Entry({}, {"seconds": measured(engines, possible, setting, state)})

    name = f"engine-{_key(possible, setting, state)}"
    entry, _ = cache.get(cache.location(config.data.cache_dir), name, tried)
    seconds = dict(zip(possible, entry.facts["seconds"], strict=True))
    best = min(possible, key=lambda way: seconds[way])
    if not seconds[usual] >= MARGIN * seconds[best]:
        return config, ()
    times = seconds[usual] / seconds[best]
    return with_(best), (f"the engine is {best}: in a trial it was {times:.1f} times as fast as {usual}",)


def measured(engines: Sequence[Engine], ways: Sequence[Way], setting: Setting, state: RunState) -> list[float]:
    """Return the shortest time of each way; the same for all where one client alone takes long.

    Nothing changes: states are data, and randomness comes from (seed, purpose, round, client). A way that fails takes
    for ever; if it is used nevertheless, round 1 says why.
    """
    message = server.broadcast(setting.method, state.server, setting.federation.classes)
    participants = rounds.sample_clients(setting, message.round)
    alone = 0.0
    for samples in (FEW, STEPS * setting.sgd.batch):
        first = RoundTask(_shortened(setting, participants[:1], samples), message, participants[:1], {})
        alone = min(_seconds(engines[0], first, 1, thread_time) for _ in range(2))  # whatever else is running
        if alone > SHORT or len(participants) < 2:
            return [1.0] * len(ways)
    tried = participants[: min(MOST, max(2, int(WANTED / alone)))]
    task = RoundTask(_shortened(setting, tried, STEPS * setting.sgd.batch), message, tried, {})
    for engine, way in zip(engines, ways, strict=True):
        _seconds(engine, task, way.threads)  # the first time, libraries are imported
    shortest = [inf] * len(ways)
    for _ in range(REPEATS):
        known = min(shortest)
        for at, way in enumerate(ways):
            if shortest[at] <= HOPELESS * known or known == inf:
                shortest[at] = min(shortest[at], _seconds(engines[at], task, way.threads))
    return shortest


def _seconds(engine: Engine, task: RoundTask, number: int, clock: Callable[[], float] = perf_counter) -> float:
    with warnings.catch_warnings(), threads(number):
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", message=".*batching rule")  # torch goes on sample by sample, very slowly
        began = clock()
        try:
            engine.execute(task)
        except Exception:  # of a user's own code, or out of memory
            return inf
        return clock() - began


def _shortened(setting: Setting, clients: Sequence[int], most: int) -> Setting:
    """Return the setting with so many samples of some clients, seen once, and with no data of the others."""
    federation = setting.federation
    rows = [federation.train[client][:most] for client in sorted(clients)]
    sizes = np.zeros(federation.clients, dtype=np.int64)
    sizes[sorted(clients)] = [len(part) for part in rows]
    return replace(
        setting,
        federation=replace(federation, train=ClientRows(torch.cat(rows), sizes)),
        sgd=replace(setting.sgd, epochs=1),
    )


def _key(ways: Sequence[Way], setting: Setting, state: RunState) -> str:
    """Return what the time of clients depends on: the machine, the network, and what a step computes."""
    machine = platform.node(), platform.machine(), os.cpu_count(), torch.__version__
    network, method, federation = setting.network, setting.method, setting.federation
    model = repr(network.extractor), repr(network.head), network.half, network.task.name
    work = method.topology, type(method.local).__name__, state.server.ensemble.clusters, setting.sgd.order
    data = federation.shape, federation.classes, setting.sgd.batch, min(MOST, federation.clients)
    return cache.identity(machine, list(ways), model, work, data)
