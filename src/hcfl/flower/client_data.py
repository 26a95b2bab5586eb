"""What a node holds: a part of a source that all can read (simulation), or a file of its own (deployment)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from hcfl.config import Config, DataConfig
from hcfl.data import Federation, build
from hcfl.data.client_rows import ClientRows
from hcfl.data.federation import Step
from hcfl.data.given_groups import GivenGroups, by_mapping
from hcfl.data.tables import Schema
from hcfl.engines.flower.messages import Common, Introduction, Question
from hcfl.errors import InputError
from hcfl.flower.client_store import ClientStore
from hcfl.flower.growing import grown
from hcfl.flower.own_file import Split, federation_of, own_group, own_samples
from hcfl.models.inputs import Scaling
from hcfl.models.tasks import Classification

PARTITION = "partition-id"
"""Flower's name for the number of a simulated client."""

UNDISCLOSED_SAMPLES = 1
"""What a client of a private run says instead of its number of samples."""


@dataclass(frozen=True)
class Mine:
    """One client's data, as a federation of one, and its number among all clients."""

    client: int
    name: str
    federation: Federation


def introduce(question: Question, node: Mapping[str, Any]) -> Introduction:
    """Return which client a node is; one with its own data also says what the federation has to know of them."""
    if PARTITION in node:
        return Introduction(int(node[PARTITION]))
    name = str(node.get("name", ""))
    if name not in question.clients:
        return Introduction(-1, name, problem=f"{name!r} is not among the clients of this run")
    client = question.clients.index(name)
    try:
        split = Split(question.kind, question.val_share, question.seed, question.schema, question.time, question.scale)
        own = federation_of(own_samples(node, split), split, client, str(node.get("name", "")))
        group = own_group(str(node["data"]), question.groups) if question.groups else ""
    except InputError as error:
        return Introduction(client, name, problem=str(error))
    if question.classes:
        strange = set(own.class_names) - set(question.classes)
        problem = "has a class that is not among the classes of this run" if strange else ""
        return Introduction(
            client,
            name,
            train=UNDISCLOSED_SAMPLES,
            shape=own.shape,
            problem=problem,
            group=group,
            whole=own.scaling.whole,
        )
    values = own.x[own.train[0]].reshape(-1, own.x.shape[-1]).to(torch.float64)
    return Introduction(
        client=client,
        name=name,
        train=len(own.train[0]),
        held_out=len(own.val[0]),
        shape=own.shape,
        class_names=own.class_names,
        values=len(values),
        total=values.sum(dim=0),
        squares=values.square().sum(dim=0),
        group=group,
        whole=own.scaling.whole,
    )


def scaling_of(introductions: Sequence[Introduction]) -> Scaling:
    """Return the scaling of all clients' training data together, from their sums."""
    total, squares = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for one in introductions:
        assert one.total is not None
        assert one.squares is not None
        total, squares = total + one.total, squares + one.squares
    return Scaling.from_sums(sum(one.values for one in introductions), total, squares)


def held_by(common: Common, config: Config, client: int, node: Mapping[str, Any], step: int = 0) -> Mine:
    """Return a client's data, with labels and scaling as the federation has them.

    Where there are steps, a client's own file is read as it is at a step, and the client keeps which samples it had.
    """
    if not common.mean:
        whole = simulated(config.to_yaml())
        return Mine(client, str(whole.client_names[client]), _one_of(whole, client))
    data, name = config.data, str(node["name"])
    split = Split(data.kind, data.val_share, config.seed, common.schema, data.time or "", data.scale)
    samples = own_samples(node, split)
    if unknown := sorted(set(samples.class_names) - set(common.class_names)):
        raise InputError(f"data = {node['data']}: has the class {unknown[0]}, which the federation does not have")
    if data.steps == 1:
        own = federation_of(samples, split, client, name)
    else:
        store = ClientStore(Path(str(node["state"])), common.experiment, name)
        before = store.load_growth()
        growth = grown(before, samples.x, step, f"data = {node['data']}")
        if growth != before:
            store.save_growth(growth)
        split = replace(split, steps=data.steps, window=data.window)
        own = federation_of(samples, split, client, name, growth.ends[: step + 1])
    index = torch.tensor([common.class_names.index(one) for one in own.class_names])
    federation = replace(own, y=index[own.y], class_names=common.class_names, scaling=common.scaling)
    return Mine(client, name, federation)


@lru_cache(maxsize=1)
def simulated(config: str) -> Federation:
    """Return the whole federation; a process that plays several clients builds it once."""
    parsed = Config.from_yaml(config)
    return build(parsed.data, parsed.seed)


def _one_of(whole: Federation, client: int) -> Federation:
    steps = whole.timeline or (Step(whole.train, whole.val),)
    parts = [part[client] for step in steps for part in (step.train, step.val)]
    rows = torch.cat(parts)
    places = torch.split(torch.arange(len(rows)), [len(part) for part in parts])
    mine = tuple(Step((train,), (val,)) for train, val in zip(places[::2], places[1::2], strict=True))
    return replace(
        whole,
        x=whole.x[rows],
        y=whole.y[rows],
        targets=None if whole.targets is None else whole.targets[rows],
        train=mine[0].train,
        val=mine[0].val,
        test_x=None,
        newcomers=(),
        client_names=(whole.client_names[client],),
        truth=None,
        corruptions=None,
        groups=None,
        timeline=mine if whole.timeline else (),
    )


