"""Local training of many clients as one tensor program.

Parameters of all clients are stacked. No client's loss depends on another's parameters, so the gradient of the summed
loss is every client's own gradient, and each step of all clients is one step of one larger program. What is random
(batches, keys of dropout) is drawn per client beforehand, so that results agree with training one client after another.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.core.local_plan import Job, Phase, Trained
from hcfl.core.sgd import Batches, LocalSGD, cross_entropy_per_cluster, line_up_velocities, trained_parts
from hcfl.engines.stacked import Stacked
from hcfl.errors import InputError
from hcfl.models import Params, drop
from hcfl.models.ensemble import Copies, fitting, joined
from hcfl.models.inputs import lined_up

CPU_ELEMENTS = 1 << 23
"""Input values per training step on a CPU."""


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
    idle: Tensor | None = None
    """(rows,): which of them have no batch in this step; None: all have one."""

    def of(self, params: Params) -> Params:
        """Return the parameters of the rows that take it."""
        return params if self.rows is None else {name: self.pick(tensor) for name, tensor in params.items()}

    def pick(self, tensor: Tensor) -> Tensor:
        """Return the rows of a tensor that take it."""
        return tensor if self.rows is None else tensor[self.rows]


def schedule(batches: Batches, alike: bool, fixed: bool, device: torch.device) -> Iterator[Step]:
    """Line up the batches of all rows, step by step.

    Shorter batches are filled up with samples that count nothing. With `alike`, only batches of the same size are put
    together, for layers that look at a batch as a whole and cannot leave out what counts nothing. With `fixed`, every
    step has the same shape, all rows in it, for a program that is compiled once.
    """
    index, width = batches.index.to(device), batches.index.shape[2]
    shares = (torch.arange(width) < batches.sizes.unsqueeze(2)) / batches.sizes.clamp_min(1).unsqueeze(2)
    taken = ((batches.sizes > 0).cumsum(dim=1) - 1).clamp_min(0)
    shares, taken = shares.to(device), taken.to(device)
    for number, sizes in enumerate(batches.sizes.T):
        idle, largest = sizes == 0, int(sizes.max())
        if fixed:
            if largest:
                waiting = idle.to(device) if idle.any() else None
                yield Step(None, index[:, number], shares[:, number], taken[:, number], waiting)
            continue
        for size in sorted({*sizes.tolist()} - {0}) if alike else [largest]:
            chosen = torch.nonzero(sizes == size if alike else ~idle).flatten().to(device)
            if len(chosen) == len(sizes):
                yield Step(None, index[:, number, :size], shares[:, number, :size], taken[:, number])
            elif len(chosen):
                yield Step(chosen, index[chosen, number, :size], shares[chosen, number, :size], taken[chosen, number])


def descend_together(
    params: Sequence[Params],
    loss: Callable[..., Tensor],
    steps: Iterator[Step],
    sgd: LocalSGD,
    anchors: Sequence[Params],
    velocities: Sequence[Params] | None = None,
) -> list[Params]:
    """Minimise every row's loss at once: `sgd.descend` with a leading axis of rows everywhere."""
    trained = [{name: tensor.detach().clone() for name, tensor in p.items()} for p in params]
    targets = [anchor[name] for p, anchor in zip(params, anchors, strict=True) for name in p]
    everything = [tensor for p in trained for tensor in p.values()]
    velocity = line_up_velocities(params, velocities)
    for step in steps if everything else ():
        picked = [{name: tensor.detach().requires_grad_() for name, tensor in step.of(p).items()} for p in trained]
        leaves = [leaf for p in picked for leaf in p.values()]
        gradients = torch.autograd.grad(loss(step, *picked), leaves, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if step.rows is None:
                idle = step.idle
                kept = [] if idle is None else [(tensor, tensor[idle]) for tensor in (*everything, *velocity)]
                _move(everything, velocity, gradients, targets, sgd)
                for tensor, before in kept:
                    tensor[idle] = before
            else:
                some = [[tensor[step.rows] for tensor in part] for part in (everything, velocity, targets)]
                _move(some[0], some[1], gradients, some[2], sgd)
                for tensor, after in zip((*everything, *velocity), (*some[0], *some[1]), strict=True):
                    tensor[step.rows] = after
    return trained


def _move(
    values: list[Tensor],
    velocity: list[Tensor],
    gradients: tuple[Tensor, ...],
    targets: list[Tensor],
    sgd: LocalSGD,
) -> None:
    """Take one step of stochastic gradient descent with momentum, in place: torch.optim.SGD's, in one pass for all."""
    slopes = [gradient.contiguous() for gradient in gradients]
    if sgd.proximal:
        torch._foreach_add_(slopes, list(torch._foreach_sub(values, targets)), alpha=sgd.proximal)
    torch._fused_sgd_(
        values,
        slopes,
        velocity if sgd.momentum else [],
        weight_decay=sgd.weight_decay,
        momentum=sgd.momentum,
        lr=sgd.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


@dataclass(frozen=True)
class Rows:
    """What is trained at once: extractors, each with heads of its own."""

    start: Copies
    """(rows, heads, …); one extractor each."""
    anchor: Copies
    batches: Batches
    columns: Tensor
    """(rows, heads): the column of γ that each head is weighted by."""
    keys: Tensor
    """(rows,): what masks of dropout come from while extractors are trained."""
    velocity: Copies | None = None
    """The momentum that rows begin with, where clients keep it."""

    @classmethod
    def of(cls, job: Job) -> "Rows":
        """Return a row for each client, or, in the full topology, for each model of each client."""
        start, anchor, velocity = job.plan.start, job.plan.anchor, job.velocity
        columns = torch.arange(start.models).expand(start.clients, -1)
        keys = _keys(job, "extractor")
        if start.topology == "split":
            return cls(start, anchor, job.batches, columns, keys, velocity)

        def lined(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1).unsqueeze(1)

        batches = Batches(*(part.repeat_interleave(start.models, 0) for part in (job.batches.index, job.batches.sizes)))
        keys = keys.repeat_interleave(start.models)
        momenta = None if velocity is None else velocity.map(lined)
        return cls(start.map(lined), anchor.map(lined), batches, columns.reshape(-1, 1), keys, momenta)

    def __len__(self) -> int:
        return len(self.columns)

    def part(self, start: int, size: int) -> "Rows":
        """Return so many rows; beyond the end, the last one again, which has nothing to do there."""
        wanted = torch.arange(start, start + size)
        rows, beyond = wanted.clamp_max(len(self) - 1), wanted >= len(self)

        def pick(tensor: Tensor) -> Tensor:
            return tensor[rows.to(tensor.device)] if beyond.any() else tensor[start : start + size]

        batches = Batches(pick(self.batches.index), pick(self.batches.sizes).masked_fill(beyond.unsqueeze(1), 0))
        velocity = None if self.velocity is None else self.velocity.map(pick)
        columns, keys = pick(self.columns), pick(self.keys)
        return Rows(self.start.map(pick), self.anchor.map(pick), batches, columns, keys, velocity)


def train_together(stacked: Stacked, job: Job) -> Trained:
    """Train all clients: heads on frozen features, then extractors, or both together (split); whole models (full)."""
    rows = Rows.of(job)
    if _heads_first(job):
        rows = _train_heads(stacked, job, rows)
    # A compiled program takes as many rows as there are clients, however many models these have: it keeps its shape.
    size = min(chunk_size(job), job.plan.start.clients if stacked.fixed else len(rows))
    trained = _in_chunks(stacked, job, rows, size)
    if job.plan.start.topology == "split":
        return trained
    shape = job.plan.start.clients, job.plan.start.models
    return _mapped(trained, lambda tensor: tensor.view(*shape, *tensor.shape[2:]))


def _mapped(trained: Trained, change: Callable[[Tensor], Tensor]) -> Trained:
    velocity = None if trained.velocity is None else trained.velocity.map(change)
    return Trained(trained.models.map(change), velocity)


def _in_chunks(stacked: Stacked, job: Job, rows: Rows, size: int) -> Trained:
    """Train so many rows at a time; where a GPU has no memory for them, half as many."""
    parts = []
    try:
        for start in range(0, len(rows), size):
            wanted = size if stacked.fixed else min(size, len(rows) - start)
            parts.append(_train_rows(stacked, job, rows.part(start, wanted)))
    except torch.OutOfMemoryError:
        if size == 1:
            raise InputError(
                f"device = {str(job.data.inputs.device)!r}: has too little memory to train a single client; "
                "take a smaller training.batch or a smaller model"
            ) from None
        parts.clear()
        torch.cuda.empty_cache()
        return _in_chunks(stacked, job, rows, size // 2)
    velocities = [part.velocity for part in parts if part.velocity is not None]
    trained = Trained(_joined([part.models for part in parts]), _joined(velocities) if velocities else None)
    return _mapped(trained, lambda tensor: tensor[: len(rows)])


def _joined(parts: Sequence[Copies]) -> Copies:
    extractors, heads = joined([part.extractors for part in parts]), joined([part.heads for part in parts])
    return Copies(extractors, heads, parts[0].topology)


def _train_heads(stacked: Stacked, job: Job, rows: Rows) -> Rows:
    """Heads on frozen features, equation (6): return the rows that extractors are then trained with."""
    device, features = job.data.inputs.device, job.features
    assert features is not None
    labels, gamma, keys = job.data.labels.to(device), job.plan.gamma.to(device), _keys(job, "heads").to(device)

    def loss(step: Step, heads: Params) -> Tensor:
        seen = drop(lined_up(features, step.index), stacked.network.dropout, step.pick(keys), step.number)
        logits = stacked.logits(heads, seen)
        return _weighted(logits, labels[step.index], gamma[step.index], step.share)

    steps = schedule(rows.batches, alike=False, fixed=False, device=device)
    velocity = None if rows.velocity is None else rows.velocity.map(torch.clone)
    momenta = None if velocity is None else [velocity.heads]
    heads = descend_together([rows.start.heads], loss, steps, job.sgd, [rows.anchor.heads], momenta)[0]
    return replace(rows, start=replace(rows.start, heads=heads), velocity=velocity)


def _train_rows(stacked: Stacked, job: Job, rows: Rows) -> Trained:
    """Extractors with heads that are trained and held fixed (equation (7)), or both."""
    network, device, topology = stacked.network, job.data.inputs.device, rows.start.topology
    labels, gamma, columns = job.data.labels.to(device), job.plan.gamma.to(device), rows.columns.to(device)
    keys = rows.keys.to(device)
    parameters, statistics = trained_parts(network, _each(rows.start.extractors))
    anchors = [trained_parts(network, _each(rows.anchor.extractors))[0], rows.anchor.heads]

    def loss(step: Step, parameters: Params, heads: Params) -> Tensor:
        features = stacked.embed(parameters, statistics, lined_up(job.data.inputs, step.index), step.share, step.rows)
        logits = stacked.logits(heads, drop(features, network.dropout, step.pick(keys), step.number))
        weights = gamma[step.index.unsqueeze(2), step.pick(columns).unsqueeze(1)]
        return _weighted(logits, labels[step.index], weights, step.share)

    def with_fixed_heads(step: Step, parameters: Params) -> Tensor:
        return loss(step, parameters, step.of(rows.start.heads))

    steps = schedule(rows.batches, stacked.alike, stacked.fixed, device)
    heads = rows.start.heads
    velocity = None if rows.velocity is None else rows.velocity.map(torch.clone)
    momenta = None if velocity is None else [_each(velocity.extractors), velocity.heads]
    if _heads_first(job):
        momenta = None if momenta is None else momenta[:1]
        parameters = descend_together([parameters], with_fixed_heads, steps, job.sgd, anchors[:1], momenta)[0]
    else:
        parameters, heads = descend_together([parameters, heads], loss, steps, job.sgd, anchors, momenta)
    trained = {name: tensor.unsqueeze(1) for name, tensor in (parameters | statistics).items()}
    return Trained(Copies(trained, heads, topology), velocity)


def _heads_first(job: Job) -> bool:
    return job.plan.start.topology == "split" and job.sgd.order == "heads-first"


def _keys(job: Job, phase: Phase) -> Tensor:
    """Return every client's key of dropout, (clients,)."""
    return torch.tensor([job.key(client, phase) for client in range(job.plan.start.clients)])


def _each(extractors: Params) -> Params:
    """Return every row's only extractor, (rows, …)."""
    return {name: tensor.squeeze(1) for name, tensor in extractors.items()}


def _weighted(logits: Tensor, labels: Tensor, gamma: Tensor, share: Tensor) -> Tensor:
    """Σ over rows of 1/|batch| Σ_j Σ_k γ_jk·CE_k, from logits (rows, batch, heads, classes)."""
    losses = cross_entropy_per_cluster(logits.flatten(0, 1), labels.flatten()).view(gamma.shape)
    return (losses * gamma * share.unsqueeze(2)).sum()


def chunk_size(job: Job) -> int:
    """Return how many rows fit memory together."""
    inputs = job.data.inputs
    values = inputs[:1].numel() * job.batches.index.shape[2]
    fit = fitting(inputs.device) if inputs.device.type == "cuda" else CPU_ELEMENTS
    return max(1, fit // max(1, values))
