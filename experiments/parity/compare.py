"""hcfl against loops written by hand: the same start, data and batches must give the same models.

    python experiments/parity/compare.py                      # all methods on digits, double precision
    python experiments/parity/compare.py --precision fp32 --methods fedem fedrc

Prints, for each method, the largest difference of any parameter after the first and after the last round, whether all
clients are in the same clusters in all rounds, and Val of both. README.md in this folder has the table.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import reference
import torch
from reference import After, Loop, Problem
from torch import Tensor, nn

from hcfl import rng
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.core.setting import Setting
from hcfl.core.sgd import shuffle
from hcfl.data import Federation, build
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble
from hcfl.models.inputs import Scaling
from hcfl.models.precision import threads
from hcfl.runs.loop import Prepared
from hcfl.runs.prepare import prepare
from hcfl.tiers.client_segments import Segments


@dataclass(frozen=True)
class Case:
    """One row: a method of hcfl with its settings, and the loop that must agree with it."""

    method: str
    loop: Loop
    settings: dict[str, Any] = field(default_factory=dict)


SPLITS = {"tol1": 0.8, "tol2": 1.6, "rounds": 25}
"""Tolerances with which CFL finds the concepts of digits, and rounds enough for it."""

CFL = SPLITS["tol1"], SPLITS["tol2"]

CASES: dict[str, Case] = {
    "fedavg": Case("fedavg", reference.fedavg),
    "ifca": Case("ifca", reference.ifca),
    "fedem": Case("fedem", reference.fedem),
    "fedrc": Case("fedrc", reference.fedrc),
    "fesem": Case("fesem", reference.fesem(3)),
    "fesem, independent start": Case("fesem", reference.fesem_independent, {"independent_start": True}),
    "cfl": Case("cfl", reference.cfl(*CFL), SPLITS),
    "cfl, lost ids": Case("cfl", reference.cfl_lost_ids(*CFL), {**SPLITS, "lost_ids": True}),
}


@dataclass(frozen=True)
class Doubles(Scaling):
    """Inputs in double precision."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the same numbers as ever, with more digits to compute with."""
        return super().__call__(x).double()


@contextmanager
def double_precision() -> Iterator[None]:
    """Let hcfl, which counts on single precision here and there, compute in double."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with patch.object(torch.Tensor, "float", torch.Tensor.double):
            yield
    finally:
        torch.set_default_dtype(before)


def doubled(prepared: Prepared) -> tuple[Setting, Ensemble]:
    """Return a setting and its first models in double precision."""
    federation, start = prepared.setting.federation, prepared.state.server.ensemble
    scaling = Doubles(federation.scaling.mean, federation.scaling.std)
    extractors = {name: tensor.double() for name, tensor in start.extractors.items()}
    heads = {name: tensor.double() for name, tensor in start.heads.items()}
    setting = replace(prepared.setting, federation=replace(federation, scaling=scaling))
    return setting, Ensemble(extractors, heads, start.topology)


def module(network: Network, ensemble: Ensemble, cluster: int) -> nn.Module:
    """Return the model of a cluster as a module of its own."""
    pair = nn.Sequential(deepcopy(network.extractor), deepcopy(network.head))
    pair.to(next(iter(ensemble.heads.values())).dtype)
    pair[0].load_state_dict(ensemble.extractor(cluster))
    pair[1].load_state_dict({name: tensor[cluster] for name, tensor in ensemble.heads.items()})
    return pair


def problem_of(setting: Setting, start: Ensemble, rounds_: int) -> Problem:
    """Return what both sides share: data, first models, order of batches."""
    federation, sgd, sizes = setting.federation, setting.sgd, [len(rows) for rows in setting.federation.train]

    def batches(round_: int, client: int) -> list[Tensor]:
        generator = rng.torch_generator(setting.seed, "batches", round_, client)
        return shuffle(Segments((sizes[client],)), sgd, [generator], singles=not setting.network.buffers).of(0)

    return Problem(
        train=_data(federation, federation.train),
        val=_data(federation, federation.val),
        batches=batches,
        start=[module(setting.network, start, cluster) for cluster in range(start.clusters)],
        classes=federation.classes,
        rounds=rounds_,
        lr=sgd.lr,
        momentum=sgd.momentum,
        weight_decay=sgd.weight_decay,
        momentum_kept=sgd.keep_momentum,
        k_means_seed=rng.derive(setting.seed, "k-means", 1) % 2**32,
    )


def _data(federation: Federation, parts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(federation.scaling(federation.x[rows]), federation.y[rows]) for rows in parts]


def played(setting: Setting, start: Ensemble, rounds_: int) -> Iterator[After]:
    """Let hcfl play, and return its rounds as the reference's."""
    for state, record in rounds.play(setting, rounds.begin(setting, start), rounds_):
        ensemble = state.server.ensemble
        models = [module(setting.network, ensemble, cluster) for cluster in range(ensemble.clusters)]
        assert record.val is not None
        yield After(models, state.server.weights, record.val)


