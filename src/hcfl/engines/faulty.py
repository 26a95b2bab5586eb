"""Clients that fail, simulated: an engine around an engine, whose clients drop out, come late, or send what is wrong.

Which clients fail, and how, comes from (seed, round, attempt, client). Honest clients are executed together as ever;
each bad upload is a message of its own, and passes the same admission as one from another machine.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor

from hcfl import rng
from hcfl.config import Config, FaultsConfig
from hcfl.core import admission
from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import Broadcast, ClientState, Missing, Update
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import Params
from hcfl.models.ensemble import Ensemble, mix

HUGE = 1e6
"""By how much sizes and norms are overstated."""


@dataclass(frozen=True)
class Faulty:
    """The engine `inner`, some of whose clients fail."""

    inner: Engine
    faults: FaultsConfig
    data: Federation
    """What clients train on: flipped where they flip labels."""
    scaling: frozenset[int] = field(default_factory=frozenset)
    """Clients whose change is multiplied by a factor, in every round."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return the admitted uploads, and the missing clients; honest uploads are checked by the caller."""
        theirs = replace(task, setting=replace(task.setting, federation=self.data))
        fails = drawn(self.faults, task.setting.seed, task.broadcast)
        failing = {client: fails[client] for client in task.participants if client in fails}
        honest, kept = Update.empty(task.broadcast), list[ClientState]()
        if others := [client for client in task.participants if client not in failing]:
            honest, kept = self.inner.execute(theirs.only(others))
            honest = self._scaled(task.broadcast, honest)

        missing: list[Missing] = []
        sent: dict[int, tuple[Update, ClientState]] = {}
        for client, kind in failing.items():
            answer = self._answer(theirs.only([client]), kind)
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
        update = self._scaled(broadcast, update)
        if kind in SPOIL:
            update = SPOIL[kind](update, seed, broadcast)
        asked = admission.Asked(broadcast.round, client, len(broadcast.clusters), broadcast.ensemble)
        problem = admission.problem_with(update, broadcast.round - (kind == "stale"), asked)
        return (update, state) if problem is None else Missing(client, problem, refused=True)

    def _scaled(self, broadcast: Broadcast, update: Update) -> Update:
        """Multiply the changes of some clients."""
        if not self.scaling.intersection(update.clients):
            return update
        wrong = torch.tensor([client in self.scaling for client in update.clients])
        factors = torch.where(wrong, self.faults.factor, 1.0)
        return lengthened(update, broadcast, factors)


def _refused(task: RoundTask, honest: Update, sent: Sequence[Update]) -> dict[int, admission.Refusal]:
    """Return which uploads of failing clients are refused, and why, when checked together with the honest ones."""
    odd = admission.unlike([honest, *sent])
    alike = [update for update in sent if not set(update.clients) & set(odd)]
    found = admission.refusals(task, Update.join([honest, *alike]))
    spoilt = {client: refusal for client, refusal in found.items() if client not in honest.clients}
    return dict.fromkeys(odd, admission.UNLIKE) | spoilt


def lengthened(update: Update, broadcast: Broadcast, factors: Tensor) -> Update:
    """Multiply how each participant changed the models that it got, by factors (participants,)."""
    sent, models, shared = broadcast.ensemble, update.models, broadcast.ensemble.topology == "split"
    by_row, from_first = factors[update.row_participants], torch.ones(len(factors), 1)

    def times(received: Params, trained: Params, started: Tensor, factor: Tensor) -> Params:
        return {name: _times(received[name], tensor, started, factor) for name, tensor in trained.items()}

    extractors = (
        times(sent.extractors, models.extractors, from_first, factors)
        if shared
        else times(sent.extractors, models.extractors, update.started, by_row)
    )
    heads = times(sent.heads, models.heads, update.started, by_row)
    return replace(update, models=Ensemble(extractors, heads, models.topology))


def _times(received: Tensor, trained: Tensor, started: Tensor, factor: Tensor) -> Tensor:
    if not trained.is_floating_point():
        return trained
    begun = mix(started.to(trained), received)
    factors = factor.to(trained).view(-1, *(1,) * (trained.ndim - 1))
    return torch.where(factors == 1, trained, begun + factors * (trained - begun))


def with_faults(engine: Engine, config: Config, federation: Federation, method: Method) -> Engine:
    """Put the faults that are wanted around an engine; the clients that flip labels or scale are drawn once."""
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
    flipping, scaling = poisoners(faults, federation.clients, config.seed)
    return Faulty(engine, faults, flipped(federation, flipping), frozenset(scaling))


def poisoners(faults: FaultsConfig, clients: int, seed: int) -> tuple[list[int], list[int]]:
    """Return the clients that flip labels, and those that scale: their shares rounded, the same in every round."""
    order = rng.numpy_generator(seed, "poisoners").permutation(clients).tolist()
    flipping, scaling = (round(share * clients) for share in (faults.flip, faults.scale))
    return order[:flipping], order[flipping : flipping + scaling]


def flipped(federation: Federation, clients: Sequence[int]) -> Federation:
    """Let some clients train on labels y → C−1−y; what they hold out stays as it is."""
    if not clients:
        return federation
    labels = federation.y.clone()
    for client in clients:
        rows = federation.train[client]
        labels[rows] = federation.classes - 1 - labels[rows]
    return replace(federation, y=labels)


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
    "norm": lambda update, seed, broadcast: lengthened(update, broadcast, torch.full((1,), HUGE)),
    "prototypes": _with_forged_prototypes,
    "weights": lambda update, seed, broadcast: replace(update, weights=3 * update.weights),
}
"""What each kind does to the upload of one client."""
