"""Samples of several clients in one tensor: segments say which rows belong to which client."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


def sums_of_runs(values: Tensor, lengths: Tensor) -> Tensor:
    """Sum runs of consecutive rows: from values (rows, …) and the length of each run (runs,), return (runs, …)."""
    if values.is_cuda:  # adding by index is faster, but on a GPU the order of its additions changes from time to time
        return torch.segment_reduce(values, "sum", lengths=lengths.to(values.device), unsafe=True, initial=0)
    run = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return values.new_zeros(len(lengths), *values.shape[1:]).index_add_(0, run, values)


@dataclass(frozen=True)
class Segments:
    """How many samples each client has; the samples of one client lie next to each other, clients in order.

    >>> Segments((2, 1)).sum(torch.tensor([1.0, 2.0, 5.0])).tolist()
    [3.0, 5.0]
    """

    sizes: tuple[int, ...]

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.sizes)

    @cached_property
    def lengths(self) -> Tensor:
        """The sizes as a tensor, (clients,)."""
        return torch.tensor(self.sizes, dtype=torch.long)

    @cached_property
    def index(self) -> Tensor:
        """(samples,): the position of the client that each sample belongs to."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    @property
    def samples(self) -> int:
        """Return the number of samples of all clients."""
        return sum(self.sizes)

    def each(self, rows: Tensor) -> Tensor:
        """Repeat every client's row for each of its samples, (samples, …)."""
        if len(self) == 1:
            return rows.expand(self.samples, *rows.shape[1:])
        return rows[self.index.to(rows.device)]

    def sum(self, values: Tensor) -> Tensor:
        """Sum values (samples, …) over every client's own samples, (clients, …)."""
        return sums_of_runs(values, self.lengths) if len(self) > 1 else values.sum(dim=0, keepdim=True)

    def mean(self, values: Tensor) -> Tensor:
        """Average values (samples, …) over every client's own samples, (clients, …)."""
        sums = self.sum(values)
        return sums / self.lengths.to(sums).view(-1, *(1,) * (sums.ndim - 1))

    def sums_by_class(self, values: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """Sum values (samples, …) over every client's own samples of each class.

        Return the sums (clients, classes, …), and how many samples each is of, (clients, classes).
        """
        run = self.index * classes + labels.cpu()
        order = torch.argsort(run, stable=True).to(values.device)
        lengths = torch.bincount(run, minlength=len(self) * classes)
        sums, shape = sums_of_runs(values[order], lengths), (len(self), classes)
        return sums.view(*shape, *values.shape[1:]), lengths.view(shape).to(values)

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """Return every client's own part of values (samples, …)."""
        return torch.split(values, list(self.sizes))
