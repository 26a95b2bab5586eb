"""What travels between the server and one client, in both directions.

A client gets what concerns it and nothing else: its own cluster's model where the server has placed it, the changes
since the server last heard of it without the names of others, its own row of the weights. So the tensors of a message
are those that `evaluation.bytes_down` counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from hcfl.core.admission import Asked
from hcfl.core.client import placed, weights_of_today
from hcfl.core.cluster_log import FIRST, SECOND, Change, Merge, Move, Removal, Rule, Split
from hcfl.core.setting import Setting
from hcfl.core.state import Broadcast, ClientState, Update
from hcfl.core.upload_form import wanted_of
from hcfl.methods import Method
from hcfl.models.ensemble import Ensemble
from hcfl.models.inputs import Scaling
from hcfl.personal.inner_split import Gains
from hcfl.tiers.gaussians import Gaussians

RULES: tuple[Rule, ...] = get_args(Rule)
REMOVAL, MERGE, MOVE = len(RULES), len(RULES) + 1, len(RULES) + 2
"""Kinds of changes on the wire; a split is known by the number of its rule."""


@dataclass(frozen=True)
class Common:
    """What all clients of an experiment have to agree on (not the mean model, `Task.common_model`)."""

    experiment: str
    """Under this name they keep their states."""
    config: str
    """The configuration with everything filled in, as YAML."""
    class_names: tuple[str, ...]
    mean: tuple[float, ...] = ()
    """How inputs are standardised; nothing where clients hold parts of one source that all can read."""
    std: tuple[float, ...] = ()
    state_folder: str | None = None
    """Where simulated clients keep their states."""
    schema: str = ""
    """How the rows of clients' tables become inputs, as JSON, where their files are tables."""
    backbone: str = ""
    """A hash of what is frozen of the network, which is not sent: clients have to have the same."""
    whole: bool = False
    """Whether inputs are whole numbers that nothing scales."""

    @property
    def scaling(self) -> Scaling:
        """`mean` and `std` as they are used."""
        return Scaling(torch.tensor(self.mean), torch.tensor(self.std), self.whole)


@dataclass(frozen=True)
class Task:
    """A client's part of a round."""

    common: Common
    round: int
    since: int
    """After which round the server last heard of this client; 0 for never."""
    client: int
    clusters: tuple[int, ...]
    column: int | None
    """The only cluster whose model is sent, where the server has placed the client."""
    ensemble: Ensemble
    class_shares: Tensor | None
    news: Tensor | None
    """(changes, 4): kind and what it needs, as whole numbers of 32 bits."""
    weights: Tensor | None
    """(clusters,): where a client starts that takes part for the first time."""
    anchor: Ensemble | None
    common_model: Ensemble | None
    probe: Ensemble | None
    gaussians: Gaussians | None
    personal: Tensor | None = None
    """(1 + candidates,): the weights of all clients in their personal parts, once all were asked what they found."""


@dataclass(frozen=True)
class Reply:
    """What a client answers: an update and what it measured on its held-out data, or why there is none."""

    experiment: str
    round: int
    client: int
    update: Update | None
    problem: str = ""
    lost: bool = False
    """Whether the client no longer has the state that the server knows of: it can only start anew."""


@dataclass(frozen=True)
class Measured:
    """The sum of the scores of a client's held-out samples with the models that a run ends with.

    Of classes, it is how many are right.
    """

    experiment: str
    client: int
    right: float
    samples: int
    problem: str = ""
    personal: float | None = None
    """The same with its personal part, where clients make one."""
    gains: Gains | None = None
    """What it found of the candidates for its personal part, before it has one."""
    confusion: Tensor | None = None
    """How many samples have each label (rows) and each predicted class (columns), where classes are predicted."""


@dataclass(frozen=True)
class Question:
    """The server asks a node for its name and its data; a client splits its data by its number in the federation."""

    clients: tuple[str, ...]
    """Names in the order of their numbers."""
    seed: int
    val_share: float
    kind: str
    classes: tuple[str, ...] = ()
    """All there are, in a private run: then clients say of their data only which shape it has."""
    schema: str = ""
    """How the rows of a table become inputs, as JSON."""
    time: str = ""
    """The column by which clients hold out their last rows."""
    groups: str = ""
    """The column of each client's group, where clusters begin with them."""
    scale: str = "standardise"
    """With none, inputs stay as they are."""


