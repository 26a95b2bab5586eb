"""hcfl against the loops that public code uses: the same data, models, batches and cores in one run.

python benchmarks/public_loop.py                                         # images, small CNN
python benchmarks/public_loop.py --model mlp --samples 150 --batch 25

The loops are written here from their description. FedEM: K full models; each client in turn evaluates every model on
all its training data (E-step), trains every model by itself, and evaluates all of them again on training and held-out
data. FedAvg: a copy of the model for each client in turn.
"""

import argparse
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import numpy as np
import torch
from simulators.workload import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, make, network
from steady import hcfl_plus
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from hcfl import Federation, methods
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.methods import Method
from hcfl.models import cnn, mlp
from hcfl.runs.prepare import prepare


@dataclass(frozen=True)
class Measured:
    """What one row of the table says."""

    name: str
    seconds: float
    val: float
    clusters: int


class Client:
    """A client of the public loops; batches come with the positions of their samples."""

    def __init__(self, federation: Federation, client: int, batch: int, models: int) -> None:
        data, held_out = federation.local_data([client]), federation.val[client]
        self.samples = len(data)
        train = TensorDataset(data.inputs, data.labels, torch.arange(len(data)))
        val = TensorDataset(federation.scaling(federation.x[held_out]), federation.y[held_out])
        self.train = DataLoader(train, batch, shuffle=True)
        self.train_in_order = DataLoader(train, batch)
        self.val = DataLoader(val, batch)
        self.weights = torch.full((models,), 1 / models)


def optimizer_of(model: nn.Module) -> torch.optim.SGD:
    """Momentum starts anew every round, as in hcfl."""
    return torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)


