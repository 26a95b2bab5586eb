"""Local training of many clients as one tensor program.

Parameters of all clients are stacked. No client's loss depends on another's parameters, so the gradient of the summed
loss is every client's own gradient, and each step of all clients is one step of one larger program. What is random
(batches) is drawn per client beforehand, so that results agree with training one client after another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.func import vmap

from hcfl.ensemble import Ensemble, stack
from hcfl.local import Job
from hcfl.models import Network, Params
from hcfl.training import LocalSGD, cross_entropy_per_cluster, trained_parts


@dataclass(frozen=True)
class Step:
    """One step of some of the clients, whose batches are lined up."""

    rows: Tensor | None
    """(clients,): which of them take it; None: all."""
    index: Tensor
    """(clients, batch): rows of the concatenated samples."""
    share: Tensor
    """(clients, batch): 1/|batch| for a client's samples, 0 where its batch is shorter than others'."""


def schedule(jobs: Sequence[Job], alike: bool, device: torch.device) -> list[Step]:
    """Line up the batches of all clients, step by step.

    Shorter batches are filled up with samples that count nothing. With `alike`, only batches of the same size are put
    together, for layers that look at a batch as a whole.
    """
    offsets = [0]
    for job in jobs:
        offsets.append(offsets[-1] + len(job.data))
    steps = []
    for number in range(max(len(job.batches) for job in jobs)):
        active = [row for row, job in enumerate(jobs) if number < len(job.batches)]
        sizes = {row: len(jobs[row].batches[number]) for row in active}
        for size in sorted(set(sizes.values())) if alike else [max(sizes.values())]:
            rows = [row for row in active if sizes[row] == size or not alike]
            index = torch.zeros(len(rows), size, dtype=torch.long)
            share = torch.zeros(len(rows), size)
            for line, row in enumerate(rows):
                index[line, : sizes[row]] = jobs[row].batches[number] + offsets[row]
                share[line, : sizes[row]] = 1 / sizes[row]
            chosen = None if len(rows) == len(jobs) else torch.tensor(rows, device=device)
            steps.append(Step(chosen, index.to(device), share.to(device)))
    return steps


def descend_together(
    params: Sequence[Params],
    loss: Callable[..., Tensor],
    steps: Sequence[Step],
    sgd: LocalSGD,
    anchors: Sequence[Params],
) -> list[Params]:
    """Minimise every client's loss at once: `training.descend` with a leading axis of clients everywhere."""
    trained = [{name: tensor.detach().clone() for name, tensor in p.items()} for p in params]
    velocities = [{name: torch.zeros_like(tensor) for name, tensor in p.items()} for p in trained]
    for step in steps:
        rows = slice(None) if step.rows is None else step.rows
        picked = [{name: tensor[rows].detach().requires_grad_() for name, tensor in p.items()} for p in trained]
        leaves = [leaf for p in picked for leaf in p.values()]
        if not leaves:
            break
        gradients = iter(torch.autograd.grad(loss(step, *picked), leaves, allow_unused=True, materialize_grads=True))
        with torch.no_grad():
            for p, v, anchor in zip(trained, velocities, anchors, strict=True):
                for name in p:
                    # With all rows these are views, changed in place; a choice of rows is a copy, put back below.
                    value, velocity = p[name][rows], v[name][rows]
                    velocity.mul_(sgd.momentum).add_(next(gradients)).add_(value, alpha=sgd.weight_decay)
                    if sgd.proximal:
                        velocity.add_(value - anchor[name][rows], alpha=sgd.proximal)
                    value.sub_(velocity, alpha=sgd.lr)
                    if step.rows is not None:
                        v[name][rows], p[name][rows] = velocity, value
    return trained


def train_together(network: Network, jobs: Sequence[Job]) -> list[Ensemble]:
    """Train jobs of the same kind: all in one topology, with the same number of models and the same settings."""
    return (_train_split if jobs[0].plan.start.topology == "split" else _train_full)(network, jobs)


