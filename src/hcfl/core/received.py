"""What clients predict with the models that they receive, by the weights that the server has of them."""

import torch
from torch import Tensor

from hcfl.core.client import catch_up, missed_by
from hcfl.core.cluster_log import follow
from hcfl.core.predictions import Predictions, predictions
from hcfl.core.setting import RoundTask
from hcfl.models.ensemble import embed
from hcfl.models.inputs import Inputs
from hcfl.tiers import Weights
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.gaussians import mixture_log_density


def known_weights(task: RoundTask, segments: Segments) -> Weights:
    """Return the weights that clients predict with, (participants, clusters): those that the server has of them.

    A client that missed a split is measured in the part that keeps its cluster, although it will choose anew.
    """
    each = []
    for client, samples in zip(task.participants, segments.sizes, strict=True):
        state, broadcast = task.states.get(client), task.broadcast
        if state is None:
            mine = catch_up(task.setting.method, broadcast, client, None, Segments((samples,)))
        else:
            mine = follow(state.weights, state.clusters, missed_by(state, broadcast), client)
        each.append(Weights(mine.client, components=mine.components))
    return Weights.join(each)


def known_shares(task: RoundTask, inputs: Inputs, segments: Segments) -> Tensor:
    """Return the weights that the participants' own inputs are predicted with, (samples, clusters)."""
    broadcast, weights = task.broadcast, known_weights(task, segments)
    each = segments.each(weights.client)
    if weights.components is not None and broadcast.gaussians is not None and broadcast.anchor is not None:
        z = broadcast.gaussians.embed(embed(task.setting.network, broadcast.anchor.extractor(0), inputs))
        density = mixture_log_density(weights.components, broadcast.gaussians.log_densities(z), segments)
        return torch.softmax(each.log() + density, dim=1)
    return each


def predicted(task: RoundTask, inputs: Inputs, segments: Segments, answers: Tensor | None = None) -> Predictions:
    """Predict the participants' own inputs with the models that they received, or those that they keep."""
    states = [task.states.get(client) for client in task.participants]
    own = [None if state is None else state.own for state in states]
    weights = known_shares(task, inputs, segments)
    return predictions(task.setting.network, task.broadcast.ensemble, inputs, segments, weights, own, answers)
