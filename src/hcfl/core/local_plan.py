"""Local training as a job: which models, which samples in which order; the sequential trainer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from hcfl import rng
from hcfl.core.sgd import Batches, LocalSGD, Supervision, epoch_means, train_extractor, train_heads, train_model
from hcfl.data.local_data import LocalData
from hcfl.methods.local_models import Plan
from hcfl.models import Network, Params
from hcfl.models.ensemble import Copies, Ensemble, embed, joined, rows, stack

Phase = Literal["heads", "extractor"]
"""What is being trained: heads on features that are known, or an extractor, alone or together with heads."""


@dataclass(frozen=True)
class Job:
    """The training of some clients, to be done."""

    plan: Plan
    features: Tensor | None
    """Of the extractors that training starts from, in the split topology."""
    data: LocalData
    batches: Batches
    sgd: LocalSGD
    purposes: Sequence[tuple[int | str, ...]]
    """For each client, the name of the random numbers that layers draw in training, and of dropout's masks."""
    velocity: Copies | None = None
    """The momentum that clients begin with, of what they train; None: all begin at rest, and keep none."""
    follow_losses: bool = False
    """Whether the losses of training are asked for; then each client trains one model."""

    def fixed_features(self, network: Network) -> Tensor:
        """Return the features of a frozen extractor."""
        return embed(network, {}, self.data.inputs) if self.features is None else self.features

    def key(self, client: int, phase: Phase) -> int:
        """Return what a client's masks of dropout come from, the same for all of its models."""
        seed, *purpose = self.purposes[client]
        return rng.derive(int(seed), *purpose, "dropout", phase)


@dataclass(frozen=True)
class Trained:
    """What training gave."""

    models: Copies
    velocity: Copies | None = None
    """The momentum at the end, where clients keep it."""
    losses: Tensor | None = None
    """Mean loss of every epoch, (clients, epochs), where asked for; where heads train first, of the extractors."""


Trainer = Callable[[Network, Job], Trained]
"""The training of some clients, as an engine does it."""


def at_rest(network: Network, start: Copies) -> Copies:
    """Return a velocity of zero for everything that training from `start` changes."""
    zero = start.map(torch.zeros_like)
    extractors = {name: tensor for name, tensor in zero.extractors.items() if name not in network.untrained}
    return Copies(extractors, zero.heads, zero.topology)


def train(network: Network, job: Job) -> Trained:
    """Train what is planned, one client after another."""
    trained, sizes = [], job.batches.sizes
    losses = torch.zeros(sizes.shape) if job.follow_losses else None
    velocity = None if job.velocity is None else job.velocity.map(torch.clone)
    for client, (seed, *purpose) in enumerate(job.purposes):
        with rng.scoped(int(seed), *purpose):
            trace: list[Tensor] | None = None if losses is None else []
            momenta = None if velocity is None else velocity.of(client)
            trained.append(_train_one(network, job, client, momenta, trace))
        if losses is not None and trace:
            losses[client, sizes[client] > 0] = torch.stack(trace).to(losses)
    means = None if losses is None else epoch_means(losses, sizes, job.sgd.epochs)
    return Trained(Copies.stack(trained), velocity, means)


def _train_one(
    network: Network, job: Job, client: int, velocity: Ensemble | None, trace: list[Tensor] | None
) -> Ensemble:
    """Train one client's extractor and heads in the order that was asked for (split), or its whole models (full).

    Where the extractor is frozen, whole models differ by their heads only.

    The velocity, where there is one, is updated in place; the losses of the steps are added to `trace`.
    """
    inputs, device, batches, sgd = job.data.inputs, job.data.inputs.device, job.batches.of(client), job.sgd
    start, anchor = job.plan.start.of(client), job.plan.anchor.of(client)
    answers, gamma = job.data.answers.to(device), job.plan.gamma.to(device)
    supervision = Supervision(answers, gamma, batches, sgd, job.key(client, "extractor"), network.task, trace)
    if network.fixed:
        first = replace(supervision, key=job.key(client, "heads"))
        of_heads = None if velocity is None else velocity.heads
        heads = train_heads(network, start.heads, job.fixed_features(network), first, anchor.heads, of_heads)
        return Ensemble({}, heads, start.topology)
    if start.topology == "split":
        extractor, heads, anchors = start.extractor(0), start.heads, (anchor.extractor(0), anchor.heads)
        momenta = None if velocity is None else (velocity.extractor(0), velocity.heads)
        if sgd.order == "together":
            extractor, heads = train_model(network, extractor, heads, inputs, supervision, anchors, momenta)
        else:
            assert job.features is not None
            of_extractor, of_heads = momenta or (None, None)
            first = replace(supervision, key=job.key(client, "heads"), trace=None)
            heads = train_heads(network, heads, job.features, first, anchors[1], of_heads)
            extractor = train_extractor(network, extractor, heads, inputs, supervision, anchors[0], of_extractor)
        return Ensemble(stack([extractor]), heads, "split")
    models = [
        train_model(
            network,
            start.extractor(k),
            rows(start.heads, [k]),
            inputs,
            replace(supervision, gamma=gamma[:, [k]]),
            (anchor.extractor(k), rows(anchor.heads, [k])),
            None if velocity is None else (velocity.extractor(k), _column(velocity.heads, k)),
        )
        for k in range(start.clusters)
    ]
    return Ensemble(stack([extractor for extractor, _ in models]), joined([head for _, head in models]), "full")


def _column(heads: Params, k: int) -> Params:
    """Return one head of several, as views."""
    return {name: tensor[k : k + 1] for name, tensor in heads.items()}
