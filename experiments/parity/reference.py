"""Federated loops written by hand, the way public implementations work: modules, optimisers, loops over clients.

Nothing here comes from hcfl, and hcfl has nothing of this. What both sides share is handed in as a `Problem`: the
data, the models of the start, and the order of the batches.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Data = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass
class Problem:
    """What a loop is given, and the memory of its clients' optimisers."""

    train: Sequence[Data]
    """Of each client."""
    val: Sequence[Data]
    batches: Callable[[int, int], list[Tensor]]
    """(round, client) → positions among the client's samples, batch by batch; rounds count from 1."""
    start: Sequence[nn.Module]
    """The models of round 1, one for each cluster."""
    classes: int
    rounds: int
    lr: float
    momentum: float
    weight_decay: float
    momentum_kept: bool = False
    """Whether a client's optimiser remembers its momentum from round to round."""
    one_optimiser: bool = True
    """Who trains one model has one optimiser for it, whichever cluster's it is; else one for each cluster."""
    k_means_seed: int = 0
    """What k-means draws its first centres by, where a method starts with it."""
    memory: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    """Of optimisers, by client and place."""

    @property
    def clients(self) -> range:
        """The clients' numbers."""
        return range(len(self.train))

    def place(self, cluster: int) -> int:
        """Return which of its optimisers a client with one model trains a cluster's model by."""
        return 0 if self.one_optimiser else cluster

    @property
    def sizes(self) -> list[int]:
        """N_i."""
        return [len(labels) for _, labels in self.train]


@dataclass
class After:
    """What is there after a round."""

    models: list[nn.Module]
    weights: Tensor
    """(clients, models): how much each client predicts with each model."""
    val: float = 0.0

    @property
    def members(self) -> list[int]:
        """The model with the largest weight, of each client."""
        return self.weights.argmax(dim=1).tolist()


Loop = Callable[[Problem], Iterator[After]]


# What all loops need.


def trained(
    problem: Problem, model: nn.Module, client: int, round_: int, place: int = 0, weights: Tensor | None = None
) -> nn.Module:
    """Train a copy of a model on a client's data: torch's own SGD on the (weighted) mean cross-entropy of a batch."""
    inputs, labels = problem.train[client]
    mine = deepcopy(model)
    mine.train()
    optimizer = torch.optim.SGD(
        mine.parameters(), lr=problem.lr, momentum=problem.momentum, weight_decay=problem.weight_decay
    )
    if problem.momentum_kept and (client, place) in problem.memory:
        optimizer.load_state_dict(problem.memory[client, place])
    for batch in problem.batches(round_, client):
        optimizer.zero_grad()
        losses = cross_entropy(mine(inputs[batch]), labels[batch], reduction="none")
        loss = losses.mean() if weights is None else (losses * weights[batch]).mean()
        loss.backward()
        optimizer.step()
    if problem.momentum_kept:
        problem.memory[client, place] = optimizer.state_dict()
    return mine


def average(models: Sequence[nn.Module], sizes: Sequence[int]) -> nn.Module:
    """Add up Σ N_i θ_i / Σ N_i, tensor by tensor."""
    mean = deepcopy(models[0])
    total = sum(sizes)
    with torch.no_grad():
        for target, *sources in zip(mean.parameters(), *(model.parameters() for model in models), strict=True):
            target.zero_()
            for source, size in zip(sources, sizes, strict=True):
                target += source * (size / total)
    return mean


@torch.no_grad()
def sample_losses(model: nn.Module, data: Data) -> Tensor:
    """Cross-entropy of each sample."""
    model.eval()
    inputs, labels = data
    return cross_entropy(model(inputs), labels, reduction="none")


@torch.no_grad()
def accuracy(models: Sequence[nn.Module], weights: Tensor, data: Sequence[Data]) -> float:
    """Share of all clients' held-out samples that each one's mixture of models gets right."""
    right, samples = 0, 0
    for row, (inputs, labels) in zip(weights, data, strict=True):
        probabilities = torch.zeros((), dtype=inputs.dtype)
        for weight, model in zip(row.tolist(), models, strict=True):
            if weight > 0:
                model.eval()
                probabilities = probabilities + weight * torch.softmax(model(inputs), dim=1)
        if len(labels):
            right += int((probabilities.argmax(dim=1) == labels).sum())
            samples += len(labels)
    return right / samples


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def one_hot(choices: Sequence[int], models: int) -> Tensor:
    """Weights of clients that belong to one model each."""
    return torch.tensor([[float(choice == k) for k in range(models)] for choice in choices])


