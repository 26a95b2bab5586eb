"""A federation without its samples: what a finished run keeps, to predict and to assign new clients."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from hcfl.config import DataConfig
from hcfl.data.client_rows import ClientRows
from hcfl.data.federation import Federation, Truth
from hcfl.data.tables.schema import Schema
from hcfl.models.inputs import Scaling
from hcfl.models.tasks import CLASSES, AnyTask

STORED = ("uint8", "int64", "float32")
"""The types of inputs."""

Name = bool | int | str
"""What clients and concepts can be called."""


@dataclass(frozen=True)
class Outline:
    """Shapes, names and sizes of a federation; no samples and no statistics of them."""

    name: str
    shape: tuple[int, ...]
    """Of one input."""
    stored: str
    """The type that inputs have as stored."""
    class_names: tuple[str, ...]
    client_names: tuple[Name, ...]
    train: tuple[int, ...]
    """How many samples each client trained on."""
    held_out: tuple[int, ...]
    concept: tuple[int, ...] | None = None
    """Each client's true concept, where it is known."""
    affected: tuple[bool, ...] | None = None
    concept_names: tuple[Name, ...] = ()
    schema: Schema | None = None
    """How rows of a table become inputs."""
    task: AnyTask = CLASSES

    def __post_init__(self) -> None:
        """Refuse impossible values, since outlines are read from files."""
        clients, counts = len(self.client_names), (*self.train, *self.held_out)
        tables = (self.train, self.held_out, self.concept, self.affected)
        if not 1 <= len(self.shape) <= 3 or min(self.shape) < 1 or self.stored not in STORED:
            raise ValueError(f"inputs of shape {self.shape} and type {self.stored}")
        if not counts or min(counts) < 0 or any(len(table) != clients for table in tables if table is not None):
            raise ValueError(f"tables that are not of {clients} clients")

    @staticmethod
    def of(federation: Federation) -> "Outline":
        """Describe a federation."""
        truth = federation.truth
        return Outline(
            name=federation.name,
            shape=federation.shape,
            stored=str(federation.x.dtype).removeprefix("torch."),
            class_names=federation.class_names,
            client_names=federation.client_names,
            train=tuple(federation.train_sizes.tolist()),
            held_out=tuple(federation.val_sizes.tolist()),
            concept=None if truth is None else tuple(truth.concept.tolist()),
            affected=None if truth is None or truth.affected is None else tuple(truth.affected.tolist()),
            concept_names=() if truth is None else truth.names,
            schema=None if federation.schema is None else replace(federation.schema, notes=()),
            task=federation.task,
        )

    def federation(self, settings: DataConfig, scaling: Scaling) -> Federation:
        """Return a federation with these names and sizes, but without samples."""
        truth = None
        if self.concept is not None:
            affected = None if self.affected is None else np.array(self.affected)
            truth = Truth(np.array(self.concept), affected, self.concept_names)
        return Federation(
            name=self.name,
            settings=settings,
            x=torch.zeros(0, *self.shape, dtype=getattr(torch, self.stored)),
            y=torch.zeros(0, dtype=torch.long),
            train=ClientRows.only_sizes(self.train),
            val=ClientRows.only_sizes(self.held_out),
            test_x=None,
            newcomers=(),
            scaling=scaling,
            class_names=self.class_names,
            client_names=self.client_names,
            truth=truth,
            schema=self.schema,
            task=self.task,
        )
