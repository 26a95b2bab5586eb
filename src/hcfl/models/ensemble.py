"""The K models of a federation as stacked tensors: one shared extractor with K heads, or K full models."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hcfl import rng
from hcfl.errors import InputError
from hcfl.models import Builder, Network, Pair, Params, parameters_of
from hcfl.models.inputs import Inputs, Scaled
from hcfl.models.precision import matrix_products

Topology = Literal["split", "full"]
"""`split`: one extractor for all clusters, a head each. `full`: a whole model per cluster."""

EVALUATION_ELEMENTS = 1 << 22
"""Input values per forward pass on a CPU where nothing is trained: 1365 images of 32×32×3. It bounds memory, whatever a
client holds: a network's widest layer can be a hundred times its input."""

GPU_SHARE = 2000
"""Bytes of GPU memory per input value of a pass: what activations of a wide network can take."""


@dataclass(frozen=True)
class Ensemble:
    """Parameters of all clusters. Every tensor has a leading axis; cluster k is column k."""

    extractors: Params
    """Leading axis 1 in the split topology, K in the full one."""
    heads: Params
    """Leading axis K."""
    topology: Topology

    @staticmethod
    def join(several: Sequence["Ensemble"]) -> "Ensemble":
        """Line up the models of several ensembles; in the split topology, each brings its own extractor."""
        extractors, heads = joined([one.extractors for one in several]), joined([one.heads for one in several])
        return Ensemble(extractors, heads, several[0].topology)

    @property
    def clusters(self) -> int:
        """Return K, the number of clusters."""
        return len(next(iter(self.heads.values())))

    def extractor(self, cluster: int) -> Params:
        """Return the parameters of the extractor that serves this cluster."""
        return row(self.extractors, 0 if self.topology == "split" else cluster)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Ensemble":
        """Apply a change of columns (select, append, …) to everything that has one column per cluster."""
        heads = {name: change(tensor) for name, tensor in self.heads.items()}
        if self.topology == "split":
            return Ensemble(self.extractors, heads, self.topology)
        extractors = {name: change(tensor) for name, tensor in self.extractors.items()}
        return Ensemble(extractors, heads, self.topology)

    def select(self, clusters: Sequence[int]) -> "Ensemble":
        """Return the models of some clusters, in this order."""
        return self.map(lambda tensor: tensor[list(clusters)])

    def to(self, device: torch.device) -> "Ensemble":
        """Move all tensors."""
        extractors = {name: tensor.to(device) for name, tensor in self.extractors.items()}
        heads = {name: tensor.to(device) for name, tensor in self.heads.items()}
        return Ensemble(extractors, heads, self.topology)


@dataclass(frozen=True)
class Copies:
    """Models of several clients: every tensor is (clients, models, …); in the split topology, one extractor each."""

    extractors: Params
    heads: Params
    topology: Topology

    @staticmethod
    def stack(each: Sequence[Ensemble]) -> "Copies":
        """Put one ensemble of each client together."""
        return Copies(stack([one.extractors for one in each]), stack([one.heads for one in each]), each[0].topology)

    @property
    def clients(self) -> int:
        """Return the number of clients."""
        return len(next(iter(self.heads.values())))

    @property
    def models(self) -> int:
        """Return the number of heads, or whole models, of each client."""
        return next(iter(self.heads.values())).shape[1]

    def of(self, client: int) -> Ensemble:
        """Return one client's models."""
        return Ensemble(row(self.extractors, client), row(self.heads, client), self.topology)

    def each(self) -> list[Ensemble]:
        """Return every client's models."""
        parts = zip(_unstacked(self.extractors, self.clients), _unstacked(self.heads, self.clients), strict=True)
        return [Ensemble(extractors, heads, self.topology) for extractors, heads in parts]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Copies":
        """Apply a function to all tensors."""
        extractors = {name: change(tensor) for name, tensor in self.extractors.items()}
        return Copies(extractors, {name: change(tensor) for name, tensor in self.heads.items()}, self.topology)

    def rows(self) -> Ensemble:
        """Line up all clients' models in one axis."""
        lined = self.map(lambda tensor: tensor.flatten(0, 1))
        return Ensemble(lined.extractors, lined.heads, self.topology)


