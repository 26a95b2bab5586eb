"""Local training of many clients as one tensor program.

Parameters of all clients are stacked. No client's loss depends on another's parameters, so the gradient of the summed
loss is every client's own gradient, and each step of all clients is one step of one larger program. What is random
(batches, keys of dropout) is drawn per client beforehand, so that results agree with training one client after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.core.local_plan import Job, Phase, Trained
from hcfl.core.sgd import Batches, epoch_means, trained_parts
from hcfl.engines.batched_descent import Descent, Recording
from hcfl.engines.batched_steps import WIDTHS, Supervision, schedule
from hcfl.engines.stacked import Stacked
from hcfl.errors import InputError
from hcfl.models import Params, drop
from hcfl.models.ensemble import Copies, fitting, joined
from hcfl.models.inputs import Inputs
from hcfl.models.recorded import Batch, Held, Recorder
from hcfl.models.tasks import Task

CPU_ELEMENTS = 1 << 23
"""Input values per training step on a CPU."""


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
    def of(cls, job: Job, fixed: bool = False) -> "Rows":
        """Return a row for each client, or, in the full topology, for each model of each client.

        Models with the same frozen extractor are heads of one row.
        """
        start, anchor, velocity = job.plan.start, job.plan.anchor, job.velocity
        columns = torch.arange(start.models).expand(start.clients, -1)
        keys = _keys(job, "extractor")
        if start.topology == "split" or fixed:
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
        filled_up = bool(beyond.any())

        def pick(tensor: Tensor) -> Tensor:
            return tensor[rows.to(tensor.device)] if filled_up else tensor[start : start + size]

        batches = Batches(pick(self.batches.index), pick(self.batches.sizes).masked_fill(beyond.unsqueeze(1), 0))
        velocity = None if self.velocity is None else self.velocity.map(pick)
        columns, keys = pick(self.columns), pick(self.keys)
        return Rows(self.start.map(pick), self.anchor.map(pick), batches, columns, keys, velocity)


def train_together(stacked: Stacked, job: Job, recorder: Recorder | None = None) -> Trained:
    """Train all clients: heads on frozen features, then extractors, or both together (split); whole models (full)."""
    fixed = stacked.network.fixed
    rows = Rows.of(job, fixed)
    recorder = None if stacked.alike or job.follow_losses else recorder
    if fixed:
        trace = torch.zeros(rows.batches.sizes.shape, device=job.data.inputs.device) if job.follow_losses else None
        rows = _train_heads(stacked, job, rows, job.fixed_features(stacked.network), recorder, trace)
        return Trained(rows.start, rows.velocity, _epochs(job, rows, trace))
    if _heads_first(job):
        assert job.features is not None
        rows = _train_heads(stacked, job, rows, job.features, recorder)
    # A program of one shape takes as many rows as there are clients, however many models these have.
    one_shape = stacked.fixed or recorder is not None
    size = min(chunk_size(job), job.plan.start.clients if one_shape else len(rows))
    trained = _in_chunks(stacked, job, rows, size, recorder)
    if job.plan.start.topology == "split":
        return trained
    shape = job.plan.start.clients, job.plan.start.models
    return _mapped(trained, lambda tensor: tensor.view(*shape, *tensor.shape[2:]))


def _mapped(trained: Trained, change: Callable[[Tensor], Tensor]) -> Trained:
    velocity = None if trained.velocity is None else trained.velocity.map(change)
    return Trained(trained.models.map(change), velocity, trained.losses)


def _in_chunks(stacked: Stacked, job: Job, rows: Rows, size: int, recorder: Recorder | None) -> Trained:
    """Train so many rows at a time; where a GPU has no memory for them, half as many."""
    parts = []
    try:
        for start in range(0, len(rows), size):
            wanted = size if stacked.fixed or recorder is not None else min(size, len(rows) - start)
            parts.append(_train_rows(stacked, job, rows.part(start, wanted), recorder))
    except torch.OutOfMemoryError:
        if size == 1:
            raise InputError(
                f"device = {str(job.data.inputs.device)!r}: has too little memory to train a single client; "
                "take a smaller training.batch or a smaller model"
            ) from None
        parts.clear()
        torch.cuda.empty_cache()
        return _in_chunks(stacked, job, rows, size // 2, recorder)
    if len(parts) == 1 and parts[0].models.clients == len(rows):
        return parts[0]
    velocities = [part.velocity for part in parts if part.velocity is not None]
    losses = [part.losses for part in parts if part.losses is not None]
    trained = Trained(
        _joined([part.models for part in parts]),
        _joined(velocities) if velocities else None,
        torch.cat(losses)[: len(rows)] if losses else None,
    )
    return _mapped(trained, lambda tensor: tensor[: len(rows)])


def _joined(parts: Sequence[Copies]) -> Copies:
    extractors, heads = joined([part.extractors for part in parts]), joined([part.heads for part in parts])
    return Copies(extractors, heads, parts[0].topology)


def _train_heads(
    stacked: Stacked, job: Job, rows: Rows, features: Tensor, recorder: Recorder | None, trace: Tensor | None = None
) -> Rows:
    """Heads on frozen features, equation (6): return the rows that extractors are then trained with."""
    network = stacked.network

    def loss(held: Held, batch: Batch, _: Tensor | None) -> Tensor:
        moment = batch["keys"], batch["number"]
        seen = drop(batch["inputs"], network.dropout, *moment)
        return _weighted(network.task, stacked.logits(held["heads"], seen, moment), batch)

    velocity = rows.velocity
    held = _held(
        {"heads": rows.start.heads},
        {"heads": rows.anchor.heads},
        None if velocity is None else {"heads": velocity.heads},
    )
    supervision = _supervision(job, features, rows.columns, _keys(job, "heads"))
    steps = schedule(rows.batches, False, features.device, None if recorder is None else WIDTHS)
    recording = None if recorder is None else Recording(recorder, "heads")
    held = Descent(loss, job.sgd, ("heads",)).run(held, supervision, steps, recording, trace)
    velocity = None if velocity is None else replace(velocity, heads=held["velocity of heads"])
    return replace(rows, start=replace(rows.start, heads=held["heads"]), velocity=velocity)


def _train_rows(stacked: Stacked, job: Job, rows: Rows, recorder: Recorder | None) -> Trained:
    """Extractors with heads that are trained and held fixed (equation (7)), or both."""
    network, device, topology = stacked.network, job.data.inputs.device, rows.start.topology
    parameters, statistics = trained_parts(network, _each(rows.start.extractors))
    anchor = trained_parts(network, _each(rows.anchor.extractors))[0]
    velocity = None
    if rows.velocity is not None:
        velocity = {"extractor": _each(rows.velocity.extractors), "heads": rows.velocity.heads}

    def loss(held: Held, batch: Batch, some: Tensor | None) -> Tensor:
        moment = batch["keys"], batch["number"]
        features = stacked.embed(held["extractor"], held["statistics"], batch["inputs"], batch["share"], moment, some)
        seen = drop(features, network.dropout, *moment)
        return _weighted(network.task, stacked.logits(held["heads"], seen, moment), batch)

    trained = ("extractor",) if _heads_first(job) else ("extractor", "heads")
    start, anchors = (
        {"extractor": parameters, "heads": rows.start.heads},
        {"extractor": anchor, "heads": rows.anchor.heads},
    )
    held = _held({part: start[part] for part in trained}, anchors, velocity)
    held = {"heads": rows.start.heads, "statistics": statistics} | held
    supervision = _supervision(job, job.data.inputs, rows.columns, rows.keys)
    multiple = rows.batches.index.shape[2] if stacked.fixed else WIDTHS if recorder is not None else None
    steps = schedule(rows.batches, stacked.alike, device, multiple)
    recording = None if recorder is None else Recording(recorder, "extractor")
    trace = torch.zeros(rows.batches.sizes.shape, device=device) if job.follow_losses else None
    held = Descent(loss, job.sgd, trained).run(held, supervision, steps, recording, trace)
    losses = _epochs(job, rows, trace)
    extractors = {name: tensor.unsqueeze(1) for name, tensor in (held["extractor"] | held["statistics"]).items()}
    if rows.velocity is None:
        return Trained(Copies(extractors, held["heads"], topology), losses=losses)
    momenta = {name: tensor.unsqueeze(1) for name, tensor in held["velocity of extractor"].items()}
    of_heads = held.get("velocity of heads", rows.velocity.heads)
    return Trained(Copies(extractors, held["heads"], topology), Copies(momenta, of_heads, topology), losses)


def _epochs(job: Job, rows: Rows, trace: Tensor | None) -> Tensor | None:
    """Return the mean loss of every epoch, (rows, epochs), from the steps' losses, where they are followed."""
    return None if trace is None else epoch_means(trace.cpu(), rows.batches.sizes.cpu(), job.sgd.epochs)


