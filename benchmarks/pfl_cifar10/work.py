"""pfl-research's own CIFAR-10 benchmark: its data, network and settings. Needs nothing but torch and numpy.

1,000 users × 50 images, 50 of them in a round, batch 10, SGD with a learning rate of 0.1, one local epoch, 10,000 test
images every 10 rounds, 1,500 rounds; conv 32, conv 64, max-pooling, dropout 0.25, dense 128, dropout 0.5.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

CLASSES, SHAPE = 10, (32, 32, 3)
BATCH, LEARNING_RATE, EVERY = 10, 0.1, 10
PARAMETERS = 1_626_442


@dataclass(frozen=True)
class Work:
    """What is done, and where."""

    users: int
    samples: int
    cohort: int
    tests: int
    rounds: int
    device: str
    engine: str = "auto"


def arguments(description: str | None) -> Work:
    """Read the work from the command line; without arguments it is pfl-research's."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in (("users", 1000), ("samples", 50), ("cohort", 50), ("tests", 10_000), ("rounds", 1500)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", choices=("auto", "sequential", "batched"), default="auto", help="of hcfl")
    return Work(**vars(parser.parse_args()))


def images(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Draw images of CIFAR-10's size (N, 32, 32, 3) and labels: those of all users, then those of the test."""
    draw, number = np.random.default_rng(0), work.users * work.samples + work.tests
    y = draw.integers(0, CLASSES, number)
    patterns = draw.normal(0, 1, (CLASSES, *SHAPE)).astype(np.float32)
    x = np.empty((number, *SHAPE), dtype=np.uint8)
    for start in range(0, number, 1000):
        some = slice(start, start + 1000)
        noise = draw.standard_normal((len(y[some]), *SHAPE), dtype=np.float32)
        x[some] = np.clip(128 + 20 * patterns[y[some]] + 60 * noise, 0, 255)
    return x, y


class ChannelsFirst(nn.Module):
    """(N, H, W, C) → (N, C, H, W), without copying."""

    def forward(self, x: Tensor) -> Tensor:
        """Move the channels."""
        return x.movedim(-1, 1)


def network() -> tuple[nn.Sequential, nn.Linear]:
    """Build the extractor and the head, with Xavier's initial weights; the same in every process."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        extractor = nn.Sequential(
            ChannelsFirst(),
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
            *(nn.Flatten(), nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Dropout(0.5)),
        )
        head = nn.Linear(128, CLASSES)
        for layer in (*extractor, head):
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
    assert sum(tensor.numel() for part in (extractor, head) for tensor in part.parameters()) == PARAMETERS
    return extractor, head


def report(name: str, seconds: Sequence[float], accuracy: float) -> None:
    """Print the result as one line of JSON; the first ten rounds warm up and do not count."""
    counted = seconds[EVERY:]
    result = {"name": name, "median": median(counted), "mean": sum(counted) / len(counted), "test": accuracy}
    print(json.dumps(result), flush=True)
