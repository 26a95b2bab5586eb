"""Inputs as they are stored, and as networks read them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CHUNK = 1 << 24
"""How many values are looked at in double precision at a time."""


def _values(x: Tensor, rows: Tensor) -> Tensor:
    return x[rows].reshape(-1, x.shape[-1]).to(torch.float64)


@dataclass(frozen=True)
class Scaling:
    """Inputs are standardised: per channel for images, per feature otherwise."""

    mean: Tensor
    std: Tensor
    whole: bool = False
    """Whether the network gets whole numbers instead, as they are: token numbers, for example."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of what networks get."""
        return torch.int64 if self.whole else torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        """Return inputs for a network."""
        return x.to(torch.int64) if self.whole else (x.to(torch.float32) - self.mean).div_(self.std)

    def to(self, device: torch.device) -> "Scaling":
        """Move it."""
        return replace(self, mean=self.mean.to(device), std=self.std.to(device))

    @classmethod
    def none(cls, x: Tensor) -> "Scaling":
        """Leave inputs as they are: whole numbers stay whole numbers, all others are float32."""
        return cls(torch.zeros(x.shape[-1]), torch.ones(x.shape[-1]), whole=not x.is_floating_point())

    @classmethod
    def of(cls, x: Tensor, rows: Tensor) -> "Scaling":
        """Measure mean and standard deviation of some rows, over everything but the last axis."""
        parts = torch.split(rows, max(1, CHUNK // max(1, x[:1].numel())))
        if x.dtype == torch.uint8:
            return cls._of_bytes(x, parts)
        if len(parts) == 1:
            values = _values(x, rows)
            return cls._from(values.mean(dim=0), values.std(dim=0, correction=0))
        count = len(rows) * (x[:1].numel() // x.shape[-1])
        mean = torch.stack([_values(x, some).sum(dim=0) for some in parts]).sum(dim=0) / count
        squares = torch.stack([(_values(x, some) - mean).square_().sum(dim=0) for some in parts]).sum(dim=0)
        return cls._from(mean, (squares / count).sqrt())

    @classmethod
    def _of_bytes(cls, x: Tensor, parts: Sequence[Tensor]) -> "Scaling":
        """Sum whole numbers part by part, which is exact: images in double precision would not fit into memory."""
        count, total, squares = 0, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for rows in parts:
            values = _values(x, rows)
            count, total = count + len(values), total + values.sum(dim=0)
            squares = squares + values.square_().sum(dim=0)
        return cls.from_sums(count, total, squares)

    @classmethod
    def from_sums(cls, count: int, total: Tensor, squares: Tensor) -> "Scaling":
        """Return the scaling of values of which only the sums are known, and of their squares."""
        mean = total / count
        return cls._from(mean, (squares / count - mean**2).clamp(min=0).sqrt())

    @classmethod
    def _from(cls, mean: Tensor, std: Tensor) -> "Scaling":
        return cls(mean.float(), torch.where(std > 1e-6, std, 1.0).float())


@dataclass(frozen=True)
class Scaled:
    """Inputs that stay as they are stored (images: bytes) until some of them are looked at."""

    stored: Tensor
    scaling: Scaling
    features: Tensor | None = None
    """φ(x) of each, where the extractor is frozen and they are known already."""

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Return some inputs, standardised."""
        return self.scaling(self.stored[index])

    def some(self, rows: Tensor) -> "Scaled":
        """Return some inputs, as they are stored."""
        features = None if self.features is None else self.features.index_select(0, rows)
        return replace(self, stored=self.stored.index_select(0, rows), features=features)

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return self.stored.device


Inputs = Tensor | Scaled
"""Inputs ready for the network, or as soon as they are indexed."""


def some(inputs: Inputs, rows: Tensor) -> Inputs:
    """Return some of the inputs, as they are kept."""
    return inputs.some(rows) if isinstance(inputs, Scaled) else inputs.index_select(0, rows)


def lined_up(inputs: Inputs, index: Tensor) -> Tensor:
    """Return inputs by an index of any shape, ready for the network: (…, *shape of an input)."""
    picked = some(inputs, index.flatten())[:]
    return picked.view(*index.shape, *picked.shape[1:])
