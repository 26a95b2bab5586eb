"""The public code of CFL, with its errors, written out by hand: lists of clients, and a model on each client."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from sklearn.cluster import AgglomerativeClustering

from hcfl.core import server
from hcfl.core.aggregation import own_parameters
from hcfl.core.client import take_part
from hcfl.core.setting import RoundTask
from hcfl.methods import build
from hcfl.models.ensemble import Ensemble


@dataclass(frozen=True)
class Public:
    """What is left after some rounds."""

    lists: list[list[int]]
    models: Ensemble
    """One for each client."""
    averages: Ensemble
    """One for each list."""


def averaged(tensor: torch.Tensor, lists: list[list[int]], sizes: torch.Tensor) -> torch.Tensor:
    """The mean of each list's clients, weighted by their sizes."""
    return torch.stack([torch.einsum("c,c...->...", sizes[mine] / sizes[mine].sum(), tensor[mine]) for mine in lists])


def play_public(setting, start: Ensemble, tol1: float, tol2: float, rounds: int) -> Public:
    """Play rounds with all clients; a client is a cluster of its own here, whose model the lists overwrite."""
    federation, network, local = setting.federation, setting.network, build("local")
    setting = replace(setting, method=local)
    clients = list(range(federation.clients))
    models, lists, states = start.select([0] * len(clients)), [clients], {}
    state = server.begin(local, models, len(clients), federation.classes)
    for _ in range(rounds):
        message = server.broadcast(local, replace(state, ensemble=models), federation.classes)
        update, after = take_part(RoundTask(setting, message, clients, states))
        states, state = dict(zip(clients, after, strict=True)), replace(state, round=state.round + 1)
        trained = own_parameters(network, update.models)
        updates = (trained - own_parameters(network, models)).double().numpy()
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        distance, new = 1 - unit @ unit.T, []
        for mine in lists:
            together, longest = np.linalg.norm(updates[mine].mean(0)), np.linalg.norm(updates[mine], axis=1).max()
            if together < tol1 and longest > tol2 and len(mine) > 2:
                linkage = AgglomerativeClustering(2, metric="precomputed", linkage="complete")
                labels = linkage.fit_predict(np.clip(distance[mine][:, mine], 0, None))
                new += [np.flatnonzero(labels == part).tolist() for part in (0, 1)]  # positions, not mine[positions]
            else:
                new.append(mine)
        lists = new
        averages = update.models.map(partial(averaged, lists=lists, sizes=update.sizes))
        models = update.models.map(torch.clone)
        for number, mine in enumerate(lists):  # the last list that has a client overwrites its model
            for part in ("extractors", "heads"):
                for name, tensor in getattr(models, part).items():
                    tensor[mine] = getattr(averages, part)[name][number]
    return Public(lists, models, averages)