def copies(ensemble: Ensemble, columns: Tensor) -> Copies:
    """Give each client the models of some clusters, from columns (clients, models)."""

    def pick(tensor: Tensor) -> Tensor:
        return tensor[columns.to(tensor.device)]

    return _for_clients(ensemble, len(columns), pick)


@matrix_products(rounded=False)
def blends(ensemble: Ensemble, weights: Tensor) -> Copies:
    """Σ_k u_k θ_k for each client, from weights (clients, clusters)."""

    def blend(tensor: Tensor) -> Tensor:
        return mix(weights.to(tensor.device), tensor).unsqueeze(1)

    return _for_clients(ensemble, len(weights), blend)


def _for_clients(ensemble: Ensemble, clients: int, make: Callable[[Tensor], Tensor]) -> Copies:
    """Make every client's own models; a shared extractor stays what it is, and is not copied."""
    if ensemble.topology == "split":
        extractors = {name: tensor.expand(clients, *tensor.shape) for name, tensor in ensemble.extractors.items()}
    else:
        extractors = {name: make(tensor) for name, tensor in ensemble.extractors.items()}
    return Copies(extractors, {name: make(tensor) for name, tensor in ensemble.heads.items()}, ensemble.topology)


def row(params: Params, index: int) -> Params:
    """Return one model of stacked parameters."""
    return {name: tensor[index] for name, tensor in params.items()}


def rows(params: Params, indices: Sequence[int]) -> Params:
    """Return some models of stacked parameters, stacked."""
    return {name: tensor[list(indices)] for name, tensor in params.items()}


def stack(models: Sequence[Params]) -> Params:
    """Stack models that have the same names and shapes. Rows of one tensor, in order, are not copied."""
    return {name: _stacked([model[name] for model in models]) for name in models[0]}


