"""A federation: what every client holds, the global test set, and the recorded truth."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcfl.config import DataConfig
from hcfl.data.feature_shift import Corruption
from hcfl.training import LocalData

VISIBLE_SHARE = 0.15
"""A client is *affected* when at least this share of its samples carries a class that concepts relabel."""


@dataclass(frozen=True)
class Truth:
    """What nobody in the federation knows, for measurement only."""

    concept: NDArray[np.int64]
    """(clients,): the true concept; concepts that mean the same have the same number."""
    affected: NDArray[np.bool_] | None
    """(clients,): whose concept is visible in their samples at all; None where the relabelling is not known."""
    names: tuple[Any, ...]
    """What each concept is called."""

    @property
    def concepts(self) -> int:
        """Return how many different concepts there are."""
        return len(np.unique(self.concept))


@dataclass(frozen=True)
class Newcomer:
    """Somebody who never trains: labelled test samples choose its weights (`fit`), the others `score` them."""

    name: str
    fit_rows: Tensor
    fit_labels: Tensor
    score_rows: Tensor
    score_labels: Tensor


@dataclass(frozen=True)
class Scaling:
    """Inputs are standardised: per channel for images, per feature otherwise."""

    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return inputs for a network, as float32."""
        return (x.to(torch.float32) - self.mean) / self.std

    @classmethod
    def of(cls, x: Tensor, parts: Sequence[Tensor]) -> "Scaling":
        """Measure mean and standard deviation of the parts' rows, over everything but the last axis."""
        if x.dtype == torch.uint8:
            return cls._of_bytes(x, parts)
        values = x[torch.cat(list(parts))].reshape(-1, x.shape[-1]).to(torch.float64)
        return cls._from(values.mean(dim=0), values.std(dim=0, correction=0))

    @classmethod
    def _of_bytes(cls, x: Tensor, parts: Sequence[Tensor]) -> "Scaling":
        """Sum whole numbers part by part, which is exact: images in double precision would not fit into memory."""
        count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for rows in parts:
            values = x[rows].reshape(-1, x.shape[-1]).to(torch.float64)
            count, total = count + len(values), total + values.sum(dim=0)
            squares = squares + values.square_().sum(dim=0)
        mean = total / count
        return cls._from(mean, (squares / count - mean**2).clamp(min=0).sqrt())

    @classmethod
    def _from(cls, mean: Tensor, std: Tensor) -> "Scaling":
        return cls(mean.float(), torch.where(std > 1e-6, std, 1.0).float())


@dataclass(frozen=True)
class Federation:
    """All clients' data in one pool; clients hold rows of it. Nobody's rows overlap."""

    name: str
    settings: DataConfig
    """How it was built, all filled in."""
    x: Tensor
    """(N, …) as stored: uint8 or float32."""
    y: Tensor
    """(N,): labels as the client that holds the sample sees them."""
    train: tuple[Tensor, ...]
    """Rows of each client's training data."""
    val: tuple[Tensor, ...]
    """Rows of each client's held-out data."""
    test_x: Tensor | None
    newcomers: tuple[Newcomer, ...]
    """One for each concept; none without a test set."""
    scaling: Scaling
    class_names: tuple[str, ...]
    client_names: tuple[Any, ...]
    truth: Truth | None
    corruptions: tuple[Corruption, ...] | None = None
    """What happened to each client's images, where something did."""
    notes: tuple[str, ...] = ()
    """What a user should know about how the data were dealt."""

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

        With `client` (one id per sample) the federation is the natural one. Without, samples are dealt to simulated
        clients by `settings`, which are the fields of the configuration's `data` section (clients, alpha, beta, …).
        """
        from hcfl.data.build import from_arrays  # build.py makes federations, so it cannot be imported above

        return from_arrays(x, y, client, concept, test, name, seed, settings)

    @property
    def clients(self) -> int:
        """M."""
        return len(self.train)

    @property
    def classes(self) -> int:
        """C."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def local_data(self, client: int) -> LocalData:
        """Return a client's training data, ready for the network."""
        rows = self.train[client]
        return LocalData(self.scaling(self.x[rows]), self.y[rows], self.classes)

    @cached_property
    def val_rows(self) -> Tensor:
        """Rows of all clients' held-out data."""
        return torch.cat(self.val)

    @cached_property
    def val_owners(self) -> Tensor:
        """The client of each of `val_rows`."""
        sizes = torch.tensor([len(rows) for rows in self.val])
        return torch.repeat_interleave(torch.arange(self.clients), sizes).to(self.y.device)

    def class_table(self) -> NDArray[np.int64]:
        """Return how many training and held-out samples of each class each client holds, (clients, classes)."""
        return np.stack(
            [
                np.bincount(self.y[torch.cat([train, val])].cpu().numpy(), minlength=self.classes)
                for train, val in zip(self.train, self.val, strict=True)
            ]
        )

    def to(self, device: torch.device) -> "Federation":
        """Move the data to a device, as stored."""

        def move(rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return tuple(part.to(device) for part in rows)

        newcomers = tuple(
            Newcomer(n.name, *move((n.fit_rows, n.fit_labels, n.score_rows, n.score_labels))) for n in self.newcomers
        )
        return replace(
            self,
            x=self.x.to(device),
            y=self.y.to(device),
            train=move(self.train),
            val=move(self.val),
            test_x=None if self.test_x is None else self.test_x.to(device),
            newcomers=newcomers,
            scaling=Scaling(self.scaling.mean.to(device), self.scaling.std.to(device)),
        )
