"""Local training: the γ-weighted loss of the task by stochastic gradient descent (equations (6) and (7))."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from hcfl.config import Order, TrainingConfig
from hcfl.models import Network, Params, drop
from hcfl.models.inputs import Inputs
from hcfl.models.tasks import CLASSES, Task
from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class Decay:
    """How the learning rate falls over the rounds."""

    kind: Literal["cosine", "step"]
    rounds: int
    every: int
    by: float

    @classmethod
    def of(cls, training: TrainingConfig) -> "Decay | None":
        """Return the schedule of a section of the configuration; None where the learning rate is constant."""
        if training.schedule == "constant":
            return None
        every = training.lr_every or max(1, training.rounds // 3)
        return cls(training.schedule, training.rounds, every, training.lr_decay or LR_DECAY)

    def factor(self, round_: int) -> float:
        """Return what the learning rate is multiplied by in a round, from 1.

        >>> [Decay("step", 9, 3, 0.1).factor(round_) for round_ in (1, 3, 4)]
        [1.0, 1.0, 0.1]
        """
        done = round_ - 1
        if self.kind == "cosine":
            return (1 + math.cos(math.pi * min(done / self.rounds, 1))) / 2
        return float(self.by ** (done // self.every))


LR_DECAY = 0.1
"""The factor of schedule `step`, unless another is set."""


@dataclass(frozen=True)
class LocalSGD:
    """How clients train; `TrainingConfig` has the defaults."""

    lr: float
    """Of the first round, or, after `in_round`, of one round."""
    momentum: float
    keep_momentum: bool
    """Whether a client's momentum goes on from its last round, as with one optimiser per client; else it is reset."""
    weight_decay: float
    batch: int
    epochs: int
    order: Order
    """Full models are always trained as a whole."""
    drop_last: bool
    """Whether an epoch leaves out its last batch where that is not full, unless it is the only one."""
    decay: "Decay | None" = None
    """How the learning rate follows the rounds; None: it is constant."""
    clip_gradient: float | None = None
    """The largest norm of a step's gradient, over all that one model trains."""
    proximal: float = 0.0
    """λ of the term λ/2‖θ − anchor‖² that some methods add to every loss."""

    @classmethod
    def of(cls, training: TrainingConfig) -> "LocalSGD":
        """Return how clients train by a section of the configuration in which batch size, epochs and order are set."""
        assert training.batch is not None
        assert training.epochs is not None
        assert training.order is not None
        return cls(
            lr=training.lr,
            momentum=training.momentum,
            keep_momentum=training.keep_momentum,
            weight_decay=training.weight_decay,
            batch=training.batch,
            epochs=training.epochs,
            order=training.order,
            drop_last=training.drop_last,
            decay=Decay.of(training),
            clip_gradient=training.clip_gradient,
        )

    def in_round(self, round_: int) -> "LocalSGD":
        """Settle the learning rate of a round, from 1."""
        return self if self.decay is None else replace(self, lr=self.lr * self.decay.factor(round_), decay=None)

    def ordered(self, clusters: int) -> "LocalSGD":
        """Settle an order that depends on the number of clusters.

        One head serves all clients as long as nothing speaks for two, and trained together with φ it is FedAvg's.
        """
        if self.order != "auto":
            return self
        return replace(self, order="together" if clusters == 1 else "heads-first")


def weighted_loss(losses: Tensor, gamma: Tensor) -> Tensor:
    """1/|batch| · Σ_j Σ_k γ_jk·loss_k: eqs. (6) and (7). Heads share no parameter, so each gets its own gradient."""
    return (gamma * losses).sum() / len(losses)


@dataclass(frozen=True)
class Batches:
    """The order in which some clients go through their samples, lined up step by step."""

    index: Tensor
    """(clients, steps, width): rows of all clients' samples; where a batch is shorter than others, any."""
    sizes: Tensor
    """(clients, steps): how many of a batch's rows count; 0: the client does not take this step."""

    def of(self, client: int) -> list[Tensor]:
        """Return one client's batches."""
        pairs = zip(self.index[client], self.sizes[client].tolist(), strict=True)
        return [rows[:size] for rows, size in pairs if size]


SMALLEST_LAST = 8
"""With batch normalisation, a last batch has at least one part in so many of a full one."""


