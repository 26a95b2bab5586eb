"""Natural federations: the samples say which client holds them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hcfl import rng
from hcfl.config import DataConfig
from hcfl.data.dealt import Dealt, federation
from hcfl.data.federation import Federation, Truth
from hcfl.data.held_out import newcomer
from hcfl.data.samples import Rows, Samples
from hcfl.data.times import NO_STEPS, by_time
from hcfl.errors import InputError

NOT_NATURAL = (
    "clients",
    "samples",
    "alpha",
    "alpha_reading",
    "classes_per_client",
    "grouping",
    "concepts",
    "beta",
    "corrupted_share",
)
"""Settings of simulated federations."""

MOST_NEWCOMERS = 2_000
"""Newcomers find their weights one after another, in every round that is measured."""


def natural(samples: Samples, config: DataConfig, seed: int) -> Federation:
    """Return the federation of clients that the samples name; settings that would change it are refused."""
    assert samples.client is not None
    if config.partition not in (None, "natural"):
        raise InputError(f"data.partition = {config.partition}: {samples.name} says itself which client holds what")
    for name in NOT_NATURAL:
        if (value := getattr(config, name)) is not None:
            raise InputError(f"data.{name} = {value}: {samples.name} says itself which client holds what")
    if config.noise != "none":
        raise InputError(f"data.noise = {config.noise}: {samples.name} is a natural federation, its labels stay")
    if config.copies > 1:
        raise InputError(f"data.copies = {config.copies}: {samples.name} says itself which client holds what")
    if config.corruptions != "none":
        raise InputError(f"data.corruptions = {config.corruptions}: {samples.name} is a natural federation, as it is")
    test_mask = np.zeros(len(samples.y), dtype=bool) if samples.test is None else samples.test
    names, owner = np.unique(samples.client[~test_mask], return_inverse=True)
    pool = np.flatnonzero(~test_mask)
    order = np.argsort(owner, kind="stable")
    parts = np.split(pool[order], np.cumsum(np.bincount(owner))[:-1])

    test = np.flatnonzero(test_mask)
    times = by_time(samples, config, parts) if config.steps > 1 else NO_STEPS
    if samples.concept is None:
        truth, groups = None, {"everybody": np.arange(len(test))}
    else:
        concepts, index = np.unique(samples.concept, return_inverse=True)
        truths = tuple(_truth(samples.name, names, index, held, concepts) for held in times.parts or (parts,))
        truth, times = truths[0], replace(times, truths=truths if times.parts else ())
        groups = {f"concept {name}": np.flatnonzero(index[test] == k) for k, name in enumerate(concepts)}
    each, notes = list(groups.items()), samples.notes
    if not _held_back(samples, test_mask, names, config.test_clients):
        kind = config.test_clients
    elif (kind := config.test_clients or "each") == "each":
        each, told = _by_client(groups, samples.client[test], seed)
        notes += told
    newcomers = tuple(
        newcomer(name, rows, test, samples.y[test], samples, seed) for name, rows in each if len(rows) > 1
    )
    dealt = Dealt(samples, samples.y, tuple(names.tolist()), parts, test, newcomers, truth, notes, times=times)
    return federation(dealt, config.model_copy(update={"partition": "natural", "test_clients": kind}), seed)


def _held_back(samples: Samples, test: NDArray[np.bool_], names: NDArray[Any], asked: str | None) -> bool:
    """Return whether the test set is from clients that train nothing; where the user says so, it must be."""
    assert samples.client is not None
    both = np.intersect1d(samples.client[test], names)
    if asked == "each" and len(both):
        raise InputError(f"data.test_clients = each: client {both[0]} has rows of the test set, but also trains")
    return bool(test.any()) and not len(both)


def _by_client(
    groups: Mapping[str, Rows], client: NDArray[Any], seed: int
) -> tuple[list[tuple[str, Rows]], tuple[str, ...]]:
    """Return the name and the rows of a newcomer for each client of each group, and what the user should know.

    Newcomers of a group share its name, so that their samples are averaged. A client with a single sample cannot both
    choose weights and be measured: such clients are one newcomer together.
    """
    each: list[tuple[str, Rows]] = []
    for name, rows in groups.items():
        _, owner, sizes = np.unique(client[rows], return_inverse=True, return_counts=True)
        order = np.argsort(owner, kind="stable")
        parts = np.split(rows[order], np.cumsum(sizes)[:-1])
        single = [part for part in parts if len(part) == 1]
        each += [(name, part) for part in parts if len(part) > 1]
        each += [(name, np.concatenate(single))] if single else []
    if len(each) <= MOST_NEWCOMERS:
        return each, ()
    chosen = np.sort(rng.numpy_generator(seed, "test clients").permutation(len(each))[:MOST_NEWCOMERS])
    told = f"of {len(each)} clients in the test set, {MOST_NEWCOMERS} measure Test, drawn by the seed"
    return [each[place] for place in chosen], (told,)


def _truth(source: str, names: NDArray[Any], index: Rows, parts: Sequence[Rows], concepts: NDArray[Any]) -> Truth:
    """Return the concept of each client; a client has one, at each step; without samples there, its number is −1."""
    each = [np.unique(index[part]) for part in parts]
    for name, found in zip(names, each, strict=True):
        if len(found) > 1:
            raise InputError(f"{source}: client {name} has {len(found)} concepts, but a client has one")
    return Truth(np.array([found[0] if len(found) else -1 for found in each]), None, tuple(concepts.tolist()))
