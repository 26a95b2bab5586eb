"""Chooses the models of a cluster, of a client, or of given weights, and predicts raw inputs with them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from hcfl.core.cluster_log import follow
from hcfl.core.predictions import Predictions
from hcfl.core.state import PersonalPart, ServerState
from hcfl.errors import InputError
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble, embed, outputs_of
from hcfl.models.inputs import Scaled, Scaling
from hcfl.personal import making
from hcfl.runs.run import Run
from hcfl.serving.newcomers import Assignment
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.gaussians import Gaussians, mixture_log_density
from hcfl.tiers.weighting import one_hot


@dataclass(frozen=True)
class Density:
    """How likely inputs are under each model, where the formulation has it: weights then differ from sample to sample.

    Inputs are embedded by the initial extractor and mixed from Gaussians in each model's own way.
    """

    anchor: Ensemble
    gaussians: Gaussians
    components: Tensor
    """ρ, (1, models, Gaussians)."""


@dataclass(frozen=True)
class Blend:
    """The models of a prediction and their weights: Σ_k ω̃_k softmax(head_k(z))."""

    models: Ensemble
    weights: Tensor
    """(models,): sums to 1."""
    scaling: Scaling
    density: Density | None = None
    personal: PersonalPart | None = None
    """What the client adds to them, where it was made."""

    @property
    def main(self) -> int:
        """The model whose features the personal part is on."""
        return int(self.weights.argmax())

    def to(self, device: torch.device) -> "Blend":
        """Move the models; a density, which few methods have, is on the CPU but for its extractor."""
        density = self.density and Density(
            self.density.anchor.to(device), self.density.gaussians, self.density.components
        )
        return Blend(self.models.to(device), self.weights, self.scaling.to(device), density, self.personal)


WeightsLike = Assignment | Mapping[Any, float] | ArrayLike
"""Weights from the user: an assignment, a mapping from cluster ids, or one number for each cluster."""


def chosen(run: Run, client: Any = None, cluster: Any = None, weights: WeightsLike | None = None) -> Blend:
    """Return the models of a client, of a cluster, or of weights; a run's only cluster needs no name."""
    clusters = run.served.server.clusters
    given = [
        name for name, value in (("client", client), ("cluster", cluster), ("weights", weights)) if value is not None
    ]
    if len(given) > 1 or (not given and len(clusters) > 1):
        found = " and ".join(given) or "client = None"
        raise InputError(f"{found}: one of client, cluster ({_listed(clusters)}) and weights must be given")
    if client is not None:
        return of_client(run, client)
    if isinstance(weights, Assignment):
        return of_weights(run, by_id(clusters, weights.weights), weights.components)
    if isinstance(weights, Mapping):
        return of_weights(run, by_id(clusters, weights))
    if weights is not None:
        return of_weights(run, torch.from_numpy(np.asarray(weights, dtype=np.float32)))
    return of_cluster(run, clusters[0] if cluster is None else cluster)


def of_weights(run: Run, weights: Tensor, components: Tensor | None = None, server: ServerState | None = None) -> Blend:
    """Return the clusters' models with weights, (clusters,), by default those that are served; none of weight 0."""
    server = server or run.served.server
    if weights.shape != (len(server.clusters),) or not bool((weights >= 0).all()) or not float(weights.sum()) > 0:
        known = _listed(server.clusters)
        raise InputError(f"weights = {weights.tolist()}: must be a number from 0 on for each of the clusters {known}")
    columns = torch.nonzero(weights).flatten().tolist()
    density = None
    if server.gaussians is not None and server.anchor is not None and components is not None:
        density = Density(server.anchor, server.gaussians, components[:, columns])
    chosen = (weights / weights.sum())[columns]
    return Blend(server.ensemble.select(columns), chosen, run.federation.scaling, density)


def of_cluster(run: Run, cluster: int | str) -> Blend:
    """Return one cluster's own model."""
    clusters = run.served.server.clusters
    column = _position(clusters, cluster)
    if column is None:
        raise InputError(f"cluster = {cluster}: is not one of this run's clusters {_listed(clusters)}")
    return of_weights(run, one_hot(column, len(clusters)))


def of_client(run: Run, name: Any) -> Blend:
    """Return a client's own model where it keeps one, else its mixture of the clusters'; with its personal part.

    A personal part belongs to the models of the last round, and is served with them.
    """
    names = run.federation.client_names
    client = _position(names, name)
    if client is None:
        raise InputError(f"client = {name}: is not one of this run's {len(names)} clients {_listed(names)}")
    part = run.state.personal.get(client)
    state = run.served if part is None else run.state
    server, known = state.server, state.clients.get(client)
    if part is not None and part.own is not None and part.bias is None and not float(part.weights[0]):
        rest = None if part.variance is None else PersonalPart(part.kind, variance=part.variance)
        return Blend(part.own, part.weights[1:], run.federation.scaling, personal=rest)
    if known is not None and known.own is not None:
        return Blend(known.own, torch.ones(1), run.federation.scaling, personal=part)
    components = run.method.uniform_components(len(server.clusters))
    if known is not None:
        on_its_machine = run.method.local.kept or (components is not None and known.weights.components is None)
        if on_its_machine:  # a real client on Flower
            raise InputError(f"client = {name}: keeps what it predicts with to itself, on its own machine")
        missed = [change for change in server.changes if change.round >= known.round]
        components = follow(known.weights, known.clusters, missed, client).components
    return replace(of_weights(run, server.weights[client], components, server), personal=part)


def by_id(clusters: tuple[int, ...], weights: Mapping[Any, float]) -> Tensor:
    """Return weights that were given by cluster id, (clusters,); clusters that are not named have none."""
    table = torch.zeros(len(clusters))
    for cluster, weight in weights.items():
        column = _position(clusters, cluster)
        if column is None:
            raise InputError(f"weights: {cluster} is not one of this run's clusters {_listed(clusters)}")
        table[column] = weight
    return table


def _position(known: Sequence[Any], name: Any) -> int | None:
    """Return the position of a name; names from the command line are text."""
    shown = [str(each) for each in known]
    return shown.index(str(name)) if str(name) in shown else None


MOST_LISTED = 12
"""The largest number of names in a message."""


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(map(str, names[:MOST_LISTED])) + (", …" if len(names) > MOST_LISTED else "")


def probabilities(network: Network, blend: Blend, inputs: Tensor) -> Tensor:
    """Return what users read of raw inputs, on the CPU: class probabilities, or what else the task is about."""
    device = blend.scaling.mean.device
    scaled = Scaled(inputs.to(device), blend.scaling)
    weights = blend.weights.expand(len(inputs), -1)
    if (density := blend.density) is not None:
        features = embed(network, density.anchor.extractor(0), scaled)
        log_densities = density.gaussians.log_densities(density.gaussians.embed(features))
        each = mixture_log_density(density.components, log_densities, Segments((len(inputs),)))
        weights = torch.softmax(weights.log() + each, dim=1)
    distribution = network.task.distribution(outputs_of(network, blend.models, scaled))
    mixed = network.task.mix(distribution, weights.to(device))
    if blend.personal is not None:
        group = Predictions(mixed, embed(network, blend.models.extractor(blend.main), scaled))
        mixed = making.predict(network, blend.personal, group, scaled)
    return network.task.shown(mixed).cpu()
