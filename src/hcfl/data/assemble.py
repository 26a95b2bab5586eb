"""Builds a federation from samples, settings and a seed: partition, concepts, noise, held-out data."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from hcfl import rng
from hcfl.config import Config, DataConfig
from hcfl.config.scenarios import PARTITION_OF
from hcfl.data import drift, feature_shift, partition, shifts
from hcfl.data.drift import Schedule
from hcfl.data.feature_shift import Corruption
from hcfl.data.federation import VISIBLE_SHARE, Federation, Newcomer, Step, Truth
from hcfl.data.given_groups import GivenGroups, by_column, by_mapping
from hcfl.data.readers import cache
from hcfl.data.readers.available_memory import check_memory
from hcfl.data.samples import Samples
from hcfl.data.sources import check_arrays, read
from hcfl.data.tables.samples import samples_of
from hcfl.errors import InputError
from hcfl.models.inputs import Scaling

Rows = NDArray[np.int64]

FIT_SHARE = 0.9
"""Share of the test samples whose labels choose a newcomer's weights; the rest measure."""

DEFAULTS: dict[str, dict[str, Any]] = {
    # Three concepts that relabel most classes and a mild label shift: no single model can serve all clients.
    "digits": {"clients": 30, "alpha": 10.0, "beta": 0.9},
    "": {"clients": 10, "alpha": 1.0, "beta": 0.0},
}
"""Default settings of a source's federation; the empty name stands for any other source."""


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
    _check_time(config)
    if samples.begin is not None and samples.client is None:  # one series, which must not be dealt at random
        samples = replace(samples, client=np.zeros(len(samples.y), dtype=np.int64))
    if samples.client is not None:
        return _natural(samples, config, seed)
    return _simulated(samples, filled_in(config), seed)


def _check_time(config: DataConfig) -> None:
    """Refuse settings of steps where there is one step."""
    if config.steps > 1:
        return
    for name in ("drift", "drift_of", "step_alpha", "window"):
        if (value := getattr(config, name)) != DataConfig.model_fields[name].default:
            raise InputError(f"data.{name} = {value}: needs data.steps above 1")


def filled_in(config: DataConfig) -> DataConfig:
    """Fill in the defaults of the source and of the chosen partition; settings of another partition are refused."""
    defaults = DEFAULTS.get(config.source, DEFAULTS[""])
    kind = config.partition or ("classes" if config.classes_per_client else "lda")
    for name, owner in PARTITION_OF.items():
        if (value := getattr(config, name)) is not None and kind != owner:
            raise InputError(f"data.{name} = {value}: belongs to partition {owner}, but the partition is {kind}")
    if kind == "natural":
        raise InputError(f"data.partition = natural: {config.source} does not say which client holds a sample")
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


def _simulated(samples: Samples, config: DataConfig, seed: int) -> Federation:
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
    times = Times(()) if config.steps == 1 else _over_time(samples, config, parts, concept, len(maps), seed)
    for client, part in enumerate(parts):
        labels[part] = maps[concept[client]][y[part]]
        for rows, row_concepts in times.concepts_of(client):
            labels[rows] = maps[row_concepts, y[rows]]
        if config.noise != "none":
            generator = rng.numpy_generator(seed, "label noise", client)
            labels[part] = shifts.flip(labels[part], classes, config.noise, config.noise_rate, generator)

    corruptions = _start_corruptions(config, seed)
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
        fit, score = _fit_and_score(len(test), seed)
        newcomers = tuple(
            _newcomer(f"concept {k}" if shifted else "everybody", fit, score, table[y[test]], _rows_of(samples, test))
            for k, table in enumerate(maps)
        )
    else:
        notes.append("the test set has fewer than 2 samples, so there is no Test")
    truth = Truth(same_as[concept], affected, tuple(range(len(maps)))) if shifted else None
    names = tuple(range(config.clients))
    if times.plan is not None and truth is not None:
        times = replace(times, truths=tuple(replace(truth, concept=same_as[now]) for now in times.plan.concept.T))
    return _federation(
        samples, config, labels, parts, test, newcomers, names, truth, seed, tuple(notes), corruptions, times
    )


def _start_corruptions(config: DataConfig, seed: int) -> tuple[Corruption, ...] | None:
    assert config.clients is not None
    return feature_shift.draw(config.clients, seed, config.corrupted_share) if config.corruptions == "random" else None


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


def mixed(shares: NDArray[np.float64], samples: int) -> Rows:
    """Return a concept for each of some samples, in the given shares.

    >>> mixed(np.array([0.5, 0.0, 0.5]), 4).tolist()
    [0, 0, 2, 2]
    """
    places = (np.arange(samples) + 0.5) / max(samples, 1)
    return np.searchsorted(np.cumsum(shares), places, side="right").clip(max=len(shares) - 1)


