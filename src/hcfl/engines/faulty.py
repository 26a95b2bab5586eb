"""Clients that fail, simulated: an engine around an engine, whose clients drop out, come late, or send what is wrong.

Which clients fail, and how, comes from (seed, round, attempt, client). Honest clients are executed together as ever;
each bad upload is a message of its own, and passes the same admission as one from another machine.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from hcfl import rng
from hcfl.config import Config, FaultsConfig
from hcfl.core import admission
from hcfl.core.changes import lengthened
from hcfl.core.refusal import UNLIKE, Refusal
from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import Broadcast, ClientState, Missing, Update
from hcfl.data import Federation
from hcfl.data.backdoor import Backdoor
from hcfl.engines.poisoned import poisoners, with_attackers
from hcfl.errors import InputError
from hcfl.methods import Method

HUGE = 1e6
"""By how much sizes and norms are overstated."""


@dataclass(frozen=True)
class Faulty:
    """The engine `inner`, some of whose clients fail."""

    inner: Engine
    faults: FaultsConfig

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return the admitted uploads, and the missing clients; honest uploads are checked by the caller."""
        fails = drawn(self.faults, task.setting.seed, task.broadcast)
        failing = {client: fails[client] for client in task.participants if client in fails}
        honest, kept = Update.empty(task.broadcast), list[ClientState]()
        if others := [client for client in task.participants if client not in failing]:
            honest, kept = self.inner.execute(task.only(others))

        missing: list[Missing] = []
        sent: dict[int, tuple[Update, ClientState]] = {}
        for client, kind in failing.items():
            answer = self._answer(task.only([client]), kind)
            if isinstance(answer, Missing):
                missing.append(answer)
            else:
                sent[client] = answer
        refused = _refused(task, honest, [update for update, _ in sent.values()])
        missing += [Missing(client, refusal.text, refused=True) for client, refusal in refused.items()]

        passed = [pair for client, pair in sent.items() if client not in refused]
        uploads = [update for update, _ in passed]
        update = Update.join([honest, *uploads] if others or not uploads else uploads)
        gone = tuple(sorted(missing, key=lambda one: one.client))
        return replace(update, missing=gone), [*kept, *(state for _, state in passed)]

    def _answer(self, task: RoundTask, kind: str) -> Missing | tuple[Update, ClientState]:
        """Return what the only participant sends, which fails, if it comes at all and has the form of an upload."""
        (client,), broadcast, seed = task.participants, task.broadcast, task.setting.seed
        if kind in SILENT:
            return Missing(client, SILENT[kind])
        if kind == "straggle":
            draw = rng.numpy_generator(seed, "straggle", broadcast.round, broadcast.attempt, client)
            time, deadline = 1 / (1 - draw.random()), self.faults.deadline
            if time > deadline:
                return Missing(client, f"answered after {time:.3g} times the usual time, the deadline is {deadline:g}")
        update, (state,) = self.inner.execute(task)
        if kind in SPOIL:
            update = SPOIL[kind](update, seed, broadcast)
        asked = admission.Asked(broadcast.round, client, len(broadcast.clusters), broadcast.ensemble)
        problem = admission.problem_with(update, broadcast.round - (kind == "stale"), asked)
        return (update, state) if problem is None else Missing(client, problem, refused=True)


def _refused(task: RoundTask, honest: Update, sent: Sequence[Update]) -> dict[int, Refusal]:
    """Return which uploads of failing clients are refused, and why, when checked together with the honest ones."""
    odd = admission.unlike([honest, *sent])
    alike = [update for update in sent if not set(update.clients) & set(odd)]
    found = admission.refusals(task, Update.join([honest, *alike]))
    spoilt = {client: refusal for client, refusal in found.items() if client not in honest.clients}
    return dict.fromkeys(odd, UNLIKE) | spoilt


