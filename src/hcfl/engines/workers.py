"""Several clients at once on a CPU, each in a thread of its own with a network of its own.

Threads that share an operation wait for each other at its end, which on a busy machine can take longer than the
operation; clients do not wait for each other. Every client computes with one CPU thread, so the number of workers
changes no result, and a run may choose it by the clock.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter

import torch

from hcfl.core.client import take_part
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.engines.drawing import one_by_one
from hcfl.models import Network
from hcfl.models.precision import threads

Done = tuple[Update, list[ClientState]]
"""What one client gives."""

ALONE = 2
"""How many clients take turns to be compared with clients side by side, after one that warms up."""

LOOKS, SLOWER = 3, 1.25
"""In how many rounds they are compared, by the shortest times: other programs make single times long. Where clients
side by side take so many times as long, they take turns."""


@dataclass
class Workers:
    """Runs clients side by side unless that is slower, which the first rounds of a run show."""

    number: int
    """How many clients at once, at most."""
    faster: bool | None = None
    """Whether several at once are faster than one after another; None: not measured yet."""
    _paces: tuple[float, float] = (inf, inf)
    """The shortest times of a sample: in turn, side by side."""
    _looks: int = 0
    _networks: list[Network] = field(default_factory=list)
    """Networks that no worker uses now: a network holds the parameters that it computes with."""
    _copied: Network | None = None

    def execute(self, task: RoundTask) -> list[Done]:
        """Run the participants; return what each gives, in their order."""
        clients = list(task.participants)
        if len(clients) == 1:
            return [take_part(task)]
        with threads(1):
            if self.faster is None and (self.number == 1 or not _can_run_together(task)):
                self.faster, self._looks = False, LOOKS
            tried = self._measured(task, clients) if self._looks < LOOKS else []
            run = _in_turn if self.faster is False else self._together
            return tried + run(task, clients[len(tried) :])

    def _measured(self, task: RoundTask, clients: Sequence[int]) -> list[Done]:
        """Run the first clients one after another, the next ones side by side, and note which are faster."""
        side_by_side = 2 * self.number
        if len(clients) < 1 + ALONE + side_by_side:
            return []  # too few to compare: side by side, and a later round may have more
        done = [take_part(task.only([clients[0]]))]
        alone, together = clients[1 : 1 + ALONE], clients[1 + ALONE : 1 + ALONE + side_by_side]
        sizes = task.setting.federation.train_sizes
        paces = []
        for some, run in ((alone, _in_turn), (together, self._together)):
            began = perf_counter()
            done += run(task, some)
            paces.append((perf_counter() - began) / max(1, int(sizes[list(some)].sum())))
        shortest = min(paces[0], self._paces[0]), min(paces[1], self._paces[1])
        self._paces, self._looks, self.faster = shortest, self._looks + 1, shortest[1] < SLOWER * shortest[0]
        return done

    def _together(self, task: RoundTask, clients: Sequence[int]) -> list[Done]:
        network = task.setting.network
        if self._copied is not network:
            self._copied, self._networks = network, [_copy(network) for _ in range(self.number)]

        def one(client: int) -> Done:
            mine = self._networks.pop()
            try:
                return take_part(replace(task, setting=replace(task.setting, network=mine)).only([client]))
            finally:
                self._networks.append(mine)

        # The state of torch's own generator is what it was before, whichever thread put it back last.
        with torch.random.fork_rng(devices=[]), ThreadPoolExecutor(self.number, initializer=_one_thread) as pool:
            return list(pool.map(one, clients))


def _in_turn(task: RoundTask, clients: Sequence[int]) -> list[Done]:
    return [take_part(task.only([client])) for client in clients]


def _one_thread() -> None:
    torch.set_num_threads(1)


def _copy(network: Network) -> Network:
    return replace(network, extractor=deepcopy(network.extractor), head=deepcopy(network.head))


def _can_run_together(task: RoundTask) -> bool:
    """Whether a client's training draws no number from torch's own generator, which all threads share."""
    network = task.setting.network
    if network.frozen:
        return False  # a backbone is shared by all models, and may be too large to copy
    return not one_by_one(network, task.setting.federation.local_data(task.participants[:1]).inputs)