def averaged_by_choice(
    problem: Problem, models: list[nn.Module], locals_: Sequence[nn.Module], choices: Sequence[int]
) -> list[nn.Module]:
    """Average each cluster over the clients that chose it; a cluster that no client chose keeps its model."""
    found = []
    for k, model in enumerate(models):
        who = [client for client in problem.clients if choices[client] == k]
        found.append(average([locals_[i] for i in who], [problem.sizes[i] for i in who]) if who else deepcopy(model))
    return found


# The methods.


def fedavg(problem: Problem) -> Iterator[After]:
    """FedAvg: every client trains the one model."""
    model = problem.start[0]
    for round_ in range(1, problem.rounds + 1):
        locals_ = [trained(problem, model, client, round_) for client in problem.clients]
        model = average(locals_, problem.sizes)
        yield measured(problem, [model], torch.ones(len(problem.train), 1))


def ifca(problem: Problem) -> Iterator[After]:
    """IFCA: every client trains the model with the lowest loss on its data."""
    models = list(problem.start)
    for round_ in range(1, problem.rounds + 1):
        choices, locals_ = [], []
        for client in problem.clients:
            losses = [float(sample_losses(model, problem.train[client]).mean()) for model in models]
            best = losses.index(min(losses))
            choices.append(best)
            locals_.append(trained(problem, models[best], client, round_, problem.place(best)))
        models = averaged_by_choice(problem, models, locals_, choices)
        yield measured(problem, models, one_hot(choices, len(models)))


def fedem(problem: Problem) -> Iterator[After]:
    """FedEM: every client is a mixture of all models."""
    return _mixtures(problem, correlation=False)


def fedrc(problem: Problem) -> Iterator[After]:
    """FedRC: the same with p_k(y|x) / P_k(y) for p_k(y|x)."""
    return _mixtures(problem, correlation=True)


def _mixtures(problem: Problem, correlation: bool) -> Iterator[After]:
    models, count = list(problem.start), len(problem.start)
    mixture = [[1 / count] * count for _ in problem.clients]
    shares = torch.full((count, problem.classes), 1 / problem.classes)  # P_k(y), which in round 1 changes nothing
    for round_ in range(1, problem.rounds + 1):
        locals_: list[list[nn.Module]] = []
        counts = torch.zeros(count, problem.classes)
        for client, data in enumerate(problem.train):
            likelihood = torch.stack([torch.exp(-sample_losses(model, data)) for model in models], dim=1)
            posterior = torch.zeros(len(data[1]), count)
            for sample, label in enumerate(data[1].tolist()):
                scores = []
                for k in range(count):
                    score = mixture[client][k] * float(likelihood[sample, k])
                    scores.append(score / float(shares[k, label]) if correlation else score)
                for k in range(count):
                    posterior[sample, k] = scores[k] / sum(scores)
                    counts[k, label] += posterior[sample, k]
            mixture[client] = [float(posterior[:, k].mean()) for k in range(count)]
            locals_.append([trained(problem, models[k], client, round_, k, posterior[:, k]) for k in range(count)])
        models = [average([mine[k] for mine in locals_], problem.sizes) for k in range(count)]
        shares = torch.stack([row.clamp_min(1e-8) / row.clamp_min(1e-8).sum() for row in counts])
        yield measured(problem, models, torch.tensor(mixture))


def fesem(clusters: int) -> Loop:
    """FeSEM as its authors start it: all train one model first, and k-means of what they trained makes the clusters."""

    def loop(problem: Problem) -> Iterator[After]:
        locals_ = [trained(problem, problem.start[0], client, 1) for client in problem.clients]
        points = torch.stack([flat(model) for model in locals_]).double().numpy()
        choices = KMeans(clusters, n_init=10, random_state=problem.k_means_seed).fit_predict(points).tolist()
        models = averaged_by_choice(problem, [problem.start[0]] * clusters, locals_, choices)
        yield measured(problem, models, one_hot(choices, clusters))
        yield from _nearest_centres(problem, models, choices, 2)

    return loop


def fesem_independent(problem: Problem) -> Iterator[After]:
    """FeSEM from K models drawn independently: a client that has no cluster yet takes the one with the lowest loss."""
    return _nearest_centres(problem, list(problem.start), [-1 for _ in problem.clients], 1)


def _nearest_centres(problem: Problem, models: list[nn.Module], choices: list[int], first: int) -> Iterator[After]:
    """Train the model of one's cluster, then join the cluster that is nearest to what came out."""
    for round_ in range(first, problem.rounds + 1):
        locals_, nearest = [], []
        for client in problem.clients:
            own = choices[client]
            if own < 0:
                losses = [float(sample_losses(model, problem.train[client]).mean()) for model in models]
                own = losses.index(min(losses))
            locals_.append(trained(problem, models[own], client, round_, problem.place(own)))
            nearest.append(_nearest(locals_[-1], models))
        choices = nearest
        models = averaged_by_choice(problem, models, locals_, choices)
        yield measured(problem, models, one_hot(choices, len(models)))