def with_faults(engine: Engine, config: Config, federation: Federation, method: Method) -> Engine:
    """Put the faults that are wanted around an engine; the attackers are drawn once."""
    faults = config.faults
    if faults is None:
        return engine
    if config.engine == "flower":
        raise InputError("faults: are simulated by the engines sequential and batched, not by engine flower")
    if config.privacy.mode != "none":
        raise InputError(f"faults: need uploads that can be told apart, but privacy.mode is {config.privacy.mode}")
    if faults.prototypes and "prototypes" not in method.needs:
        raise InputError(
            f"faults.prototypes = {faults.prototypes:g}: {method.name} compares no prototypes, so none can be forged"
        )
    attackers = poisoners(faults, federation.clients, config.seed)
    if federation.targets is not None and (faults.flip or faults.backdoor):
        raise InputError(f"faults: flipped labels and backdoors are of classes, but the task is {federation.task.name}")
    return Faulty(with_attackers(engine, faults, federation, attackers, backdoor_of(config, federation)), faults)


def attackers_of(config: Config, federation: Federation) -> frozenset[int]:
    """Return the clients that attack."""
    groups = {} if config.faults is None else poisoners(config.faults, federation.clients, config.seed)
    return frozenset(client for group in groups.values() for client in group)


def backdoor_of(config: Config, federation: Federation) -> Backdoor | None:
    """Return the backdoor that some clients put into models, if there are any."""
    faults = config.faults
    return Backdoor.on(federation.x, federation.classes, faults.target) if faults and faults.backdoor else None


def drawn(faults: FaultsConfig, seed: int, broadcast: Broadcast) -> dict[int, str]:
    """Return the clients that fail in this attempt at the round, and how; each in one way at most.

    All clients are put in a random order, of which each kind gets its share, rounded up or down at random; so
    which clients fail does not depend on which take part.
    """
    draw = rng.numpy_generator(seed, "faults", broadcast.round, broadcast.attempt)
    clients = len(broadcast.weights)
    order, offset = draw.permutation(clients).tolist(), draw.random()
    ends = list(accumulate(faults.passing.values()))
    kinds = [bisect_right(ends, (place + offset) / clients) for place in range(clients)]
    return {client: list(faults.passing)[kind] for client, kind in zip(order, kinds, strict=True) if kind < len(ends)}


SILENT = {
    "drop": "dropped out before it trained",
    "drop_after": "dropped out after it trained",
}
"""Kinds of which nothing arrives, with the reason; so nothing has to be computed for them either."""


def _with_parameter(update: Update, value: float) -> Update:
    """Set one parameter of one head."""
    name, tensor = next(iter(update.models.heads.items()))
    spoilt = tensor.clone()
    spoilt.view(-1)[0] = value
    return replace(update, models=replace(update.models, heads={**update.models.heads, name: spoilt}))


def _shorter(update: Update) -> Update:
    heads = {name: tensor[..., :-1] for name, tensor in update.models.heads.items()}
    return replace(update, models=replace(update.models, heads=heads))


def _one_cluster_more(update: Update) -> Update:
    def wider(table: Tensor) -> Tensor:
        return torch.cat([table, torch.zeros_like(table[:, :1])], dim=1)

    return replace(update, weights=wider(update.weights), mass=wider(update.mass), started=wider(update.started))


def _with_forged_prototypes(update: Update, seed: int, broadcast: Broadcast) -> Update:
    assert update.prototypes is not None
    means = update.prototypes.class_means
    generator = rng.torch_generator(seed, "forged", broadcast.round, broadcast.attempt, *update.clients)
    forged = torch.randn(means.shape, generator=generator).to(means)
    return replace(update, prototypes=replace(update.prototypes, class_means=forged))


SPOIL: dict[str, Callable[[Update, int, Broadcast], Update]] = {
    "nan": lambda update, seed, broadcast: _with_parameter(update, torch.nan),
    "inf": lambda update, seed, broadcast: _with_parameter(update, torch.inf),
    "shape": lambda update, seed, broadcast: _shorter(update),
    "clusters": lambda update, seed, broadcast: _one_cluster_more(update),
    "sizes": lambda update, seed, broadcast: replace(update, sizes=HUGE * update.sizes, mass=HUGE * update.mass),
    "norm": lambda update, seed, broadcast: lengthened(broadcast.ensemble, update, torch.full((1,), HUGE)),
    "prototypes": _with_forged_prototypes,
    "weights": lambda update, seed, broadcast: replace(update, weights=3 * update.weights),
}
"""What each kind does to the upload of one client."""