@dataclass(frozen=True)
class Agreement:
    """What the clients of a federation agreed on before its first round; a resumed run needs it again."""

    common: Common
    names: tuple[str, ...] = ()
    """Of the clients that hold their own data, in the order of their numbers."""
    shape: tuple[int, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    """Samples for training and held out, of each client; 0 for those that were not connected."""
    groups: tuple[str, ...] = ()
    """The group of each client; empty where it is not known, or where clients tell none."""

    def with_names(self, names: tuple[str, ...]) -> "Agreement":
        """Return the agreement of a resumed run, with clients that join it."""
        if names[: len(self.names)] != self.names:
            raise InputError(
                f"names = {', '.join(names)}: a run that goes on keeps its clients, and their order "
                f"({', '.join(self.names)}); others can only follow"
            )
        more = len(names) - len(self.names)
        groups = (*self.groups, *[""] * more) if self.groups else ()
        return replace(self, names=names, sizes=(*self.sizes, *[(0, 0)] * more), groups=groups)

    @property
    def introduced(self) -> frozenset[str]:
        """The clients that took part in the agreement."""
        return frozenset(name for name, (train, _) in zip(self.names, self.sizes, strict=True) if train)

    def problem_with(self, introduction: Introduction) -> str | None:
        """Return why a client cannot take part, if so."""
        if introduction.problem or not self.names:
            return introduction.problem or None
        if introduction.shape != self.shape:
            return f"has inputs of shape {introduction.shape}, but the federation's are {self.shape}"
        unknown = sorted(set(introduction.class_names) - set(self.common.class_names))
        return f"has the class {unknown[0]}, which the federation does not have" if unknown else None

    def federation(self, settings: DataConfig) -> Federation:
        """Return a federation whose data lie with its clients: the server knows sizes, classes and scaling."""
        schema = Schema.from_json(self.common.schema, "agreement") if self.common.schema else None
        train = ClientRows.only_sizes([train for train, _ in self.sizes])
        val = ClientRows.only_sizes([held_out for _, held_out in self.sizes])
        return Federation(
            name="clients",
            settings=settings.model_copy(update={"source": "clients", "partition": "natural"}),
            x=torch.zeros(0, *self.shape, dtype=self.common.scaling.dtype),
            y=torch.zeros(0, dtype=torch.long),
            train=train,
            val=val,
            test_x=None,
            newcomers=(),
            scaling=self.common.scaling,
            class_names=self.common.class_names,
            client_names=self.names,
            truth=None,
            groups=self._given_groups(settings),
            schema=schema,
            task=Classification() if schema is None else schema.label.task,
            timeline=(Step(train, val),) * settings.steps if settings.steps > 1 else (),  # as many as at the beginning
        )

    def _given_groups(self, settings: DataConfig) -> GivenGroups | None:
        if isinstance(settings.groups, dict):
            return by_mapping(settings.groups, self.names)
        return GivenGroups.named([group or None for group in self.groups]) if any(self.groups) else None


@dataclass(frozen=True)
class Public:
    """What the server's owner says of the data of a private run, so that clients need not."""

    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    """How inputs are standardised, in all channels."""


def agree(
    experiment: str,
    names: tuple[str, ...],
    introductions: Sequence[Introduction],
    public: Public | None = None,
    schema: str = "",
    scale: str = "standardise",
) -> Agreement:
    """Settle on classes, shape and scaling, from the introductions of connected clients, or from public settings."""
    present = {one.client: one for one in sorted(introductions, key=lambda one: one.client)}
    first = next(iter(present.values()))
    for one in present.values():
        if one.shape != first.shape:
            raise InputError(
                f"names = {one.name}: has inputs of shape {one.shape}, but those of {first.name} are {first.shape}"
            )
    if public is None:
        found = {name for one in present.values() for name in one.class_names}
        classes = tuple(sorted(found, key=int if all(name.isdecimal() for name in found) else str))
        classes = classes if not schema else first.class_names  # the schema's, in its order
        scaling = scaling_of(list(present.values()))
    else:
        classes = public.classes
        scaling = Scaling(torch.tensor([public.mean]), torch.tensor([public.std]))
    if scale == "none":
        whole = all(one.whole for one in present.values())
        scaling = Scaling(torch.zeros(first.shape[-1]), torch.ones(first.shape[-1]), whole)
    all_clients = [present.get(client, Introduction(client)) for client in range(len(names))]
    return Agreement(
        common=Common(
            experiment=experiment,
            config="",
            class_names=classes,
            mean=tuple(scaling.mean.tolist()),
            std=tuple(scaling.std.tolist()),
            schema=schema,
            whole=scaling.whole,
        ),
        names=names,
        shape=first.shape,
        sizes=tuple((one.train, one.held_out) for one in all_clients),
        groups=tuple(one.group for one in all_clients),
    )
