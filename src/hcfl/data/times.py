"""Steps of time: which of its samples a client holds at each step, and which concept and corruption they have."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hcfl import rng
from hcfl.config import DataConfig
from hcfl.data import drift, feature_shift, partition
from hcfl.data.drift import Schedule
from hcfl.data.feature_shift import Corruption
from hcfl.data.federation import Truth
from hcfl.data.samples import Rows, Samples
from hcfl.errors import InputError


def check_time(config: DataConfig) -> None:
    """Refuse settings of steps where there is one step."""
    if config.steps > 1:
        return
    for name in ("drift", "drift_of", "step_alpha", "window"):
        if (value := getattr(config, name)) != DataConfig.model_fields[name].default:
            raise InputError(f"data.{name} = {value}: needs data.steps above 1")


@dataclass(frozen=True)
class Times:
    """Clients' samples by step, where there are steps."""

    parts: tuple[tuple[Rows, ...], ...]
    """By step, the rows of each client."""
    plan: Schedule | None = None
    truths: tuple[Truth, ...] = ()
    """By step, where the concepts are known."""

    @property
    def cameras(self) -> tuple[tuple[Corruption, ...], ...] | None:
        """By step, the corruption of each client."""
        return None if self.plan is None else self.plan.corruptions

    def concepts_of(self, client: int) -> Iterator[tuple[Rows, Rows]]:
        """Return a client's rows of each step with the concept of each, where they were planned."""
        if self.plan is not None:
            for step, parts in enumerate(self.parts):
                yield parts[client], mixed(self.plan.shares[client, step], len(parts[client]))


NO_STEPS = Times(())


def mixed(shares: NDArray[np.float64], samples: int) -> Rows:
    """Return a concept for each of some samples, in the given shares.

    >>> mixed(np.array([0.5, 0.0, 0.5]), 4).tolist()
    [0, 0, 2, 2]
    """
    places = (np.arange(samples) + 0.5) / max(samples, 1)
    return np.searchsorted(np.cumsum(shares), places, side="right").clip(max=len(shares) - 1)


def by_time(samples: Samples, config: DataConfig, parts: list[Rows]) -> Times:
    """Cut the clients' samples into steps with equally many samples, by the time at which they were taken.

    Where there are as many different times as steps, each time is a step.
    """
    if samples.time is None:
        raise InputError(f"data.steps = {config.steps}: needs data.time, the column that says when a row was taken")
    if config.drift != "none":
        raise InputError(f"data.drift = {config.drift}: {samples.name} is a natural federation, as it is")
    everything = samples.time[np.concatenate(parts)]
    times = np.unique(everything)
    cuts = np.arange(1, config.steps)
    edges = times[1:] if len(times) == config.steps else np.quantile(everything, cuts / config.steps)
    step = np.searchsorted(edges, samples.time, side="right")
    dealt = tuple(tuple(part[step[part] == now] for part in parts) for now in range(config.steps))
    if empty := [now + 1 for now, held in enumerate(dealt) if not sum(map(len, held))]:
        raise InputError(f"data.steps = {config.steps}: no sample was taken at step {empty[0]}; use fewer steps")
    return Times(dealt)


def planned(samples: Samples, config: DataConfig, parts: list[Rows], start: Rows, concepts: int, seed: int) -> Times:
    """Deal each client's samples to steps, and plan which concept and corruption they have."""
    steps, generator = config.steps, rng.numpy_generator(seed, "drift")
    before = start_corruptions(config, seed)
    if config.drift in drift.KINDS:
        if config.drift != "none" and config.drift_of != "corruption" and concepts == 1:
            raise InputError(f"data.drift = {config.drift}: concepts change only where data.beta is above 0")
        cameras = before or (Corruption(feature_shift.ORIGINAL, 1),) * len(parts)
        after = feature_shift.draw(len(parts), rng.derive(seed, "drift"), share=1.0)
        found = drift.moments(config.drift, start, concepts, steps, generator)
        changes = drift.simulated_changes(found, config.drift_of, start, concepts, cameras, after)
    else:
        changes = drift.read_changes(config.drift, len(parts), steps, concepts)
    if any(change.corruption is not None for change in changes):
        before = before or (Corruption(feature_shift.ORIGINAL, 1),) * len(parts)
    images = copied_images(samples, config)
    dealt = [
        _steps_of(part, samples.y, config, images, rng.numpy_generator(seed, "steps", client), client)
        for client, part in enumerate(parts)
    ]
    return Times(tuple(zip(*dealt, strict=True)), drift.schedule(changes, start, concepts, steps, before))


def start_corruptions(config: DataConfig, seed: int) -> tuple[Corruption, ...] | None:
    """Draw the corruption of each client at the first step, where clients have some."""
    assert config.clients is not None
    return feature_shift.draw(config.clients, seed, config.corrupted_share) if config.corruptions == "random" else None


def _steps_of(
    part: Rows, y: Rows, config: DataConfig, images: int | None, generator: np.random.Generator, client: int
) -> list[Rows]:
    """Deal a client's samples to steps, at random or with other classes at each step; copies of an image together."""
    same = part if images is None else part % images
    ids, first = np.unique(same, return_index=True)
    if len(ids) < 2 * config.steps:
        raise InputError(
            f"data.steps = {config.steps}: client {client} has {len(ids)} samples, but each step needs two of them"
        )
    if config.step_alpha is None:
        dealt = np.array_split(generator.permutation(len(ids)), config.steps)
    else:
        dealt = partition.lda(y[part[first]], config.steps, config.step_alpha, "per-class", generator)
    return [generator.permutation(part[np.isin(same, ids[chosen])]) for chosen in dealt]


def copied_images(samples: Samples, config: DataConfig) -> int | None:
    """Return how many different training images there are, where each was copied."""
    if config.copies == 1:
        return None
    assert samples.test is not None
    return int((~samples.test).sum()) // config.copies
