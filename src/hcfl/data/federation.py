"""A federation: what every client holds, the global test set, and the recorded truth."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import eq
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcfl.config import DataConfig
from hcfl.data.client_rows import ClientRows
from hcfl.data.feature_shift import Corruption
from hcfl.data.given_groups import GivenGroups
from hcfl.data.local_data import LocalData
from hcfl.data.tables.schema import Schema
from hcfl.models.inputs import Scaled, Scaling
from hcfl.models.tasks import CLASSES, AnyTask
from hcfl.tiers.client_segments import Segments

if TYPE_CHECKING:
    from pandas import DataFrame

VISIBLE_SHARE = 0.15
"""A client is *affected* when at least this share of its samples carries a class that concepts relabel."""


@dataclass(frozen=True)
class Truth:
    """The true concepts, which neither server nor clients see; for measurement only."""

    concept: NDArray[np.int64]
    """(clients,): the true concept; concepts that mean the same have the same number; −1 where a client has no data."""
    affected: NDArray[np.bool_] | None
    """(clients,): whether a client's samples show its concept at all; None where the relabelling is not known."""
    names: tuple[Any, ...]
    """The names of the concepts."""

    @property
    def concepts(self) -> int:
        """Return how many different concepts there are."""
        return len(np.unique(self.concept[self.concept >= 0]))


@dataclass(frozen=True)
class Newcomer:
    """A virtual client that never trains: its `fit` samples choose its weights, its `score` samples measure them."""

    name: str
    fit_rows: Tensor
    fit_labels: Tensor
    score_rows: Tensor
    score_labels: Tensor
    fit_targets: Tensor | None = None
    score_targets: Tensor | None = None
    """What is predicted, where that is no class."""

    @property
    def fit_answers(self) -> Tensor:
        """What the likelihood of the `fit` samples is of."""
        return self.fit_labels if self.fit_targets is None else self.fit_targets

    @property
    def score_answers(self) -> Tensor:
        """What the `score` samples are measured by."""
        return self.score_labels if self.score_targets is None else self.score_targets

    def halves(self) -> "tuple[Newcomer, Newcomer]":
        """Return two newcomers on halves of all these samples: what chooses the weights of one measures the other's."""
        rows, labels = torch.cat([self.fit_rows, self.score_rows]), torch.cat([self.fit_labels, self.score_labels])
        middle = (len(rows) + 1) // 2
        one, two = (rows[:middle], labels[:middle]), (rows[middle:], labels[middle:])
        targets: tuple[Tensor | None, Tensor | None] = (None, None)
        if self.fit_targets is not None and self.score_targets is not None:
            answers = torch.cat([self.fit_targets, self.score_targets])
            targets = answers[:middle], answers[middle:]
        return Newcomer(self.name, *one, *two, *targets), Newcomer(self.name, *two, *one, *targets[::-1])


@dataclass(frozen=True)
class Step:
    """What clients get at one step of time; rows and labels stay as they are, whatever the step."""

    train: Sequence[Tensor]
    """Rows of each client's new training data; a client may have none."""
    val: Sequence[Tensor]
    """Rows of each client's new held-out data."""
    truth: Truth | None = None
    corruptions: tuple[Corruption, ...] | None = None


