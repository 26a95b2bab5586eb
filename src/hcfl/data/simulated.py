"""Simulated federations: samples of one source are dealt to clients, with label, concept and feature shifts."""

from dataclasses import replace
from typing import Any

import numpy as np

from hcfl import rng
from hcfl.config import DataConfig
from hcfl.config.scenarios import PARTITION_OF
from hcfl.data import feature_shift, partition, shifts
from hcfl.data.dealt import Dealt, federation
from hcfl.data.federation import VISIBLE_SHARE, Federation, Newcomer, Truth
from hcfl.data.held_out import newcomer
from hcfl.data.readers import cache
from hcfl.data.readers.available_memory import check_memory
from hcfl.data.samples import Rows, Samples
from hcfl.data.times import NO_STEPS, planned, start_corruptions
from hcfl.errors import InputError

DEFAULTS: dict[str, dict[str, Any]] = {
    # Three concepts that relabel most classes and a mild label shift: no single model can serve all clients.
    "digits": {"clients": 30, "alpha": 10.0, "beta": 0.9},
    "": {"clients": 10, "alpha": 1.0, "beta": 0.0},
}
"""Default settings of a source's federation; the empty name stands for any other source."""


def simulated(samples: Samples, config: DataConfig, seed: int) -> Federation:
    """Deal samples to simulated clients, with the shifts that the settings ask for."""
    config = filled_in(config)
    assert config.clients is not None
    assert config.beta is not None
    if samples.targets is not None:
        for field, changes in (("beta", config.beta > 0), ("noise", config.noise != "none")):
            if changes:
                raise InputError(
                    f"data.{field} = {getattr(config, field)}: changes labels of classes, "
                    f"but the task is {samples.task.name}"
                )
    if config.samples is not None:
        samples = _subset(samples, config.samples, config.test_share, seed)
    if config.copies > 1:
        samples = _copied(samples, config.copies, config.test_share, seed)
    y, classes, notes = samples.y, len(samples.class_names), list(samples.notes)
    pool, test = _pool_and_test(samples, config.test_share, seed)

    parts = [pool[part] for part in _deal(y[pool], config, rng.numpy_generator(seed, "partition"))]
    used = np.unique(np.concatenate(parts))
    if left_out := sorted(set(y[pool].tolist()) - set(y[used].tolist())):
        notes.append(f"classes that no client holds: {', '.join(samples.class_names[c] for c in left_out)}")

    shifted, labels = config.beta > 0, y.copy()
    maps = shifts.concept_maps(classes, config.beta, config.concepts or 1, config.beta_reading)
    same_as = shifts.distinct(maps)
    if len(set(same_as)) < len(maps):
        pairs = [f"{i} = {j}" for i, j in enumerate(same_as) if i != j]
        notes.append(f"concepts that coincide: {', '.join(pairs)}")
    concept = shifts.deal(config.clients, len(maps), rng.numpy_generator(seed, "concepts"))
    visible = (maps != maps[0]).any(axis=0)
    affected = np.array([visible[y[part]].mean() >= VISIBLE_SHARE for part in parts])
    times = NO_STEPS if config.steps == 1 else planned(samples, config, parts, concept, len(maps), seed)
    for client, part in enumerate(parts):
        labels[part] = maps[concept[client]][y[part]]
        for rows, row_concepts in times.concepts_of(client):
            labels[rows] = maps[row_concepts, y[rows]]
        if config.noise != "none":
            generator = rng.numpy_generator(seed, "label noise", client)
            labels[part] = shifts.flip(labels[part], classes, config.noise, config.noise_rate, generator)

    corruptions = start_corruptions(config, seed)
    if times.cameras is not None or (corruptions is not None and not times.parts):
        feature_shift.check(samples.x)
        root = cache.location(config.cache_dir)
        held = parts if times.cameras is None else [rows for step in times.parts for rows in step]
        drawn = corruptions if times.cameras is None else [one for step in times.cameras for one in step]
        assert drawn is not None
        x, remarks = feature_shift.apply(samples.x, held, drawn, seed, samples.identity, root)
        samples = replace(samples, x=x)
        notes += remarks

    newcomers: tuple[Newcomer, ...] = ()
    if len(test) > 1:
        everything = np.arange(len(test))
        newcomers = tuple(
            newcomer(f"concept {k}" if shifted else "everybody", everything, test, table[y[test]], samples, seed)
            for k, table in enumerate(maps)
        )
    else:
        notes.append("the test set has fewer than 2 samples, so there is no Test")
    truth = Truth(same_as[concept], affected, tuple(range(len(maps)))) if shifted else None
    if times.plan is not None and truth is not None:
        times = replace(times, truths=tuple(replace(truth, concept=same_as[now]) for now in times.plan.concept.T))
    clients = tuple(range(config.clients))
    dealt = Dealt(samples, labels, clients, parts, test, newcomers, truth, tuple(notes), corruptions, times)
    return federation(dealt, config, seed)