def _over_time(samples: Samples, config: DataConfig, parts: list[Rows], start: Rows, concepts: int, seed: int) -> Times:
    """Deal each client's samples to steps, and plan which concept and corruption they have."""
    steps, generator = config.steps, rng.numpy_generator(seed, "drift")
    before = _start_corruptions(config, seed)
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
    images = _images(samples, config)
    dealt = [
        _steps_of(part, samples.y, config, images, rng.numpy_generator(seed, "steps", client), client)
        for client, part in enumerate(parts)
    ]
    return Times(tuple(zip(*dealt, strict=True)), drift.schedule(changes, start, concepts, steps, before))


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


def _images(samples: Samples, config: DataConfig) -> int | None:
    """Return how many different training images there are, where each was copied."""
    if config.copies == 1:
        return None
    assert samples.test is not None
    return int((~samples.test).sum()) // config.copies


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


def _natural(samples: Samples, config: DataConfig, seed: int) -> Federation:
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
    times = _by_time(samples, config, parts) if config.steps > 1 else Times(())
    if samples.concept is None:
        truth, groups = None, {"everybody": np.arange(len(test))}
    else:
        concepts, index = np.unique(samples.concept, return_inverse=True)
        truths = tuple(_natural_truth(samples.name, names, index, held, concepts) for held in times.parts or (parts,))
        truth, times = truths[0], replace(times, truths=truths if times.parts else ())
        groups = {f"concept {name}": np.flatnonzero(index[test] == k) for k, name in enumerate(concepts)}
    newcomers = []
    for name, rows in groups.items():
        if len(rows) > 1:
            fit, score = _fit_and_score(len(rows), seed)
            newcomers.append(_newcomer(name, rows[fit], rows[score], samples.y[test], _rows_of(samples, test)))
    config = config.model_copy(update={"partition": "natural"})
    return _federation(
        samples,
        config,
        samples.y,
        parts,
        test,
        tuple(newcomers),
        tuple(names.tolist()),
        truth,
        seed,
        samples.notes,
        times=times,
    )


def _natural_truth(
    source: str, names: NDArray[Any], index: Rows, parts: Sequence[Rows], concepts: NDArray[Any]
) -> Truth:
    """Return the concept of each client; a client has one, at each step; without samples there, its number is −1."""
    each = [np.unique(index[part]) for part in parts]
    for name, found in zip(names, each, strict=True):
        if len(found) > 1:
            raise InputError(f"{source}: client {name} has {len(found)} concepts, but a client has one")
    return Truth(np.array([found[0] if len(found) else -1 for found in each]), None, tuple(concepts.tolist()))


def _by_time(samples: Samples, config: DataConfig, parts: list[Rows]) -> Times:
    """Cut the clients' samples into steps with equally many samples, by the time at which they were taken."""
    if samples.time is None:
        raise InputError(f"data.steps = {config.steps}: needs data.time, the column that says when a row was taken")
    if config.drift != "none":
        raise InputError(f"data.drift = {config.drift}: {samples.name} is a natural federation, as it is")
    everything = samples.time[np.concatenate(parts)]
    edges = np.quantile(everything, np.arange(1, config.steps) / config.steps)
    step = np.searchsorted(edges, samples.time, side="right")
    dealt = tuple(tuple(part[step[part] == now] for part in parts) for now in range(config.steps))
    if empty := [now + 1 for now, held in enumerate(dealt) if not sum(map(len, held))]:
        raise InputError(f"data.steps = {config.steps}: no sample was taken at step {empty[0]}; use fewer steps")
    return Times(dealt)


def _fit_and_score(samples: int, seed: int) -> tuple[Rows, Rows]:
    order = rng.numpy_generator(seed, "newcomers").permutation(samples)
    fit = min(round(FIT_SHARE * samples), samples - 1)
    return order[:fit], order[fit:]


def _rows_of(samples: Samples, rows: Rows) -> NDArray[np.float32] | None:
    return None if samples.targets is None else samples.targets[rows]


def _newcomer(
    name: str, fit: Rows, score: Rows, labels: NDArray[np.int64], targets: NDArray[np.float32] | None
) -> Newcomer:
    fit_rows, fit_labels, score_rows, score_labels = map(torch.from_numpy, (fit, labels[fit], score, labels[score]))
    of_fit, of_score = (None if targets is None else torch.from_numpy(targets[rows]) for rows in (fit, score))
    return Newcomer(name, fit_rows, fit_labels, score_rows, score_labels, of_fit, of_score)


