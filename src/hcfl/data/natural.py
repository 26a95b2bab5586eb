"""Natural federations: the samples say which client holds them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    newcomers = tuple(
        newcomer(name, rows, test, samples.y[test], samples, seed) for name, rows in groups.items() if len(rows) > 1
    )
    dealt = Dealt(samples, samples.y, tuple(names.tolist()), parts, test, newcomers, truth, samples.notes, times=times)
    return federation(dealt, config.model_copy(update={"partition": "natural"}), seed)


def _truth(source: str, names: NDArray[Any], index: Rows, parts: Sequence[Rows], concepts: NDArray[Any]) -> Truth:
    """Return the concept of each client; a client has one, at each step; without samples there, its number is −1."""
    each = [np.unique(index[part]) for part in parts]
    for name, found in zip(names, each, strict=True):
        if len(found) > 1:
            raise InputError(f"{source}: client {name} has {len(found)} concepts, but a client has one")
    return Truth(np.array([found[0] if len(found) else -1 for found in each]), None, tuple(concepts.tolist()))