@dataclass(frozen=True)
class Outcome:
    """How far two sides are apart."""

    differences: list[float]
    """The largest of any parameter, after each round; infinite where the sides have not equally many models."""
    weight_differences: list[float]
    """The same for the clients' weights."""
    partitions: list[bool]
    """Whether all clients are in the same clusters, after each round."""
    moved: float
    """The largest change of any parameter from the start to the end, to compare differences with."""
    clusters: tuple[int, int]
    """K of hcfl, and of the loop, after the last round."""
    val: tuple[float, float]
    """The same of Val."""


def uneven(federation: Federation) -> Federation:
    """Take up to half of its training samples from each client: with equal N_i, a wrong weighting would not show."""
    keep = [1 - client % 6 / 10 for client in range(federation.clients)]
    train = (rows[: round(share * len(rows))] for rows, share in zip(federation.train, keep, strict=True))
    return replace(federation, train=tuple(train))


def compare(
    case: Case, double: bool = True, even: bool = False, one_optimiser: bool = True, **settings: Any
) -> Outcome:
    """Play both sides and compare them after every round; settings are those of `hcfl.run`."""
    config = from_flat(method=case.method, engine="sequential", threads=1, **{**settings, **case.settings})
    federation = build(config.data, config.seed)
    prepared = prepare(config, federation if even else uneven(federation))
    with threads(1), double_precision() if double else nullcontext():
        setting, start = doubled(prepared) if double else (prepared.setting, prepared.state.server.ensemble)
        problem = replace(problem_of(setting, start, config.training.rounds), one_optimiser=one_optimiser)
        both = zip(played(setting, start, problem.rounds), case.loop(problem), strict=True)
        pairs = [(ours, aligned(ours, theirs)) for ours, theirs in both]
    last, hand = pairs[-1]
    return Outcome(
        [_apart(ours.models, theirs.models) for ours, theirs in pairs],
        [_largest(ours.weights, theirs.weights) for ours, theirs in pairs],
        [same_partition(ours.members, theirs.members) for ours, theirs in pairs],
        _moved(problem.start, last.models),
        (len(last.models), len(hand.models)),
        (last.val, hand.val),
    )


def same_partition(ours: Sequence[int], theirs: Sequence[int]) -> bool:
    """Whether the same clients are together, whatever clusters are called."""
    return len(set(zip(ours, theirs, strict=True))) == len(set(ours)) == len(set(theirs))


def aligned(ours: After, theirs: After) -> After:
    """Put the clusters of a loop into the order of hcfl's, where both have the same ones."""
    if len(ours.models) != len(theirs.models) or not same_partition(ours.members, theirs.members):
        return theirs
    called = dict(zip(ours.members, theirs.members, strict=True))
    left = [k for k in range(len(theirs.models)) if k not in called.values()]
    order = [called[k] if k in called else left.pop(0) for k in range(len(ours.models))]
    return replace(theirs, models=[theirs.models[k] for k in order], weights=theirs.weights[:, order])


def _apart(ours: Sequence[nn.Module], theirs: Sequence[nn.Module]) -> float:
    if len(ours) != len(theirs):
        return float("inf")
    return max(_largest(reference.flat(a), reference.flat(b)) for a, b in zip(ours, theirs, strict=True))


def _moved(start: Sequence[nn.Module], end: Sequence[nn.Module]) -> float:
    begins = start if len(start) == len(end) else [start[0]] * len(end)  # clusters that split began as one model
    return _apart(begins, end)


def _largest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max()) if a.shape == b.shape else float("inf")


def row(name: str, outcome: Outcome) -> str:
    """Return a line of the table."""
    same = sum(outcome.partitions)
    cells = [
        name,
        f"{outcome.differences[0]:.0e}",
        f"{outcome.differences[-1]:.0e}",
        f"{outcome.moved:.2f}",
        f"{same} of {len(outcome.partitions)}",
        *(str(clusters) for clusters in outcome.clusters),
        *(f"{100 * val:.2f}" for val in outcome.val),
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| method | difference, round 1 | last round | parameters moved by | rounds with the same partition "
    "| K hcfl | K loop | Val % hcfl | Val % loop |"
)


def main(say: Callable[[str], None] = print) -> None:
    """Compare and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", choices=list(CASES), default=list(CASES), metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=10, help="of all but CFL, which has 25 in order to split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", choices=["fp64", "fp32"], default="fp64")
    parser.add_argument("--even", action="store_true", help="clients with equally many samples, as they were dealt")
    parser.add_argument(
        "--keep-momentum",
        choices=["client", "model"],
        help="momentum goes on from round to round; one optimiser per client, or per model of a client",
    )
    options = parser.parse_args()
    settings = {name: getattr(options, name) for name in ("rounds", "seed", "even")}
    settings |= {"keep_momentum": options.keep_momentum is not None, "one_optimiser": options.keep_momentum != "model"}
    say(HEAD)
    say("|---|---|---|---|---|---|---|---|---|")
    for name in options.methods:
        double = options.precision == "fp64"
        say(row(name, compare(CASES[name], double, **settings)))


if __name__ == "__main__":
    main()