@dataclass(frozen=True)
class Introduction:
    """Which client a node is; where clients hold their own data, also what the federation has to know of it."""

    client: int
    """Its number; −1 where its name is not among the clients'."""
    name: str = ""
    train: int = 0
    held_out: int = 0
    shape: tuple[int, ...] = ()
    class_names: tuple[str, ...] = ()
    values: int = 0
    """How many values the sums are over."""
    total: Tensor | None = None
    squares: Tensor | None = None
    problem: str = ""
    group: str = ""
    """The group that it begins in, where the server asks for it."""
    whole: bool = False
    """Whether its inputs are whole numbers."""


def task_for(common: Common, method: Method, broadcast: Broadcast, client: int, known: ClientState | None) -> Task:
    """Return what one client receives of a broadcast; `known` is what the server has of it."""
    row = broadcast.weights[[client]] if known is None else weights_of_today(method, broadcast, client, known).client
    column = int(row.argmax()) if bool(placed(method, row)) else None
    changes = [] if known is None else [change for change in broadcast.changes if change.round >= known.round]
    return Task(
        common=common,
        round=broadcast.round,
        since=0 if known is None else known.round,
        client=client,
        clusters=broadcast.clusters,
        column=column,
        ensemble=broadcast.ensemble if column is None else broadcast.ensemble.select([column]),
        class_shares=broadcast.class_shares if method.uses_class_shares else None,
        news=encode(changes, client) if changes else None,
        weights=row[0] if known is None else None,
        anchor=broadcast.anchor if known is None and broadcast.round > 1 else None,
        common_model=broadcast.common,
        probe=broadcast.probe,
        gaussians=broadcast.gaussians,
    )


def broadcast_of(task: Task, classes: int, anchor: Ensemble | None) -> Broadcast:
    """Return a task as the broadcast that `client.take_part` reads; parts that were not sent are filled in."""
    number = len(task.clusters)
    ensemble = task.ensemble
    if task.column is not None:
        ensemble = ensemble.map(lambda tensor: tensor.expand(number, *tensor.shape[1:]))
    shares = task.class_shares
    weights = torch.full((number,), 1 / number) if task.weights is None else task.weights
    return Broadcast(
        round=task.round,
        ensemble=ensemble,
        class_shares=torch.full((number, classes), 1 / classes) if shares is None else shares,
        clusters=task.clusters,
        changes=() if task.news is None else decode(task.news, task.client, task.since),
        weights=weights.expand(task.client + 1, -1),
        anchor=anchor,
        common=task.common_model,
        probe=task.probe,
        gaussians=task.gaussians,
    )


def encode(changes: list[Change], client: int) -> Tensor:
    """Return changes as one client needs them, (changes, 4)."""
    return torch.tensor([_encoded(change, client) for change in changes], dtype=torch.int32)


def _encoded(change: Change, client: int) -> tuple[int, int, int, int]:
    if isinstance(change, Split):
        return RULES.index(change.rule), change.parent, change.child, change.part(client)
    if isinstance(change, Removal):
        return REMOVAL, change.cluster, 0, 0
    if isinstance(change, Merge):
        return MERGE, change.into, change.gone, 0
    concerned = client in change.clients
    return MOVE, change.to[change.clients.index(client)] if concerned else 0, int(concerned), 0


def decode(news: Tensor, client: int, since: int) -> tuple[Change, ...]:
    """Return changes that do to this client's weights what the real ones do."""
    if news.ndim != 2 or news.shape[1] != 4:
        raise ValueError(f"news of shape {tuple(news.shape)}: must be (changes, 4)")
    return tuple(_decoded(row, client, since) for row in news.tolist())


def _decoded(row: Sequence[int], client: int, since: int) -> Change:
    (kind, one, two, part), me = row, (client,)
    if 0 <= kind < REMOVAL:
        first, second = me if part == FIRST else (), me if part == SECOND else ()
        return Split(since, one, two, first, second, RULES[kind], 0.0, 0.0, 0.0)
    if kind == REMOVAL:
        return Removal(since, one)
    if kind == MERGE:
        return Merge(since, one, two, 0.0, 0.0)
    if kind != MOVE:
        raise ValueError(f"news of kind {kind}: must be from 0 to {MOVE}")
    return Move(since, me if two else (), (one,) if two else ())


def answers(reply: Reply, task: Task, experiment: str) -> bool:
    """Whether a reply is from the client, and of the experiment, that was asked."""
    return (reply.experiment, reply.client) == (experiment, task.client)


def asked_of(task: Task, setting: Setting) -> Asked:
    """Return what the upload that answers a task has to fit."""
    wanted = wanted_of(
        setting,
        task.ensemble,
        task.gaussians,
        new=task.since == 0,
        measured=True,
        round_=task.round,
        clusters=len(task.clusters),
    )
    return Asked(task.round, task.client, len(task.clusters), task.ensemble, wanted)
