"""The workload that all simulators run: data, model and what a script prints. Needs nothing but torch and numpy."""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLASSES = 10
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 5e-4


@dataclass(frozen=True)
class Workload:
    """FedAvg with all clients in every round."""

    data: str
    """An .npz with x (clients, samples + 1, …) and y; the last sample of each client is held out."""
    model: str
    """mlp, cnn or lenet."""
    batch: int
    epochs: int
    """Local epochs."""
    rounds: int
    cores: int

    @property
    def threads(self) -> int:
        """How many threads of one process work best: a second one costs an MLP this small more than it brings."""
        return 1 if self.model == "mlp" else self.cores


def arguments(description: str | None) -> Workload:
    """Read the workload from the command line; every script takes the same."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", choices=("mlp", "cnn", "lenet"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--cores", type=int, default=2)
    return Workload(**vars(parser.parse_args()))


def make(model: str, clients: int, samples: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Draw vectors like digits' (64 values) or images like CIFAR-10's (32×32×3 bytes): a pattern per class, noise.

    Return x (clients, samples, …) and y (clients, samples).
    """
    draw = np.random.default_rng(seed)
    y = draw.integers(0, CLASSES, (clients, samples))
    if model == "mlp":
        patterns = draw.normal(0, 0.6, (CLASSES, 64)).astype(np.float32)
        return patterns[y] + draw.standard_normal((clients, samples, 64), dtype=np.float32), y
    colours, shapes = draw.normal(0, 1, (CLASSES, 1, 1, 3)), draw.normal(0, 1, (CLASSES, 8, 8, 3))
    patterns = colours + shapes.repeat(4, axis=1).repeat(4, axis=2)
    x = np.empty((clients, samples, 32, 32, 3), dtype=np.uint8)
    for client in range(clients):  # one by one: all at once in floats would be gigabytes
        noise = draw.standard_normal((samples, 32, 32, 3), dtype=np.float32)
        x[client] = np.clip(128 + 30 * patterns[y[client]] + 60 * noise, 0, 255)
    return x, y


@lru_cache(maxsize=1)
def load(path: str) -> tuple[Tensor, Tensor]:
    """Read all clients' training data, standardised once: (clients, samples, …) and (clients, samples)."""
    with np.load(Path(path)) as archive:
        x = torch.from_numpy(archive["x"][:, :-1]).float()
        y = torch.from_numpy(archive["y"][:, :-1])
    axes = tuple(range(x.ndim - 1))
    return x.sub_(x.mean(axes)).div_(x.std(axes)), y


class AxisToFront(nn.Module):
    """Images are stored (N, H, W, C); torch's convolutions read that layout without a copy."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, C) → (N, C, H, W)."""
        return x.movedim(-1, 1)


def network(model: str, seed: int = 0) -> nn.Sequential:
    """Build the MLP 64-64-10, hcfl's small CNN, or BlazeFL's LeNet; the same seed gives the same start."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return _network(model)


def _network(model: str) -> nn.Sequential:
    if model == "mlp":
        return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    layers: list[nn.Module] = [AxisToFront()]
    if model == "lenet":
        for before, after in ((3, 6), (6, 16)):
            layers += [nn.Conv2d(before, after, 5), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(84, CLASSES))
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES))


class CountedLoss(nn.CrossEntropyLoss):
    """Cross-entropy that counts its calls, to see that all simulators take the same number of steps."""

    calls = 0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the mean over the batch."""
        CountedLoss.calls += 1
        return cross_entropy(input, target)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of all clients' samples that a model gets right."""
    model.eval()
    right = sum(int((model(mine).argmax(1) == labels).sum()) for mine, labels in zip(x, y, strict=True))
    return right / y.numel()


def report(name: str, seconds: Sequence[float], steps: int, reached: float) -> None:
    """Print the result as one line of JSON; the first round warms up and does not count."""
    result = {
        "name": name,
        "seconds": median(seconds[1:]),
        "rounds": len(seconds),
        "steps": steps,
        "accuracy": reached,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(result), flush=True)