@dataclass(frozen=True)
class Federation:
    """All clients' data in one pool; each client holds rows of it, and no two clients hold the same row."""

    name: str
    settings: DataConfig
    """How it was built, with all defaults filled in."""
    x: Tensor
    """(N, …) as stored: uint8, int64 or float32."""
    y: Tensor
    """(N,): labels as the client that holds the sample sees them; of other answers, the number of their bin."""
    train: Sequence[Tensor]
    """Rows of each client's training data; kept as `ClientRows`."""
    val: Sequence[Tensor]
    """Rows of each client's held-out data; kept as `ClientRows`."""
    test_x: Tensor | None
    newcomers: tuple[Newcomer, ...]
    """One for each concept, or two on halves of its samples; empty without a test set."""
    scaling: Scaling
    class_names: tuple[str, ...]
    """Of classes, or of the bins of other answers."""
    client_names: tuple[Any, ...]
    truth: Truth | None
    corruptions: tuple[Corruption, ...] | None = None
    """The corruption of each client's images; None where images are not corrupted."""
    notes: tuple[str, ...] = ()
    """What a user should know about how the data were dealt."""
    groups: GivenGroups | None = None
    """The clusters that clients begin in, where the user gives them."""
    schema: Schema | None = None
    """How rows of a table become inputs, where the data are one."""
    task: AnyTask = CLASSES
    targets: Tensor | None = None
    """What is predicted, where that is no class: (N,) standardised numbers, or (N, labels)."""
    timeline: tuple[Step, ...] = ()
    """What clients get at each step; nothing where the federation does not change over time."""
    step: int = 0
    """The step whose data `train`, `val`, `truth` and `corruptions` are, from 0."""
    frozen: Callable[[Scaled], Tensor] | None = None
    """φ, where the run does not train it: then each sample's features are computed once, when they are first used."""
    val_clients: NDArray[np.int64] | None = None
    """The clients whose held-out data measure Val, in the order of their ids; None: all."""

    def __post_init__(self) -> None:
        """Keep rows as one array."""
        for name in ("train", "val"):
            object.__setattr__(self, name, ClientRows.of(getattr(self, name)))

    @staticmethod
    def from_arrays(
        x: ArrayLike,
        y: ArrayLike,
        *,
        client: ArrayLike | None = None,
        concept: ArrayLike | None = None,
        test: ArrayLike | None = None,
        name: str = "arrays",
        seed: int = 0,
        **settings: Any,
    ) -> "Federation":
        """Build a federation from arrays.

        `x` are inputs, (N, D), (N, T, D), (N, H, W) or (N, H, W, C), and `y` their labels, (N,). With `client`, (N,),
        the client of each sample, the federation has these clients, and `concept`, (N,), may tell the true concept of
        each. Without, samples are dealt to simulated clients by `settings`, the fields of the configuration's `data`
        section. `test`, (N,), marks the samples of the global test set.

        >>> Federation.from_arrays(x, y, clients=10, alpha=0.5)  # doctest: +SKIP
        """
        from hcfl.data.assemble import from_arrays  # assemble.py imports this module

        return from_arrays(x, y, client, concept, test, name, seed, settings)

    @staticmethod
    def from_frame(
        table: "DataFrame",
        *,
        label: str,
        client: str | None = None,
        name: str = "table",
        seed: int = 0,
        **settings: Any,
    ) -> "Federation":
        """Build a federation from a pandas data frame.

        `label` is the column to predict and `client` the column that says which client holds a row; without it, rows
        are dealt to simulated clients. `settings` are further fields of the configuration's `data` section: features,
        drop, time, truth, groups, test, schema_file, val_share, …

        >>> Federation.from_frame(patients, label="outcome", client="hospital")  # doctest: +SKIP
        """
        from hcfl.data.assemble import from_frame  # assemble.py imports this module

        return from_frame(table, name, seed, {"label": label, "client": client, **settings})

    @property
    def clients(self) -> int:
        """The number of clients, M."""
        return len(self.train)

    @property
    def train_sizes(self) -> NDArray[np.int64]:
        """(clients,): how many samples each client trains on."""
        return ClientRows.of(self.train).sizes

    @property
    def val_sizes(self) -> NDArray[np.int64]:
        """(clients,): how many samples each client holds out."""
        return ClientRows.of(self.val).sizes

    @property
    def classes(self) -> int:
        """The number of classes, C."""
        return len(self.class_names)

    @property
    def steps(self) -> int:
        """The number of steps of time, T; 1 where nothing changes over time."""
        return max(1, len(self.timeline))

    def at(self, step: int) -> "Federation":
        """Return the federation as it is at a step: clients train on the last `window` steps, and hold out new data."""
        if step == self.step or not self.timeline:
            return self
        if step not in self._views:
            self._views.clear()  # one view is enough, and each keeps a copy of its inputs
            now, window = self.timeline[step], self.timeline[max(0, step + 1 - self.settings.window) : step + 1]
            train = [torch.cat(rows) for rows in zip(*(one.train for one in window), strict=True)]
            self._views[step] = replace(
                self, step=step, train=train, val=now.val, truth=now.truth, corruptions=now.corruptions
            )
        return self._views[step]

    @cached_property
    def _views(self) -> "dict[int, Federation]":
        return {}

    @property
    def news(self) -> "Federation":
        """The federation with the new samples of this step only, all held out: models are measured by them first."""
        now = self.timeline[self.step]
        held_out = tuple(torch.cat(rows) for rows in zip(now.train, now.val, strict=True))
        return replace(self, train=now.train, val=held_out)

    @property
    def outputs(self) -> int:
        """How many values a network gives for each sample."""
        return self.task.outputs(self.classes)

    @property
    def answers(self) -> Tensor:
        """What is predicted: classes, or `targets`."""
        return self.y if self.targets is None else self.targets

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def local_data(self, clients: Sequence[int]) -> LocalData:
        """Return the training data of some clients, one after another."""
        all_clients = len(clients) == self.clients and all(map(eq, clients, range(self.clients)))
        return self._all_local_data if all_clients else self._concatenated(clients)

    @property
    def as_stored(self) -> bool:
        """Whether images stay bytes and are scaled batch by batch: on a GPU. A CPU is faster if it scales all once."""
        return self.x.is_cuda

    @cached_property
    def _all_local_data(self) -> LocalData:
        """All clients' training data, kept: with full participation, every round needs the same."""
        return self._concatenated(range(self.clients))

    def _concatenated(self, clients: Sequence[int]) -> LocalData:
        data = self._data_of(self.train, clients)
        if self.step == 0:
            return data
        before = self._data_of(self.timeline[self.step - 1].val, clients)
        if self.settings.window == 1:
            return replace(data, before=before)
        fresh = [len(self.timeline[self.step].train[client]) for client in clients]
        sizes = zip(data.segments.sizes, fresh, strict=True)
        is_new = torch.cat([torch.arange(size) >= size - new for size, new in sizes])  # the newest come last
        return replace(data, before=before, is_new=is_new)

    def _data_of(self, held: Sequence[Tensor], clients: Sequence[int]) -> LocalData:
        parts = [held[client] for client in clients]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        inputs = self.inputs(rows)
        segments = Segments(tuple(len(part) for part in parts))
        targets = None if self.targets is None else self.targets[rows]
        as_stored = self.as_stored or inputs.features is not None
        return LocalData(inputs if as_stored else inputs[:], self.y[rows], self.classes, segments, targets)

    def inputs(self, rows: Tensor) -> Scaled:
        """Return the inputs of some rows."""
        return self._all_inputs.some(rows.to(self.x.device))

    @cached_property
    def _all_inputs(self) -> Scaled:
        return self._embedded(Scaled(self.x, self.scaling))

    @cached_property
    def test_inputs(self) -> Scaled | None:
        """The inputs of the global test set."""
        return None if self.test_x is None else self._embedded(Scaled(self.test_x, self.scaling))

    def _embedded(self, inputs: Scaled) -> Scaled:
        return inputs if self.frozen is None or not len(inputs) else replace(inputs, features=self.frozen(inputs))

    @cached_property
    def val_rows(self) -> Tensor:
        """Rows of the held-out data that measure Val: of all clients, or of `val_clients`."""
        held = ClientRows.of(self.val)
        return held.flat if self.val_clients is None else held.join(self.val_clients)

    @cached_property
    def val_segments(self) -> Segments:
        """Which client each of `val_rows` belongs to."""
        sizes = self.val_sizes
        if self.val_clients is not None:
            measured = np.zeros_like(sizes)
            measured[self.val_clients] = sizes[self.val_clients]
            sizes = measured
        return Segments(tuple(sizes.tolist()))

    def class_table(self) -> NDArray[np.int64]:
        """Return how many training and held-out samples of each class each client holds, (clients, classes)."""
        table = np.zeros(self.clients * self.classes, dtype=np.int64)
        for held in (ClientRows.of(self.train), ClientRows.of(self.val)):
            cells = np.repeat(np.arange(self.clients), held.sizes) * self.classes + self.y[held.flat].numpy()
            table += np.bincount(cells, minlength=len(table))
        return table.reshape(self.clients, self.classes)

    def with_floats(self) -> "Federation":
        """Return the federation for a network that takes no whole numbers; bytes stay bytes until they are read."""
        x, test_x = (
            part if part is None or part.dtype == torch.uint8 else part.float() for part in (self.x, self.test_x)
        )
        assert x is not None
        return replace(self, x=x, test_x=test_x, scaling=replace(self.scaling, whole=False))

    def to(self, device: torch.device) -> "Federation":
        """Move the inputs to a device, as stored; labels and rows stay on the CPU, where weights are computed."""
        return replace(
            self,
            x=self.x.to(device),
            test_x=None if self.test_x is None else self.test_x.to(device),
            scaling=self.scaling.to(device),
        )
