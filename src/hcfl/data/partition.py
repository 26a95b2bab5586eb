"""Label shift: deals samples to clients, by a seeded generator."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hcfl.errors import InputError

Labels = NDArray[np.int64]
Rows = NDArray[np.int64]


def _sizes(samples: int, clients: int) -> list[int]:
    """Return client sizes as equal as possible."""
    if clients > samples:
        raise InputError(
            f"data.clients = {clients}: only {samples} training samples, so some client would be left without any"
        )
    return [samples // clients + (client < samples % clients) for client in range(clients)]


def iid(labels: Labels, clients: int, generator: np.random.Generator) -> list[Rows]:
    """Deal all samples at random."""
    order = generator.permutation(len(labels))
    return np.split(order, np.cumsum(_sizes(len(labels), clients))[:-1])


def lda(
    labels: Labels,
    clients: int,
    alpha: float,
    reading: Literal["total", "per-class"],
    generator: np.random.Generator,
) -> list[Rows]:
    """Draw each client's class mix from a Dirichlet, then its samples without replacement.

    `total`: α is the total concentration, Dir(α·p) with p the class proportions still left, as the field's scripts
    compute it. `per-class`: α is the concentration of one class, Dir(α·C·p): the textbook Dir(α, …, α) for balanced
    classes. In both, p counts the samples still left, so that the last clients do not get only leftovers. All clients
    are equally large and every sample is used once.
    """
    sizes = _sizes(len(labels), clients)
    piles = [generator.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    left = np.array([len(pile) for pile in piles])
    total = alpha if reading == "total" else alpha * len(piles)
    parts = []
    for size in sizes:
        held = left > 0
        concentration = total * left / left.sum()
        mix = np.zeros(len(left))
        mix[held] = generator.dirichlet(concentration[held])
        take = _draw(left, mix, size, generator)
        parts.append(np.concatenate([pile[n - t : n] for pile, n, t in zip(piles, left, take, strict=True)]))
        left = left - take
    return parts


def _draw(left: Rows, mix: NDArray[np.float64], size: int, generator: np.random.Generator) -> Rows:
    """Draw the number of samples of each class; the other classes share what an exhausted class lacks."""
    take = np.zeros_like(left)
    while (missing := size - int(take.sum())) > 0:
        available = left - take
        share = np.where(available > 0, mix, 0)
        share = share if share.sum() > 0 else available.astype(float)
        take = take + np.minimum(generator.multinomial(missing, share / share.sum()), available)
    return take


def classes_per_client(
    labels: Labels,
    clients: int,
    classes: int,
    grouping: Literal["grouped", "random"],
    generator: np.random.Generator,
) -> list[Rows]:
    """Give every client samples of `classes` classes (fewer only where a class has fewer samples than holders).

    `grouped`: classes are shuffled into disjoint groups and clients dealt evenly over the groups. `random`: each
    client draws its classes by itself. A class that ends in no group, or that no client draws, is left out.
    """
    present = np.unique(labels)
    total = len(present)
    if classes > total:
        raise InputError(
            f"data.classes_per_client = {classes}: the data have only {total} classes, so 1 to {total} is allowed"
        )
    if grouping == "grouped":
        groups = generator.permutation(present)[: total // classes * classes].reshape(-1, classes)
        held = groups[generator.permutation(clients) % len(groups)]
    else:
        held = np.stack([generator.choice(present, classes, replace=False) for _ in range(clients)])
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label in present:
        holders = np.flatnonzero((held == label).any(axis=1))
        if len(holders):
            rows = generator.permutation(np.flatnonzero(labels == label))
            for holder, share in zip(holders, np.array_split(rows, len(holders)), strict=True):
                parts[holder].append(share)
    merged = [np.concatenate(part) for part in parts]
    _check_no_client_empty(merged)
    return merged


def _check_no_client_empty(parts: Sequence[Rows]) -> None:
    empty = [client for client, part in enumerate(parts) if len(part) == 0]
    if empty:
        raise InputError(
            f"data.clients = {len(parts)}: client {empty[0]} would be left without samples; use fewer clients"
        )


def holdout(labels: Labels, share: float, generator: np.random.Generator) -> tuple[Rows, Rows]:
    """Set a stratified share of the samples aside; return the rows that stay and those set aside."""
    aside = []
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        aside.append(rows[: round(share * len(rows))])
    held_out = np.sort(np.concatenate(aside))
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out
