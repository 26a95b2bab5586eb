"""The steps of many clients' training: their batches, lined up step by step, and what each step sees."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.core.sgd import Batches
from hcfl.models import Params
from hcfl.models.inputs import Inputs, lined_up
from hcfl.models.recorded import Batch

WIDTHS = 16
"""Recorded steps have a multiple of so many samples: few shapes are recorded, and short batches have little filling."""


@dataclass(frozen=True)
class Step:
    """One step of some rows (clients, or their models), whose batches are lined up."""

    rows: Tensor | None
    """(rows,): which of them take it; None: all."""
    index: Tensor
    """(rows, batch): which of all clients' samples."""
    share: Tensor
    """(rows, batch): 1/|batch| for a batch's samples, 0 where it is shorter than others."""
    number: Tensor
    """(rows,): how many steps each has taken before."""
    column: int = 0
    """Which of the batches' columns it is."""
    idle: Tensor | None = None
    """(rows,): which of them have no batch in this step; None: all have one."""

    def of(self, params: Params) -> Params:
        """Return the parameters of the rows that take it."""
        return params if self.rows is None else {name: self.pick(tensor) for name, tensor in params.items()}

    def pick(self, tensor: Tensor) -> Tensor:
        """Return the rows of a tensor that take it."""
        return tensor if self.rows is None else tensor[self.rows]


def schedule(batches: Batches, alike: bool, device: torch.device, multiple: int | None = None) -> Iterator[Step]:
    """Line up the batches of all rows, step by step.

    Shorter batches are filled up with samples that count nothing. With `alike`, only batches of the same size are put
    together, for layers that look at a batch as a whole and cannot leave out what counts nothing. With `multiple`,
    every step has all rows in it, and a multiple of so many samples, for programs that are made for one shape.
    """
    index, width = batches.index.to(device), batches.index.shape[2]
    shares = (torch.arange(width) < batches.sizes.unsqueeze(2)) / batches.sizes.clamp_min(1).unsqueeze(2)
    taken = ((batches.sizes > 0).cumsum(dim=1) - 1).clamp_min(0)
    shares, taken = shares.to(device), taken.to(device)
    for number, sizes in enumerate(batches.sizes.T):
        idle, largest = sizes == 0, int(sizes.max())
        if multiple is not None:
            if largest:
                size = min(width, -(-largest // multiple) * multiple)
                waiting = idle.to(device) if idle.any() else None
                yield Step(None, index[:, number, :size], shares[:, number, :size], taken[:, number], number, waiting)
            continue
        for size in sorted({*sizes.tolist()} - {0}) if alike else [largest]:
            chosen = torch.nonzero(sizes == size if alike else ~idle).flatten().to(device)
            if len(chosen) == len(sizes):
                yield Step(None, index[:, number, :size], shares[:, number, :size], taken[:, number], number)
            elif len(chosen):
                mine = index[chosen, number, :size], shares[chosen, number, :size], taken[chosen, number]
                yield Step(chosen, *mine, number)


@dataclass(frozen=True)
class Supervision:
    """Where the batches of some rows come from."""

    inputs: Inputs
    """Images, or features where only heads are trained."""
    answers: Tensor
    gamma: Tensor
    columns: Tensor
    """(rows, heads): the column of γ that each head is weighted by."""
    keys: Tensor
    """(rows,): what masks of dropout come from."""

    def batch(self, step: Step) -> Batch:
        """Gather what a step sees."""
        columns = step.pick(self.columns)
        return {
            "inputs": lined_up(self.inputs, step.index),
            "answers": self.answers[step.index],
            "gamma": self.gamma[step.index.unsqueeze(2), columns.unsqueeze(1)],
            "share": step.share,
            "number": step.number,
            "keys": step.pick(self.keys),
            "idle": torch.zeros(len(columns), dtype=torch.bool, device=columns.device)
            if step.idle is None
            else step.idle,
        }