def _held(start: Held, anchors: Held, velocity: Held | None) -> Held:
    """Return what is trained with its momentum, and with what the proximal term pulls to."""
    held: Held = {}
    for part, its in start.items():
        held[part] = its
        held[f"velocity of {part}"] = (
            {name: torch.zeros_like(tensor) for name, tensor in its.items()}
            if velocity is None
            else {name: velocity[part][name] for name in its}
        )
        held[f"anchor of {part}"] = {name: anchors[part][name] for name in its}
    return held


def _supervision(job: Job, inputs: Inputs, columns: Tensor, keys: Tensor) -> Supervision:
    device = inputs.device
    return Supervision(inputs, *(t.to(device) for t in (job.data.answers, job.plan.gamma, columns, keys)))


def _heads_first(job: Job) -> bool:
    return job.plan.start.topology == "split" and job.sgd.order == "heads-first"


def _keys(job: Job, phase: Phase) -> Tensor:
    """Return every client's key of dropout, (clients,)."""
    return torch.tensor([job.key(client, phase) for client in range(job.plan.start.clients)])


def _each(extractors: Params) -> Params:
    """Return every row's only extractor, (rows, …)."""
    return {name: tensor.squeeze(1) for name, tensor in extractors.items()}


def _weighted(task: Task, outputs: Tensor, batch: Batch) -> Tensor:
    """1/|batch| Σ_j Σ_k γ_jk·loss_k of each row, from outputs (rows, batch, heads, values)."""
    losses = task.loss(outputs.flatten(0, 1), batch["answers"].flatten(0, 1)).view(batch["gamma"].shape)
    return (losses * batch["gamma"] * batch["share"].unsqueeze(2)).sum(dim=(1, 2))


def chunk_size(job: Job) -> int:
    """Return how many rows fit memory together."""
    inputs = job.data.inputs
    values = inputs[:1].numel() * job.batches.index.shape[2]
    fit = fitting(inputs.device) if inputs.device.type == "cuda" else CPU_ELEMENTS
    return max(1, fit // max(1, values))