def shuffle(segments: Segments, sgd: LocalSGD, generators: Sequence[torch.Generator], singles: bool = True) -> Batches:
    """Shuffle each client's samples in every epoch; a last batch of one sample is left out unless it is the only one.

    With `drop_last`, so is any last batch that is not full. Without `singles` no batch of one sample is used at all:
    batch normalisation cannot train on it. Then a last batch with less than an eighth of a full one is left out, too:
    its statistics are mostly noise, and with momentum a few such steps destroy a pretrained network.
    """
    epochs = range(sgd.epochs)
    orders = [
        torch.randperm(samples, generator=generator)
        for samples, generator in zip(segments.sizes, generators, strict=True)
        for _ in epochs
    ]
    width = min(sgd.batch, max(segments.sizes))
    steps = -(-max(segments.sizes) // width)
    lined = pad(pad_sequence(orders, batch_first=True), (0, steps * width - max(segments.sizes)))
    samples = segments.lengths.view(-1, 1)
    starts = samples.cumsum(dim=0) - samples
    index = lined.view(len(segments), sgd.epochs * steps, width) + starts.unsqueeze(2)
    sizes = (samples - width * torch.arange(steps)).clamp(0, width)
    wanted = ((samples <= sgd.batch) | (sgd.batch == 1)) & singles
    sizes = torch.where((sizes == 1) & ~wanted, 0, sizes)
    least = sgd.batch if sgd.drop_last else 0 if singles else sgd.batch / SMALLEST_LAST
    sizes = torch.where((sizes < least) & (samples > sgd.batch), 0, sizes)
    sizes = sizes.repeat(1, sgd.epochs)
    return Batches(index.clamp_max(segments.samples - 1), sizes)


def epoch_means(losses: Tensor, sizes: Tensor, epochs: int) -> Tensor:
    """Mean loss per sample of every epoch, (clients, epochs), from batches' losses and sizes, both (clients, steps)."""
    samples = sizes.to(losses).view(len(sizes), epochs, -1)
    return (losses.view_as(samples) * samples).sum(dim=2) / samples.sum(dim=2).clamp_min(1)


def descend(
    params: Sequence[Params],
    loss: Callable[..., Tensor],
    batches: Sequence[object],
    sgd: LocalSGD,
    anchors: Sequence[Params] | None = None,
    velocities: Sequence[Params] | None = None,
) -> list[Params]:
    """Minimise loss(batch, *params) + λ/2‖params − anchors‖² over the batches by SGD; the parameters stay as they are.

    Without anchors, the proximal term pulls towards the start. Momentum starts from `velocities`, which are updated in
    place, or from rest.

    The step is torch.optim.SGD's, without the optimiser object: on models this small it costs more than the step.
    """
    dense = torch.contiguous_format
    trained = [
        {name: tensor.detach().clone(memory_format=dense).requires_grad_() for name, tensor in p.items()}
        for p in params
    ]
    leaves = [leaf for p in trained for leaf in p.values()]
    targets = [anchor[name] for p, anchor in zip(params, anchors or params, strict=True) for name in p]
    momenta = line_up_velocities(params, velocities)
    for batch in batches if leaves else []:
        gradients = torch.autograd.grad(loss(batch, *trained), leaves, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            if sgd.clip_gradient is not None:
                squares = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
                factor = clip_factor(squares, sgd.clip_gradient)
                gradients = tuple(gradient * factor for gradient in gradients)
            move(leaves, momenta, gradients, targets, sgd)
    return [{name: leaf.detach() for name, leaf in p.items()} for p in trained]


def move(
    values: list[Tensor], velocities: list[Tensor], slopes: Sequence[Tensor], targets: list[Tensor], sgd: LocalSGD
) -> None:
    """Take one step of stochastic gradient descent with momentum, in place, in one pass; all but slopes are dense."""
    dense = [slope.contiguous() for slope in slopes]
    if sgd.proximal:
        # Out of place: parameters that are added to each other have one gradient.
        dense = list(torch._foreach_add(dense, list(torch._foreach_sub(values, targets)), alpha=sgd.proximal))
    torch._fused_sgd_(
        values,
        dense,
        velocities if sgd.momentum else [],
        weight_decay=sgd.weight_decay,
        momentum=sgd.momentum,
        lr=sgd.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def clip_factor(squares: Tensor, longest: float) -> Tensor:
    """Return what shortens gradients with these squared norms to a norm of `longest`: torch's clip_grad_norm_."""
    return (longest / (squares.sqrt() + 1e-6)).clamp_max(1)


def line_up_velocities(params: Sequence[Params], velocities: Sequence[Params] | None) -> list[Tensor]:
    """Return the velocity of every parameter, in the order of the parameters; zeros where none is given."""
    if velocities is None:
        return [torch.zeros_like(t, memory_format=torch.contiguous_format) for p in params for t in p.values()]
    return [velocity[name] for p, velocity in zip(params, velocities, strict=True) for name in p]


@dataclass(frozen=True)
class Supervision:
    """What one client's training goes by: answers, their weights, the order of samples, and the optimiser."""

    answers: Tensor
    """(samples,): classes; or whatever else the task is about."""
    gamma: Tensor
    """γ: how much each sample counts for each head, (samples, heads)."""
    batches: Sequence[Tensor]
    """The samples of each step."""
    sgd: LocalSGD
    key: int = 0
    """What the masks of dropout come from, which are fresh in every step."""
    task: Task = CLASSES
    trace: list[Tensor] | None = None
    """Where the loss of every step is noted, if it is asked for."""

    @property
    def steps(self) -> list[tuple[int, Tensor]]:
        """The batches with their numbers."""
        return [*enumerate(self.batches)]

    def loss(self, outputs: Tensor, batch: Tensor) -> Tensor:
        """Return the weighted loss of a batch from its outputs (batch, heads, values)."""
        loss = weighted_loss(self.task.loss(outputs, self.answers[batch]), self.gamma[batch])
        if self.trace is not None:
            self.trace.append(loss.detach())
        return loss


def train_heads(
    network: Network,
    heads: Params,
    features: Tensor,
    supervision: Supervision,
    anchor: Params | None = None,
    velocity: Params | None = None,
) -> Params:
    """Train stacked heads on frozen features (samples, features), each with its column of γ: equation (6).

    Here and below, the proximal term's anchor is where training starts, unless another is given; a velocity that is
    given is updated in place.
    """

    def loss(step: tuple[int, Tensor], heads: Params) -> Tensor:
        number, batch = step
        moment = supervision.key, number
        seen = drop(features[batch], network.dropout, *moment)
        return supervision.loss(network.logits(heads, seen, training=True, moment=moment), batch)

    return descend([heads], loss, supervision.steps, supervision.sgd, _alone(anchor), _alone(velocity))[0]


def train_extractor(
    network: Network,
    extractor: Params,
    heads: Params,
    inputs: Inputs,
    supervision: Supervision,
    anchor: Params | None = None,
    velocity: Params | None = None,
) -> Params:
    """Train the extractor with the heads held fixed: equation (7)."""
    parameters, statistics = trained_parts(network, extractor)

    def loss(step: tuple[int, Tensor], parameters: Params) -> Tensor:
        number, batch = step
        moment = supervision.key, number
        features = network.embed(parameters | statistics, inputs[batch], training=True, moment=moment)
        features = drop(features, network.dropout, *moment)
        return supervision.loss(network.logits(heads, features, training=True, moment=moment), batch)

    found = descend([parameters], loss, supervision.steps, supervision.sgd, _alone(anchor), _alone(velocity))[0]
    return found | statistics


def train_model(
    network: Network,
    extractor: Params,
    heads: Params,
    inputs: Inputs,
    supervision: Supervision,
    anchor: tuple[Params, Params] | None = None,
    velocity: tuple[Params, Params] | None = None,
) -> tuple[Params, Params]:
    """Train an extractor and its stacked heads together, each with its column of γ: equations (6) and (7) in one step.

    A full model has one head.
    """
    parameters, statistics = trained_parts(network, extractor)

    def loss(step: tuple[int, Tensor], parameters: Params, heads: Params) -> Tensor:
        number, batch = step
        moment = supervision.key, number
        features = network.embed(parameters | statistics, inputs[batch], training=True, moment=moment)
        features = drop(features, network.dropout, *moment)
        return supervision.loss(network.logits(heads, features, training=True, moment=moment), batch)

    parameters, heads = descend([parameters, heads], loss, supervision.steps, supervision.sgd, anchor, velocity)
    return parameters | statistics, heads


def _alone(part: Params | None) -> list[Params] | None:
    return None if part is None else [part]


def trained_parts(network: Network, extractor: Params) -> tuple[Params, Params]:
    """Return what is trained, and a copy of the rest: running statistics, which training changes in place."""
    untrained = network.untrained
    parameters = {name: tensor for name, tensor in extractor.items() if name not in untrained}
    return parameters, {name: tensor.clone() for name, tensor in extractor.items() if name in untrained}