def _federation(
    samples: Samples,
    config: DataConfig,
    labels: NDArray[np.int64],
    parts: list[Rows],
    test: Rows,
    newcomers: tuple[Newcomer, ...],
    client_names: tuple[Any, ...],
    truth: Truth | None,
    seed: int,
    notes: tuple[str, ...],
    corruptions: tuple[Corruption, ...] | None = None,
    times: "Times | None" = None,
) -> Federation:
    config = config.model_copy(update={"test_on": config.test_on or "halves", "task": samples.task.name})
    if config.test_on == "halves":
        newcomers = tuple(half for newcomer in newcomers for half in newcomer.halves())
    images = (len(samples.y) - len(test)) // config.copies if config.copies > 1 else None
    halves = _halves(parts, samples, config, seed, images)
    timeline = () if times is None else _timeline(times, samples, config, seed, images)
    if timeline:
        halves, truth, corruptions = (timeline[0].train, timeline[0].val), timeline[0].truth, timeline[0].corruptions
    x = torch.from_numpy(np.ascontiguousarray(samples.x))
    train, val = halves
    return Federation(
        name=samples.name,
        settings=config,
        x=x,
        y=torch.from_numpy(labels),
        train=train,
        val=val,
        test_x=_rows(x, test) if len(test) else None,
        newcomers=newcomers,
        scaling=Scaling.none(x) if config.scale == "none" else Scaling.of(x, train),
        class_names=samples.class_names,
        client_names=client_names,
        truth=truth,
        corruptions=corruptions,
        notes=notes,
        groups=_groups(samples, config, parts, client_names),
        schema=samples.schema,
        task=samples.task,
        targets=None if samples.targets is None else torch.from_numpy(samples.targets),
        timeline=timeline,
    )


Halves = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""Training and held-out rows of each client."""


def _halves(
    parts: Sequence[Rows], samples: Samples, config: DataConfig, seed: int, images: int | None, step: int = 0
) -> Halves:
    found = [
        train_and_val(part, config.val_share, seed, client, images, step)
        if samples.time is None
        else train_then_val(part, config.val_share, samples.time, samples.begin)
        for client, part in enumerate(parts)
    ]
    return tuple(half[0] for half in found), tuple(half[1] for half in found)


def _timeline(times: Times, samples: Samples, config: DataConfig, seed: int, images: int | None) -> tuple[Step, ...]:
    return tuple(
        Step(
            *_halves(parts, samples, config, seed, images, step),
            truth=times.truths[step] if times.truths else None,
            corruptions=None if times.cameras is None else times.cameras[step],
        )
        for step, parts in enumerate(times.parts)
    )


def _groups(samples: Samples, config: DataConfig, parts: list[Rows], clients: tuple[Any, ...]) -> GivenGroups | None:
    """Return the groups that clients begin in, by a column of theirs or by their names; None where none are given."""
    if config.groups is None:
        return None
    if isinstance(config.groups, dict):
        return by_mapping(config.groups, clients)
    if samples.group is None:
        raise InputError(f"data.groups = {config.groups!r}: {samples.name} has no columns; give CLIENT=GROUP,…")
    return by_column(config.groups, samples.group, parts, clients)


def _rows(x: Tensor, rows: Rows) -> Tensor:
    """Return rows of x; a view where they are contiguous, as a source's own test set is."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows) and (np.diff(rows) == 1).all():
        return x[first : last + 1]
    return x[torch.from_numpy(rows)]


def train_and_val(
    rows: Rows, share: float, seed: int, client: int, images: int | None = None, step: int = 0
) -> tuple[Tensor, Tensor]:
    """Split a client's rows into training and held-out rows: `share` of them, at least one, but none of a single row.

    Where the training set was copied, rows that differ by a multiple of `images` are the same image. A client does not
    train on an image that it holds out, and holds none out where no training sample would be left.
    """
    order = rng.numpy_generator(seed, "validation", client, *([step] if step else [])).permutation(rows)
    held_out = min(max(1, round(share * len(rows))), max(0, len(rows) - 1))
    train, val = order[held_out:], order[:held_out]
    if images is not None:
        train = train[~np.isin(train % images, val % images)]
        train, val = (train, val) if len(train) else (order, order[:0])
    return torch.from_numpy(train), torch.from_numpy(val)


def train_then_val(
    rows: Rows, share: float, time: NDArray[np.float64], begin: NDArray[np.float64] | None = None
) -> tuple[Tensor, Tensor]:
    """Split a client's rows by time: the last `share` of them are held out, at least one, but none of a single row.

    Where rows are windows that begin at `begin` and end at `time`, training windows end before the first one that is
    held out begins; those between are left out. Where none would be left to train on, none is held out.
    """
    order = rows[np.argsort(time[rows], kind="stable")]
    held_out = min(max(1, round(share * len(rows))), max(0, len(rows) - 1))
    train, val = order[: len(rows) - held_out], order[len(rows) - held_out :]
    if begin is not None and held_out:
        before = time[train] < begin[val].min()
        train, val = (train[before], val) if before.any() else (order, order[:0])
    return torch.from_numpy(train), torch.from_numpy(val)
