"""Stochastic gradient descent of stacked models: one step of all rows at once, and all steps, recorded or not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.core.local_plan import Phase
from hcfl.core.sgd import LocalSGD, clip_factor, move
from hcfl.engines.batched_steps import Step, Supervision
from hcfl.models import kernels
from hcfl.models.recorded import Batch, Held, Recorder, cloned

Loss = Callable[[Held, Batch, Tensor | None], Tensor]
"""(parameters and statistics, batch, which rows of the statistics) → the loss of each row, (rows,)."""


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent of stacked models: `sgd.descend` with a leading axis of rows everywhere."""

    loss: Loss
    sgd: LocalSGD
    parts: tuple[str, ...]
    """Which parts of what is held are trained; "velocity of PART" is its momentum, "anchor of PART" what it is held
    near."""

    def some(self, held: Held, step: Step) -> Held:
        """Return the rows that take a step; statistics, which follow in place, stay with all rows."""
        return {part: its if part == "statistics" else step.of(its) for part, its in held.items()}

    def put_back(self, held: Held, picked: Held, step: Step) -> None:
        """Write the rows that took a step back to the others."""
        for part in (*self.parts, *(f"velocity of {part}" for part in self.parts)):
            for name, tensor in picked[part].items():
                held[part][name][step.rows] = tensor

    def advance(self, held: Held, batch: Batch, rows: Tensor | None = None) -> Tensor:
        """Take one step, in place, and return the loss of each row before it. Idle rows stay as they are."""
        leaves = {part: {name: t.detach().requires_grad_() for name, t in held[part].items()} for part in self.parts}
        flat = [leaf for its in leaves.values() for leaf in its.values()]
        losses = self.loss(held | leaves, batch, rows)
        slopes = torch.autograd.grad(losses.sum(), flat, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            values, velocities, targets = (
                [held[f"{role}{part}"][name] for part in self.parts for name in held[part]]
                for role in ("", "velocity of ", "anchor of ")
            )
            _move(values, velocities, slopes, targets, batch["idle"], self.sgd)
        return losses.detach()

    def run(
        self,
        held: Held,
        supervision: Supervision,
        steps: Iterator[Step],
        recording: "Recording | None",
        trace: Tensor | None = None,
    ) -> Held:
        """Take all steps; where they are recorded, as CUDA graphs. What is held stays as it is.

        Losses of steps that are not recorded are written into `trace`, (rows, steps).
        """
        if not any(held[part] for part in self.parts):
            return held
        changed = [*self.parts, *(f"velocity of {part}" for part in self.parts)]
        changed += ["statistics"] if "statistics" in held else []
        if recording is not None:
            batches = (supervision.batch(step) for step in steps)
            kind = self.sgd, self.parts
            return recording.recorder.descend(recording.phase, kind, self.advance, held, batches, changed)
        held = held | cloned({part: held[part] for part in changed})
        for step in steps:
            if step.rows is None:
                losses = self.advance(held, supervision.batch(step))
            else:
                picked = self.some(held, step)
                losses = self.advance(picked, supervision.batch(step), step.rows)
                self.put_back(held, picked, step)
            if trace is not None:
                trace[slice(None) if step.rows is None else step.rows, step.column] = losses
        return held


@dataclass(frozen=True)
class Recording:
    """Where a phase of training is recorded."""

    recorder: Recorder
    phase: Phase


def _move(
    values: list[Tensor],
    velocities: list[Tensor],
    slopes: Sequence[Tensor],
    targets: list[Tensor],
    idle: Tensor,
    sgd: LocalSGD,
) -> None:
    """Take one step of stochastic gradient descent with momentum, in place: torch.optim.SGD's, in one pass for all."""
    if sgd.clip_gradient is not None:
        squares = torch.stack([slope.flatten(1).square().sum(dim=1) for slope in slopes]).sum(dim=0)
        factor = clip_factor(squares, sgd.clip_gradient)
        slopes = [slope * factor.view(-1, *(1,) * (slope.ndim - 1)) for slope in slopes]
    if kernels.usable(idle):
        from hcfl.models.kernels.sgd import descend  # needs Triton

        descend(values, velocities, slopes, targets, idle, sgd.lr, sgd.momentum, sgd.weight_decay, sgd.proximal)
        return
    kept = [(tensor, tensor[idle]) for tensor in (*values, *velocities)] if idle.any() else []
    move(values, velocities, slopes, targets, sgd)
    for tensor, before in kept:
        tensor[idle] = before
