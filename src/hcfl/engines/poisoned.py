"""Clients that attack, simulated: an engine around an engine. The attackers are the same clients in every round.

All but `flip` send the prototypes, weights and class counts of their true data, so that they stay in an honest cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from hcfl import rng
from hcfl.config import FaultsConfig
from hcfl.core.changes import edited, lengthened
from hcfl.core.client import take_part
from hcfl.core.local_plan import Job, Trained, train
from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import Broadcast, ClientState, Update
from hcfl.data import Federation
from hcfl.data.backdoor import Backdoor
from hcfl.data.local_data import LocalData
from hcfl.models import Network
from hcfl.models.ensemble import embed

POISONED_SHARE = 0.5
"""The share of an attacker's training samples that get the mark of a backdoor."""

Attackers = Mapping[str, Sequence[int]]
"""The clients that attack, by the kind of attack."""


@dataclass(frozen=True)
class Poisoned:
    """The engine `inner`, some of whose clients attack."""

    inner: Engine
    attackers: Attackers
    factor: float
    """What `scale` multiplies changes by."""
    seen: Federation
    """What clients hold: labels are flipped where clients flip them openly."""
    trained_on: Federation
    """What models of the attackers with `disguise` and `backdoor` are trained on."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, attackers included, and each one's new state."""
        theirs = replace(task, setting=replace(task.setting, federation=self._now("seen", task)))
        misled = {*self.attackers.get("disguise", ()), *self.attackers.get("backdoor", ())}
        others = [client for client in task.participants if client not in misled]
        done = [self.inner.execute(theirs.only(others))] if others else []
        done += [self._misled(theirs.only([client])) for client in task.participants if client in misled]
        update = self._changed(task.broadcast, Update.join([update for update, _ in done]))
        return update, [state for _, states in done for state in states]

    def _misled(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Let the only participant train on poisoned samples; everything else that it sends is of its true ones."""
        poison = self._now("trained_on", task).local_data(task.participants)
        return take_part(task, lambda network, job: train_on(poison, network, job))

    def _now(self, name: Literal["seen", "trained_on"], task: RoundTask) -> Federation:
        """Return what clients hold in a round: the rows are those that they have now, the samples are poisoned."""
        now, poisoned = task.setting.federation, self.seen if name == "seen" else self.trained_on
        if poisoned.train is now.train:
            return poisoned
        kept = self._views.get(name)
        if kept is None or kept.train is not now.train:
            kept = self._views[name] = replace(now, x=poisoned.x, y=poisoned.y)
        return kept

    @cached_property
    def _views(self) -> dict[str, Federation]:
        return {}

    def _changed(self, broadcast: Broadcast, update: Update) -> Update:
        """Multiply the changes of some participants, and let the colluding ones send the same reversed change."""
        factors = torch.ones(len(update.clients))
        for kind, factor in (("scale", self.factor), ("sign", -1.0), ("free_ride", 0.0)):
            factors[[client in self.attackers.get(kind, ()) for client in update.clients]] = factor
        if (factors != 1).any():
            update = lengthened(broadcast.ensemble, update, factors)
        allies = [at for at, client in enumerate(update.clients) if client in self.attackers.get("collude", ())]
        return update if not allies else copied(update, broadcast, allies)


def train_on(poison: LocalData, network: Network, job: Job) -> Trained:
    """Train one client's models on poisoned samples instead of its own, one for one."""
    features = None
    if job.features is not None:
        features = embed(network, job.plan.start.of(0).extractor(0), poison.inputs)
    return train(network, replace(job, data=poison, features=features))


def poisoners(faults: FaultsConfig, clients: int, seed: int) -> dict[str, list[int]]:
    """Return the clients of each kind of attack: its share of all clients, rounded; the same in every round."""
    order, found, first = rng.numpy_generator(seed, "poisoners").permutation(clients).tolist(), {}, 0
    for kind, share in faults.lasting.items():
        if count := round(share * clients):
            found[kind] = order[first : first + count]
            first += count
    return found


def with_attackers(
    engine: Engine, faults: FaultsConfig, federation: Federation, attackers: Attackers, backdoor: Backdoor | None
) -> Engine:
    """Put attackers around an engine."""
    seen = flipped(federation, attackers.get("flip", ()))
    poison = flipped(federation, attackers.get("disguise", ()))
    if backdoor is not None:
        poison = with_backdoor(poison, attackers.get("backdoor", ()), backdoor)
    return Poisoned(engine, attackers, faults.factor, seen, poison) if attackers else engine


def flipped(federation: Federation, clients: Sequence[int]) -> Federation:
    """Let some clients train on labels y → C−1−y; what they hold out stays as it is."""
    if not clients:
        return federation
    labels = federation.y.clone()
    for client in clients:
        rows = federation.train[client]
        labels[rows] = federation.classes - 1 - labels[rows]
    return replace(federation, y=labels)


def with_backdoor(federation: Federation, clients: Sequence[int], backdoor: Backdoor) -> Federation:
    """Mark a share of the training samples of some clients, and give these the target's label."""
    if not clients:
        return federation
    theirs = [federation.train[client] for client in clients]
    chosen = torch.cat([rows[: round(POISONED_SHARE * len(rows))] for rows in theirs])
    inputs, labels = federation.x.clone(), federation.y.clone()
    inputs[chosen.to(inputs.device)] = backdoor.marked(inputs[chosen.to(inputs.device)])
    labels[chosen] = backdoor.target
    return replace(federation, x=inputs, y=labels)


def copied(update: Update, broadcast: Broadcast, allies: Sequence[int]) -> Update:
    """Let the participants at some positions send the first one's change, reversed."""

    def reverse(begun: Tensor, trained: Tensor, owners: Tensor) -> Tensor:
        sent, change = trained.clone(), trained - begun
        for ally in allies:
            sent[owners == ally] = begun[owners == ally] - change[owners == allies[0]]
        return sent

    return edited(broadcast.ensemble, update, reverse)
