"""All clients at once: one shared pass of the extractor, and local training as one tensor program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from hcfl.client import Work, catch_up, columns_of, finish, prepare
from hcfl.data import Federation
from hcfl.engines.together import train_together
from hcfl.ensemble import Ensemble, embed, forward, rows
from hcfl.local import Job, train
from hcfl.method import Method
from hcfl.models import Network, write_out
from hcfl.state import Broadcast, ClientState, Update
from hcfl.tiers import Weights
from hcfl.training import LocalData, LocalSGD

CPU_ELEMENTS = 1 << 23
"""Input values per training step on a CPU."""

GPU_SHARE = 2000
"""Bytes of free GPU memory per input value of a training step: what activations of a wide network can take."""


@dataclass(frozen=True)
class Batched:
    """Run the participants of a round together, in chunks that fit memory."""

    def execute(
        self,
        federation: Federation,
        method: Method,
        network: Network,
        sgd: LocalSGD,
        broadcast: Broadcast,
        participants: Sequence[int],
        states: Mapping[int, ClientState],
        seed: int,
    ) -> list[tuple[Update, ClientState]]:
        """Return each participant's update and new state, as `client.take_part` would."""
        works: list[Work] = []
        data = [federation.local_data(client) for client in participants]
        weights = [
            catch_up(method, mine, broadcast, client, states.get(client))
            for client, mine in zip(participants, data, strict=True)
        ]
        looked = look_together(method, network, broadcast.ensemble, data, weights)
        for client, mine, own, seen in zip(participants, data, weights, looked, strict=True):
            works.append(prepare(method, network, sgd, mine, broadcast, client, states.get(client), seed, own, seen))
        trained = iter(train_all(network, [job for work in works for job in work.jobs]))
        return [finish(method, network, broadcast, work, [next(trained) for _ in work.jobs]) for work in works]


def look_together(
    method: Method, network: Network, ensemble: Ensemble, data: Sequence[LocalData], weights: Sequence[Weights]
) -> list[tuple[Tensor | None, Tensor]]:
    """Return for each client what `forward` gives for the clusters that it looks at; each extractor runs once."""
    columns = [columns_of(method, own) for own in weights]
    sizes = [len(mine) for mine in data]
    if ensemble.topology == "split":
        features, logits = forward(network, ensemble, torch.cat([mine.inputs for mine in data]))
        assert features is not None
        parts = zip(torch.split(features, sizes), torch.split(logits, sizes), columns, strict=True)
        return [(mine, all_[:, chosen]) for mine, all_, chosen in parts]
    found: list[dict[int, Tensor]] = [{} for _ in data]
    for column in range(ensemble.clusters):
        who = [client for client, chosen in enumerate(columns) if column in chosen]
        if who:
            inputs = torch.cat([data[client].inputs for client in who])
            with torch.no_grad():
                logits = network.logits(
                    rows(ensemble.heads, [column]), embed(network, ensemble.extractor(column), inputs)
                )
            for client, mine in zip(who, torch.split(logits, [sizes[client] for client in who]), strict=True):
                found[client][column] = mine
    return [
        (None, torch.cat([mine[column] for column in chosen], dim=1))
        for mine, chosen in zip(found, columns, strict=True)
    ]


def train_all(network: Network, jobs: Sequence[Job]) -> list[Ensemble]:
    """Train all jobs: those of the same kind together, in chunks."""
    done: dict[int, Ensemble] = {}
    kinds: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        if not job.batches or draws(network):
            done[number] = train(network, job)
        else:
            kinds.setdefault((job.plan.start.topology, job.plan.start.clusters, job.sgd), []).append(number)
    for numbers in kinds.values():
        size = chunk_size(jobs[numbers[0]])
        for start in range(0, len(numbers), size):
            chunk = numbers[start : start + size]
            done |= dict(
                zip(chunk, train_together(written_out(network), [jobs[number] for number in chunk]), strict=True)
            )
    return [done[number] for number in range(len(jobs))]


@lru_cache(maxsize=4)
def written_out(network: Network) -> Network:
    """Return the network in plain arithmetic: several clients' weights at once are too much for torch's kernels."""
    return Network(write_out(network.extractor), network.head)


def draws(network: Network) -> bool:
    """Whether layers draw random numbers in training (dropout): each client then trains by itself, with its own."""
    modules = (*network.extractor.modules(), *network.head.modules())
    return any(isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0 for module in modules)


def chunk_size(job: Job) -> int:
    """Return how many clients fit memory together."""
    inputs = job.data.inputs
    models = job.plan.start.clusters if job.plan.start.topology == "full" else 1
    values = inputs[:1].numel() * min(job.sgd.batch, len(job.data)) * models
    fit = CPU_ELEMENTS
    if inputs.is_cuda:
        fit = torch.cuda.mem_get_info(inputs.device)[0] // GPU_SHARE
    return max(1, int(fit // max(1, values)))