def _nearest(model: nn.Module, centres: Sequence[nn.Module]) -> int:
    distances = [float(torch.linalg.vector_norm(flat(model) - flat(centre))) for centre in centres]
    return distances.index(min(distances))


def cfl(tol1: float, tol2: float) -> Loop:
    """CFL: a cluster that stands still while its clients pull is cut in two by complete linkage of update cosines."""

    def loop(problem: Problem) -> Iterator[After]:
        clusters, models = [list(problem.clients)], [problem.start[0]]
        for round_ in range(1, problem.rounds + 1):
            own = {client: k for k, members in enumerate(clusters) for client in members}
            locals_ = [trained(problem, models[own[client]], client, round_) for client in problem.clients]
            updates = [flat(locals_[client]) - flat(models[own[client]]) for client in problem.clients]
            for members in list(clusters):
                if must_split([updates[i] for i in members], tol1, tol2):
                    first, second = sorted(halves(cosine_distances([updates[i] for i in members])), key=_larger_first)
                    clusters[clusters.index(members)] = [members[position] for position in first]
                    clusters.append([members[position] for position in second])
            models = [
                average([locals_[i] for i in members], [problem.sizes[i] for i in members]) for members in clusters
            ]
            own = {client: k for k, members in enumerate(clusters) for client in members}
            yield measured(problem, models, one_hot([own[i] for i in problem.clients], len(models)))

    return loop


def _larger_first(part: Sequence[int]) -> tuple[int, int]:
    return -len(part), part[0]


def cfl_lost_ids(tol1: float, tol2: float) -> Loop:
    """CFL with the error of public code: the parts of a split are positions in the cluster, and taken for client ids.

    A cluster is averaged over the clients that its list names, whichever model they trained, and these clients receive
    the average; a client in two lists receives the later one. A client in no list continues with its own model, alone.
    """

    def loop(problem: Problem) -> Iterator[After]:
        clusters, held = [list(problem.clients)], [problem.start[0] for _ in problem.clients]
        for round_ in range(1, problem.rounds + 1):
            locals_ = [trained(problem, held[client], client, round_) for client in problem.clients]
            updates = [flat(locals_[client]) - flat(held[client]) for client in problem.clients]
            lists: list[list[int]] = []
            for members in clusters:
                if must_split([updates[i] for i in members], tol1, tol2):
                    lists.extend(halves(cosine_distances([updates[i] for i in members])))  # not members[position]
                else:
                    lists.append(members)
            clusters, held = lists, list(locals_)
            models = [
                average([locals_[i] for i in members], [problem.sizes[i] for i in members]) for members in clusters
            ]
            choices = [-1 for _ in problem.clients]
            for k, members in enumerate(clusters):
                for client in members:
                    held[client], choices[client] = models[k], k
            for client in problem.clients:
                if choices[client] < 0:
                    choices[client] = len(models)
                    models.append(held[client])
            yield measured(problem, models, one_hot(choices, len(models)))

    return loop


def must_split(updates: Sequence[Tensor], tol1: float, tol2: float) -> bool:
    """Whether a cluster of more than two is nearly stationary while some client is not."""
    together = float(torch.linalg.vector_norm(sum(updates[1:], updates[0]) / len(updates)))
    longest = max(float(torch.linalg.vector_norm(update)) for update in updates)
    return len(updates) > 2 and together < tol1 and longest > tol2


def cosine_distances(vectors: Sequence[Tensor]) -> list[list[float]]:
    """1 − cos of all pairs."""
    return [
        [float(1 - a @ b / (torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b))) for b in vectors]
        for a in vectors
    ]


def halves(distances: Sequence[Sequence[float]]) -> tuple[list[int], list[int]]:
    """Join the two groups whose farthest members are nearest, until two are left; the one that was made last is first.

    Return positions in the matrix.
    """
    groups = [[position] for position in range(len(distances))]
    while len(groups) > 2:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = min(pairs, key=lambda pair: max(distances[i][j] for i in groups[pair[0]] for j in groups[pair[1]]))
        joined = sorted(groups[a] + groups[b])
        groups = [group for k, group in enumerate(groups) if k not in (a, b)] + [joined]
    return groups[1], groups[0]


def measured(problem: Problem, models: list[nn.Module], weights: Tensor) -> After:
    """Return a round's outcome with its Val."""
    return After(models, weights, accuracy(models, weights, problem.val))
