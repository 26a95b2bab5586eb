"""Estimates the memory of a round before it starts; a run that cannot fit is refused, with advice what to change.

The estimate is low: it counts only what must be in memory at the same time, so that no run is refused that would fit.
"""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from hcfl.config import Config
from hcfl.data import Federation
from hcfl.data.readers.available_memory import format_bytes, free_memory
from hcfl.engines.batched_training import CPU_ELEMENTS
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import Network, Params, parameters_of
from hcfl.tiers.participants import Statistic

FLOAT = torch.float32.itemsize

SIDE_BY_SIDE = 3
"""Copies of a model while it is trained: its parameters, their gradients, their velocity."""

VECTORS: frozenset[Statistic] = frozenset({"updates", "whole updates", "models"})
"""Statistics that are as large as the models that clients trained."""

COMPARED = 3
"""Copies of them in memory: the trained model, the model before training, the difference."""


@dataclass(frozen=True)
class Estimate:
    """Bytes that a round takes in addition to what is in memory before it."""

    kept: int
    """The clusters' models, and the states of clients that stay from round to round."""
    inputs: int
    """Scaled samples of the clients that train at the same time."""
    training: int
    """Models, gradients and activations of the clients that train at the same time."""
    updates: int
    """Trained models of all participants of a round."""
    compared: int = 0
    """The vectors by which clients are compared, where those are updates or models."""

    @property
    def total(self) -> int:
        """The peak: while clients train, while updates are concatenated (which takes them twice), or compared."""
        return self.kept + self.inputs + max(self.training, 2 * self.updates, self.updates + self.compared)


def estimate(
    network: Network, method: Method, federation: Federation, config: Config, device: torch.device
) -> Estimate:
    """Return the memory of a round; on a GPU, which halves its chunks until they fit, with one client in training."""
    clients, values = federation.clients, prod(federation.shape)
    clusters = clients if method.clusters is None else max(method.clusters, method.traits.adaptation.groups)
    extractor, head = _bytes(network.trained_part(network.extractor)), _bytes(parameters_of(network.head))
    shared = method.topology == "split"
    heads = 1 if method.weighting.hard or not method.traits.local.trains_cluster_models else clusters
    one = extractor + heads * head if shared else heads * (extractor + head)

    participants = max(1, round(config.training.participation * clients))
    sizes = sorted(federation.train_sizes.tolist(), reverse=True)
    batched, batch = config.engine == "batched", min(config.training.batch or 1, sizes[0])
    rows = participants * (1 if shared else heads)  # what is trained at once: clients, or their models
    side_by_side = min(participants, config.threads or 1) if config.engine == "sequential" else 1
    at_once = min(rows, max(1, CPU_ELEMENTS // (values * batch))) if batched and device.type == "cpu" else side_by_side
    row = extractor + heads * head if shared else extractor + head
    stored = federation.x.element_size() if device.type != "cpu" else FLOAT  # a GPU scales batch by batch
    samples = sum(sizes[-participants:]) if batched else sizes[-1]  # the smallest clients there could be
    states = 2 if config.evaluation.serve == "best" else 1  # the last, and the best so far
    own = clients * one * (states * method.local.kept + config.training.keep_momentum)
    first = clients * (extractor + head) if "first updates" in method.needs else 0
    vector = extractor + head if not shared or "whole updates" in method.needs else head
    start = participants * one if batched and not shared else 0
    return Estimate(
        kept=states * ((extractor if shared else clusters * extractor) + clusters * head) + own + first,
        inputs=samples * values * stored,
        training=start + at_once * (SIDE_BY_SIDE * row + batch * _activations(network, federation)),
        updates=participants * one,
        compared=COMPARED * participants * vector if VECTORS & method.needs else 0,
    )


def fits(network: Network, method: Method, federation: Federation, config: Config) -> bool:
    """Whether a round fits the memory of this CPU."""
    return estimate(network, method, federation, config, torch.device("cpu")).total <= free_memory()


def check(network: Network, method: Method, federation: Federation, config: Config, device: torch.device) -> None:
    """Refuse a run whose rounds cannot fit; not on Flower, where clients use the memory of other machines."""
    if config.engine == "flower":
        return
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory()
    needed = estimate(network, method, federation, config, device)
    if needed.total <= free:
        return
    field, change = _largest(needed, config, method)
    raise InputError(
        f"{field}: a round needs at least {format_bytes(needed.total)} of memory, but {format_bytes(free)} are free "
        f"on {device.type}; take {change}"
    )


def _largest(needed: Estimate, config: Config, method: Method) -> tuple[str, str]:
    """Return the setting behind the largest part, with its value, and what to change."""
    smaller = "or a smaller model"
    parts = {
        "kept": needed.kept,
        "inputs": needed.inputs,
        "training": needed.training,
        "updates": max(2 * needed.updates, needed.updates + needed.compared),
    }
    largest = max(parts, key=lambda name: parts[name])
    if largest == "kept":
        return f"method.clusters = {method.clusters or 'one per client'}", f"fewer clusters {smaller}"
    if config.engine == "batched" and largest in ("inputs", "training"):
        return "engine = 'batched'", f"engine = sequential, a smaller training.batch {smaller}"
    if largest == "inputs":
        return f"data.samples = {config.data.samples}", "fewer data.samples, or images of a smaller data.resize"
    if largest == "training":
        return f"training.batch = {config.training.batch}", f"a smaller training.batch {smaller}"
    return f"training.participation = {config.training.participation:g}", f"a smaller training.participation {smaller}"


def _bytes(params: Params) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in params.values())


def _activations(network: Network, federation: Federation) -> int:
    """Return the bytes of all layers' outputs for one sample, without their gradients."""
    sizes: list[int] = []

    def note(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.numel() * output.element_size())

    leaves = [module for module in network.extractor.modules() if not any(True for _ in module.children())]
    handles = [module.register_forward_hook(note) for module in leaves]
    was_training = network.extractor.training
    try:
        with torch.no_grad():
            network.extractor.eval()(torch.zeros(2, *federation.shape, dtype=federation.scaling.dtype))
    finally:
        network.extractor.train(was_training)
        for handle in handles:
            handle.remove()
    return sum(sizes) // 2
