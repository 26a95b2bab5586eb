"""Builds a federation from samples, settings and a seed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hcfl.config import Config, DataConfig
from hcfl.data.federation import Federation
from hcfl.data.natural import natural
from hcfl.data.samples import Samples
from hcfl.data.simulated import simulated
from hcfl.data.sources import check_arrays, read
from hcfl.data.tables.samples import samples_of
from hcfl.data.times import check_time


def build(config: DataConfig, seed: int) -> Federation:
    """Build the federation of a configuration."""
    return assemble(read(config), config, seed)


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    client: ArrayLike | None,
    concept: ArrayLike | None,
    test: ArrayLike | None,
    name: str,
    seed: int,
    settings: Mapping[str, Any],
) -> Federation:
    """Build a federation from a user's arrays."""
    config = Config.parse({"data": {"source": name, **settings}}).data
    optional = {"client": client, "concept": concept, "test": test}
    given = {key: np.asarray(value) for key, value in optional.items() if value is not None}
    samples = check_arrays(
        name, np.asarray(x), np.asarray(y), **given, kind=config.kind, task=config.task, scale=config.scale
    )
    return assemble(samples, config, seed)


def from_frame(table: Any, name: str, seed: int, settings: Mapping[str, Any]) -> Federation:
    """Build a federation from a user's data frame."""
    config = Config.parse({"data": {"source": name, **settings}}).data
    return assemble(samples_of(table, config, name), config, seed)


def assemble(samples: Samples, config: DataConfig, seed: int) -> Federation:
    """Deal samples to simulated clients, or use the clients that the samples name."""
    check_time(config)
    if samples.begin is not None and samples.client is None:  # one series, which must not be dealt at random
        samples = replace(samples, client=np.zeros(len(samples.y), dtype=np.int64))
    if samples.client is not None:
        return natural(samples, config, seed)
    return simulated(samples, config, seed)
