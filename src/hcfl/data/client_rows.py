"""The rows that each client holds, as one array: a list of a million tensors would take gigabytes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ClientRows(Sequence[Tensor]):
    """All clients' rows, one client's after another's; the rows of one client are a view.

    >>> rows = ClientRows.of([torch.tensor([4, 1]), torch.tensor([2])])
    >>> rows[0].tolist(), rows.sizes.tolist()
    ([4, 1], [2, 1])
    """

    flat: Tensor
    """(rows of all clients,)."""
    sizes: NDArray[np.int64]
    """(clients,): how many rows each client holds."""

    @staticmethod
    def of(parts: Sequence[Tensor]) -> "ClientRows":
        """Put the rows of clients one after another."""
        if isinstance(parts, ClientRows):
            return parts
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        return ClientRows(torch.cat(list(parts)) if len(parts) else torch.zeros(0, dtype=torch.long), sizes)

    @staticmethod
    def joined(groups: Sequence["ClientRows"]) -> "ClientRows":
        """Put groups of clients one after another."""
        if len(groups) == 1:
            return groups[0]
        return ClientRows(torch.cat([one.flat for one in groups]), np.concatenate([one.sizes for one in groups]))

    @staticmethod
    def only_sizes(sizes: Sequence[int]) -> "ClientRows":
        """Return placeholders for rows of missing data; only their number has a meaning, and they take no memory."""
        return ClientRows(torch.zeros(1, dtype=torch.long).expand(sum(sizes)), np.array(sizes, dtype=np.int64))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(clients,): where the rows of each client begin."""
        return np.cumsum(self.sizes) - self.sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "ClientRows": ...
    def __getitem__(self, client: int | slice) -> "Tensor | ClientRows":
        """Return the rows of one client, or of several."""
        if isinstance(client, slice):
            return ClientRows.of([self[one] for one in range(len(self))[client]])
        size = int(self.sizes[client])  # raises an IndexError, which ends an iteration
        start = int(self.starts[client])
        return self.flat[start : start + size]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(torch.split(self.flat, self.sizes.tolist()))

    def join(self, clients: NDArray[np.int64]) -> Tensor:
        """Return the rows of some clients, one client's after another's."""
        sizes = self.sizes[clients]
        within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.flat[torch.from_numpy(np.repeat(self.starts[clients], sizes) + within)]