def _train_split(network: Network, jobs: Sequence[Job]) -> list[Ensemble]:
    """Heads on frozen features, then the extractor with the heads held fixed."""
    inputs, labels, gamma = _samples(jobs)
    features = torch.cat([job.features for job in jobs if job.features is not None])
    steps = schedule(jobs, alike=False, device=inputs.device)
    heads = stack([job.plan.start.heads for job in jobs])
    anchors = stack([job.plan.anchor.heads for job in jobs])

    def head_loss(step: Step, heads: Params) -> Tensor:
        logits = vmap(partial(network.logits, training=True))(heads, features[step.index])
        return _weighted(logits, labels[step.index], gamma[step.index], step.share)

    heads = descend_together([heads], head_loss, steps, jobs[0].sgd, [anchors])[0]

    parameters, statistics = trained_parts(network, stack([job.plan.start.extractor(0) for job in jobs]))
    anchor, _ = trained_parts(network, stack([job.plan.anchor.extractor(0) for job in jobs]))

    def extractor_loss(step: Step, parameters: Params) -> Tensor:
        features = _embed(network, parameters, statistics, inputs[step.index], step.rows)
        chosen = heads if step.rows is None else {name: tensor[step.rows] for name, tensor in heads.items()}
        logits = vmap(partial(network.logits, training=True))(chosen, features)
        return _weighted(logits, labels[step.index], gamma[step.index], step.share)

    if network.buffers:
        steps = schedule(jobs, alike=True, device=inputs.device)
    trained = descend_together([parameters], extractor_loss, steps, jobs[0].sgd, [anchor])[0] | statistics
    return [
        Ensemble({n: t[row : row + 1] for n, t in trained.items()}, {n: t[row] for n, t in heads.items()}, "split")
        for row in range(len(jobs))
    ]


def _train_full(network: Network, jobs: Sequence[Job]) -> list[Ensemble]:
    """Whole models, all clients × clusters at once."""
    inputs, labels, gamma = _samples(jobs)
    parameters, statistics = trained_parts(network, stack([job.plan.start.extractors for job in jobs]))
    anchor, _ = trained_parts(network, stack([job.plan.anchor.extractors for job in jobs]))
    heads, head_anchor = (
        stack([plan.heads for plan in plans])
        for plans in ([job.plan.start for job in jobs], [job.plan.anchor for job in jobs])
    )

    def loss(step: Step, parameters: Params, heads: Params) -> Tensor:
        features = _embed(network, parameters, statistics, inputs[step.index], step.rows, gamma.shape[1])
        each = {name: tensor.unsqueeze(2) for name, tensor in heads.items()}
        logits = vmap(vmap(partial(network.logits, training=True)))(each, features)  # (clients, models, batch, 1, C)
        return _weighted(logits.squeeze(3).movedim(1, 2), labels[step.index], gamma[step.index], step.share)

    steps = schedule(jobs, alike=bool(network.buffers), device=inputs.device)
    trained, heads = descend_together([parameters, heads], loss, steps, jobs[0].sgd, [anchor, head_anchor])
    trained |= statistics
    return [
        Ensemble({n: t[row] for n, t in trained.items()}, {n: t[row] for n, t in heads.items()}, "full")
        for row in range(len(jobs))
    ]


def _embed(
    network: Network, parameters: Params, statistics: Params, inputs: Tensor, rows: Tensor | None, models: int = 0
) -> Tensor:
    """Features of every client's batch by its own extractor, or by each of its `models`; statistics follow."""
    mine = statistics if rows is None else {name: tensor[rows] for name, tensor in statistics.items()}

    def one(parameters: Params, mine: Params, batch: Tensor) -> Tensor:
        return network.embed(parameters | mine, batch, training=True)

    bare = not parameters and not mine  # nothing to tell models apart by
    run = vmap(one, in_dims=(0, 0, None), randomness="different") if models and not bare else one
    features: Tensor = vmap(run, randomness="different")(parameters, mine, inputs)
    if models and bare:
        features = features.unsqueeze(1).expand(-1, models, -1, -1)
    if rows is not None:
        for name, tensor in mine.items():
            statistics[name][rows] = tensor
    return features


def _weighted(logits: Tensor, labels: Tensor, gamma: Tensor, share: Tensor) -> Tensor:
    """Σ over clients of 1/|batch| Σ_j Σ_k γ_jk·CE_k, from logits (clients, batch, models, classes)."""
    losses = cross_entropy_per_cluster(logits.flatten(0, 1), labels.flatten()).view(gamma.shape)
    return (losses * gamma * share.unsqueeze(2)).sum()


def _samples(jobs: Sequence[Job]) -> tuple[Tensor, Tensor, Tensor]:
    """Concatenate all clients' inputs, labels and γ."""
    return (
        torch.cat([job.data.inputs for job in jobs]),
        torch.cat([job.data.labels for job in jobs]),
        torch.cat([job.plan.gamma for job in jobs]),
    )