def filled_in(config: DataConfig) -> DataConfig:
    """Fill in the defaults of the source and of the chosen partition; settings of another partition are refused."""
    defaults = DEFAULTS.get(config.source, DEFAULTS[""])
    kind = config.partition or ("classes" if config.classes_per_client else "lda")
    for name, owner in PARTITION_OF.items():
        if (value := getattr(config, name)) is not None and kind != owner:
            raise InputError(f"data.{name} = {value}: belongs to partition {owner}, but the partition is {kind}")
    if kind == "natural":
        raise InputError(f"data.partition = natural: {config.source} does not say which client holds a sample")
    if config.test_clients is not None:
        raise InputError(
            f"data.test_clients = {config.test_clients}: {config.source} does not say which client holds a sample"
        )
    if (config.noise == "none") != (config.noise_rate == 0):
        raise InputError(
            f"data.noise = {config.noise} with data.noise_rate = {config.noise_rate:g}: "
            "noise needs pair or symmetric, and a rate above 0"
        )
    if config.corrupted_share is not None and config.corruptions == "none":
        raise InputError(
            f"data.corrupted_share = {config.corrupted_share:g}: needs corruptions random, but they are none"
        )
    chosen: dict[str, Any] = {"partition": kind, "clients": config.clients or defaults["clients"]}
    if kind == "lda":
        chosen["alpha"] = config.alpha or defaults["alpha"]
        chosen["alpha_reading"] = config.alpha_reading or "per-class"
    if kind == "classes":
        if config.classes_per_client is None:
            raise InputError("data.classes_per_client = null: partition classes needs to know how many")
        chosen["grouping"] = config.grouping or ("grouped" if config.classes_per_client == 2 else "random")
    if config.beta is None:
        chosen["beta"] = 0.0 if kind == "classes" else defaults["beta"]
    shifted = bool(config.beta or chosen.get("beta"))
    if config.concepts is not None and not shifted:
        raise InputError(f"data.concepts = {config.concepts}: concepts need data.beta above 0")
    if config.concepts is not None and config.concepts > chosen["clients"]:
        raise InputError(f"data.concepts = {config.concepts}: there are only {chosen['clients']} clients")
    chosen["concepts"] = (config.concepts or 3) if shifted else None
    return config.model_copy(update=chosen)


def _pool_and_test(samples: Samples, share: float, seed: int) -> tuple[Rows, Rows]:
    """Return the rows that clients share, and those of the test set: the source's own, or a share set aside."""
    if samples.test is not None:
        return np.flatnonzero(~samples.test), np.flatnonzero(samples.test)
    return partition.holdout(samples.y, share, rng.numpy_generator(seed, "test set"))


def _subset(samples: Samples, number: int, share: float, seed: int) -> Samples:
    """Draw `number` training samples, and at most as many test samples."""
    draw = rng.numpy_generator(seed, "samples")
    pool, test = _pool_and_test(samples, share, seed)
    if number > len(pool):
        raise InputError(f"data.samples = {number}: {samples.name} has only {len(pool)} training samples")
    kept, tested = (np.sort(draw.permutation(rows)[:number]) for rows in (pool, test))
    rows = np.concatenate([kept, tested])
    mask = np.arange(len(rows)) >= len(kept)
    return replace(_chosen(samples, rows), test=mask, identity=None)


def _copied(samples: Samples, copies: int, share: float, seed: int) -> Samples:
    """Return `copies` copies of the training samples, one after another, then the test samples."""
    pool, test = _pool_and_test(samples, share, seed)
    rows = np.concatenate([np.tile(pool, copies), test])
    check_memory(f"data.copies = {copies}", len(rows) * samples.x[:1].nbytes)
    identity = None if samples.identity is None else f"{samples.identity} {copies} copies"
    mask = np.arange(len(rows)) >= copies * len(pool)
    return replace(_chosen(samples, rows), test=mask, identity=identity)


def _chosen(samples: Samples, rows: Rows) -> Samples:
    """Return some of the samples, in this order."""
    targets = None if samples.targets is None else samples.targets[rows]
    time = None if samples.time is None else samples.time[rows]
    return replace(samples, x=samples.x[rows], y=samples.y[rows], targets=targets, time=time)


def _deal(labels: Rows, config: DataConfig, generator: np.random.Generator) -> list[Rows]:
    assert config.clients is not None
    if config.partition == "iid":
        return partition.iid(labels, config.clients, generator)
    if config.partition == "classes":
        assert config.classes_per_client is not None
        assert config.grouping is not None
        return partition.classes_per_client(
            labels, config.clients, config.classes_per_client, config.grouping, generator
        )
    assert config.alpha is not None
    assert config.alpha_reading is not None
    return partition.lda(labels, config.clients, config.alpha, config.alpha_reading, generator)