def average(states: Sequence[dict[str, Tensor]], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Average the clients' models, weighted by their samples."""
    total = sum(sizes)
    return {
        name: sum(state[name] * (size / total) for state, size in zip(states, sizes, strict=True)) for name in states[0]
    }


@torch.no_grad()
def losses_of(model: nn.Module, loader: DataLoader) -> Tensor:
    """Return the loss of each training sample."""
    model.eval()
    return torch.cat([cross_entropy(model(x), y, reduction="none") for x, y, _ in loader])


@torch.no_grad()
def right(models: Sequence[nn.Module], weights: Tensor, loader: DataLoader) -> tuple[int, int]:
    """Return how many samples the mixture gets right, and how many there are; every model looks at every batch."""
    correct, number = 0, 0
    for x, y, *_ in loader:
        scores = sum(weight * model.eval()(x).softmax(1) for weight, model in zip(weights, models, strict=True))
        correct, number = correct + int((scores.argmax(1) == y).sum()), number + len(y)
    return correct, number


def fedem(clients: Sequence[Client], models: list[nn.Module]) -> Iterator[float]:
    """Play FedEM's rounds; yield Val."""
    while True:
        states: list[list[dict[str, Tensor]]] = [[] for _ in models]
        correct = number = 0
        for client in clients:
            mine = [deepcopy(model) for model in models]
            losses = torch.stack([losses_of(model, client.train_in_order) for model in mine], dim=1)
            gamma = torch.softmax(client.weights.log() - losses, dim=1)
            client.weights = gamma.mean(0)
            for k, model in enumerate(mine):
                model.train()
                optimizer = optimizer_of(model)
                for x, y, index in client.train:
                    optimizer.zero_grad()
                    (gamma[index, k] * cross_entropy(model(x), y, reduction="none")).mean().backward()
                    optimizer.step()
                states[k].append(model.state_dict())
            right(mine, client.weights, client.train_in_order)
            found = right(mine, client.weights, client.val)
            correct, number = correct + found[0], number + found[1]
        for model, trained in zip(models, states, strict=True):
            model.load_state_dict(average(trained, [client.samples for client in clients]))
        yield correct / number


def fedavg(clients: Sequence[Client], model: nn.Module) -> Iterator[float]:
    """Play FedAvg's rounds; yield Val."""
    while True:
        states = []
        for client in clients:
            mine = deepcopy(model).train()
            optimizer = optimizer_of(mine)
            for x, y, _ in client.train:
                optimizer.zero_grad()
                cross_entropy(mine(x), y).backward()
                optimizer.step()
            states.append(mine.state_dict())
        model.load_state_dict(average(states, [client.samples for client in clients]))
        found = [right([model], torch.ones(1), client.val) for client in clients]
        yield sum(correct for correct, _ in found) / sum(number for _, number in found)


def measure_loop(name: str, loop: Iterator[float], models: int, number: int) -> Measured:
    """Play so many rounds of a loop; the first one warms up."""
    seconds, val = [], 0.0
    for _ in range(number):
        started = perf_counter()
        val = next(loop)
        seconds.append(perf_counter() - started)
    return Measured(name, median(seconds[1:]), val, models)


def measure_hcfl(federation: Federation, model: str, batch: int, number: int, threads: int, method: Method) -> Measured:
    """Play so many rounds of a method with the engine that hcfl chooses."""
    torch.set_num_threads(threads)
    settings = {"lr": LEARNING_RATE, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY, "epochs": 1, "batch": batch}
    builder = partial(mlp, hidden=(64,)) if model == "mlp" else cnn
    prepared = prepare(from_flat(**settings), federation, builder, method)
    torch.set_num_threads(prepared.config.threads or threads)
    records = [record for _, record in rounds.play(prepared.setting, prepared.state, number)]
    seconds = median([sum(record.seconds.values()) for record in records][1:])
    name = f"{method.name}, hcfl ({prepared.config.engine})"
    return Measured(name, seconds, records[-1].val or 0.0, records[-1].clusters)


def main() -> None:
    """Print seconds a round, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("cnn", "mlp"), default="cnn")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--samples", type=int, default=450, help="each client trains on; a ninth of it is held out")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3, help="the first one does not count")
    parser.add_argument("--clusters", type=int, default=3, help="K")
    parser.add_argument("--threads", type=int, default=2, help="an MLP this small takes one in any case")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds: at least 2, since the first one does not count")

    held_out = max(1, round(options.samples / 9))
    x, y = make(options.model, options.clients, options.samples + held_out)
    owner = np.arange(options.clients).repeat(y.shape[1])
    kind = "vector" if options.model == "mlp" else "image"
    share = held_out / y.shape[1]
    federation = Federation.from_arrays(
        x.reshape(-1, *x.shape[2:]), y.ravel(), client=owner, kind=kind, val_share=share
    )

    K, number = options.clusters, options.rounds
    torch.set_num_threads(options.threads if options.model == "cnn" else 1)
    clients = [Client(federation, client, options.batch, K) for client in range(options.clients)]
    models = [network(options.model, seed) for seed in range(K)]
    public_fedem = measure_loop("fedem, public-style loop", fedem(clients, models), K, number)
    public_fedavg = measure_loop("fedavg, plain loop", fedavg(clients, network(options.model)), 1, number)
    del clients, models

    ours = partial(measure_hcfl, federation, options.model, options.batch, number, options.threads)
    our_fedem, our_fedavg = ours(methods.build("fedem", clusters=K)), ours(methods.build("fedavg"))
    our_fedrc = ours(hcfl_plus(K))

    print(f"{options.clients} clients × {options.samples}, {options.model}, batch {options.batch}\n")
    print("| method | s a round | K at the end | Val |\n|---|---|---|---|")
    for row in (public_fedem, our_fedem, our_fedrc, public_fedavg, our_fedavg):
        print(f"| {row.name} | {row.seconds:.3f} | {row.clusters} | {row.val:.3f} |")
    print("\n| ratio | |\n|---|---|")
    for ours_, theirs in ((our_fedrc, public_fedem), (our_fedem, public_fedem), (our_fedavg, public_fedavg)):
        print(f"| {theirs.name} / {ours_.name} | {theirs.seconds / ours_.seconds:.1f} |")


if __name__ == "__main__":
    main()