def _unstacked(params: Params, number: int) -> list[Params]:
    """Return so many models that are stacked, one by one: views, which `stack` puts together without copying."""
    found: list[Params] = [{} for _ in range(number)]
    for name, tensor in params.items():
        for model, its in zip(found, tensor.unbind(), strict=True):
            model[name] = its
    return found


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Return tensors of one shape stacked; those at equal distances in one tensor as a view of it."""
    first, base, number = tensors[0], tensors[0]._base, len(tensors)
    if number > 1 and base is not None and not first.requires_grad:
        start, stride = first.data_ptr(), first.stride()
        apart = tensors[1].data_ptr() - start
        if (
            apart > 0
            and [tensor.data_ptr() for tensor in tensors] == [start + row * apart for row in range(number)]
            and all(tensor._base is base and tensor.stride() == stride for tensor in tensors)
        ):
            return first.as_strided((number, *first.shape), (apart // first.element_size(), *stride))
    return torch.stack(list(tensors))


def joined(models: Sequence[Params]) -> Params:
    """Line up stacked models that have the same names."""
    return {name: torch.cat([model[name] for model in models]) for name in models[0]}


def mix(weights: Tensor, stacked: Tensor) -> Tensor:
    """Weighted sums of stacked tensors, (sums, …), from weights (sums, models); counters are rounded."""
    sums = (weights @ stacked.to(weights.dtype).reshape(len(stacked), -1)).view(len(weights), *stacked.shape[1:])
    return sums if stacked.is_floating_point() else sums.round().to(stacked.dtype)


def flatten(heads: Params, extractors: Params, skip: frozenset[str]) -> Tensor:
    """Return stacked models as (models, parameters), without the extractors' named tensors (buffers).

    In the order of their names, which, unlike the order of a dictionary, survives being saved and sent.
    """
    parts = [tensor for _, tensor in sorted(heads.items())]
    parts += [tensor for name, tensor in sorted(extractors.items()) if name not in skip]
    return torch.cat([part.reshape(len(part), -1) for part in parts], dim=1)


def initialise(
    model: Builder | Pair,
    shape: tuple[int, ...],
    classes: int,
    topology: Topology,
    clusters: int,
    seed: int,
    identical: bool = False,
) -> tuple[Network, Ensemble]:
    """Draw the initial models of all clusters.

    A builder is called anew for every cluster: in the split topology the first extractor is shared, in the full one
    each cluster has its own. What is frozen is the first one's in both. A pair of modules keeps the extractor's weights
    as they were given (it may be pretrained) for all clusters. Heads are drawn independently, since identical ones
    would never separate; only where the server assigns clients to clusters, all of them may start `identical`.
    """
    pairs: list[Pair] = []
    for cluster in range(clusters):
        with rng.scoped(seed, "initialise", 0 if identical else cluster):
            pairs.append(model(shape, classes) if callable(model) else _with_new_head(model))
    network = Network(*pairs[0])
    distinct = pairs[:1] if topology == "split" else pairs
    extractors = stack([network.trained_part(extractor) for extractor, _ in distinct])
    heads = stack([parameters_of(head) for _, head in pairs])
    if clusters > 1 and not identical and all(_some_equal(tensor) for tensor in heads.values()):
        raise InputError("model: clusters start with equal heads and would never separate; draw heads at random")
    return network, Ensemble(extractors, heads, topology)


def _some_equal(stacked: Tensor) -> bool:
    flat = stacked.reshape(len(stacked), -1)
    return bool((torch.cdist(flat, flat) == 0).sum() > len(flat))


def _with_new_head(pair: Pair) -> Pair:
    """Copy a pair and draw its head anew, layer by layer, as its layers initialise themselves."""
    extractor, head = deepcopy(pair)
    for module in head.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
    return extractor, head


def fitting(gpu: torch.device) -> int:
    """Return how many input values a GPU can pass through a network at once."""
    return int(torch.cuda.get_device_properties(gpu).total_memory // GPU_SHARE)


def parts(inputs: Inputs) -> list[slice]:
    """Cut inputs into passes that fit memory."""
    most = fitting(inputs.device) if inputs.device.type == "cuda" else EVALUATION_ELEMENTS
    size = max(1, most // max(1, inputs[:1].numel()))
    return [slice(start, start + size) for start in range(0, len(inputs), size)]


@torch.no_grad()
def embed(network: Network, extractor: Params, inputs: Inputs) -> Tensor:
    """Z = φ(x) in evaluation mode, pass by pass; where φ is frozen, as it was computed before."""
    if network.fixed and isinstance(inputs, Scaled) and inputs.features is not None:
        return inputs.features
    chunks = [network.embed(extractor, inputs[part]) for part in parts(inputs)]
    return chunks[0] if len(chunks) == 1 else torch.cat(chunks)


@torch.no_grad()
def forward(network: Network, ensemble: Ensemble, inputs: Inputs) -> tuple[Tensor | None, Tensor]:
    """Return the shared features (split topology only) and the logits of all clusters (samples, clusters, classes).

    An extractor that all clusters share runs once, not once per head.
    """
    if ensemble.topology == "split":
        features = embed(network, ensemble.extractor(0), inputs)
        return features, network.logits(ensemble.heads, features)
    if network.fixed:
        return None, network.logits(ensemble.heads, embed(network, {}, inputs))
    logits = [
        network.logits(rows(ensemble.heads, [k]), embed(network, ensemble.extractor(k), inputs))
        for k in range(ensemble.clusters)
    ]
    return None, torch.cat(logits, dim=1)


@torch.no_grad()
def outputs_of(network: Network, ensemble: Ensemble, inputs: Inputs) -> Tensor:
    """Return the outputs of every cluster, (samples, clusters, values)."""
    return forward(network, ensemble, inputs)[1]


@torch.no_grad()
def class_log_probs(network: Network, ensemble: Ensemble, inputs: Inputs) -> Tensor:
    """Log p_k(·|x) under every cluster, (samples, clusters, classes)."""
    return torch.log_softmax(forward(network, ensemble, inputs)[1], dim=2)
