"""Class frequencies of two groups of clients, where all give each answer equally often: how often p is below 0.05.

    python experiments/habits.py

Draws of class counts, without a run. A line has two ways to halve each client's samples: at random, as HCFL++ does, and
half of each class, as in the prototypes that clients send (docs/hcfl-plus-plus.md).
"""

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hcfl.tiers.habits import by_frequencies, gain_by_frequencies, random_halves
from hcfl.tiers.head_gain import chance

DRAWS = 40

SIZES = ((30, 20, 2), (30, 20, 4), (30, 20, 10), (60, 8, 4), (10, 20, 5), (100, 10, 10), (30, 50, 10), (60, 20, 20))
"""Clients, samples of each, classes."""


def drawn(clients: int, each: int, classes: int, seed: int) -> Tensor:
    """Draw class counts (clients, classes) from frequencies that all clients share."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.rand(classes, generator=generator).square() + 0.02
    labels = torch.multinomial(frequencies, clients * each, replacement=True, generator=generator)
    return one_hot(labels.view(clients, each), classes).sum(dim=1).double()


def halves_of_each_class(counts: Tensor) -> Tensor:
    """Return the class counts of both halves, (2, clients, classes), where the first has half of each class."""
    first = (counts / 2).ceil()
    return torch.stack([first, counts - first])


def main() -> None:
    """Print a line for each size."""
    print("| clients | samples | classes | p < 0.05, at random | p < 0.05, half of each class |\n|---|---|---|---|---|")
    for size in SIZES:
        found = []
        for halve in (random_halves, halves_of_each_class):
            gains = [gain_by_frequencies(halve(drawn(*size, seed)), by_frequencies) for seed in range(DRAWS)]
            found.append(sum(chance(gain.each) < 0.05 for gain in gains))
        print(f"| {' | '.join(map(str, [*size, *(f'{number} of {DRAWS}' for number in found)]))} |", flush=True)


if __name__ == "__main__":
    main()
