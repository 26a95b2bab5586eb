"""What the paper leaves open, tried one choice at a time: a table of docs/digits.md.

    python experiments/choices.py --seeds 3                     # digits with strong label shift, on a CPU
    python experiments/choices.py --data cifar10 --device cuda  # CIFAR-10, 60 rounds, on a GPU

Runs that are already in the output folder are not repeated.
"""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import last_rounds
from torch import Tensor, nn

from hcfl import methods
from hcfl.config import from_flat
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.engines import Sequential
from hcfl.launch import execute
from hcfl.methods import Method
from hcfl.models import Builder, Network, Pair, Params
from hcfl.models.zoo import AxisToFront
from hcfl.runs.loop import Prepared
from hcfl.runs.prepare import prepare
from hcfl.tiers import EStepInputs, Weighting, Weights

SETTINGS: dict[str, dict[str, Any]] = {
    "digits": {"data": "digits", "alpha": 1.0, "alpha_reading": "total", "beta": 0.2, "clients": 30, "rounds": 60},
    "cifar10": {
        "data": "cifar10",
        "scenario": "diverse",
        "model": "efficientnet-lite0",
        "pretrained": "imagenet",
        "lr": 0.1,
        "rounds": 60,
        "precision": "bf16",
        "evaluate_every": 4,
    },
}


@dataclass(frozen=True)
class Repeated:
    """Several E-steps a round instead of one."""

    single: Weighting
    times: int
    hard: bool = False

    def start(self, client: Tensor, segments: Any) -> Weights:
        """As before."""
        return self.single.start(client, segments)

    def e_step(self, weights: Weights, seen: EStepInputs) -> tuple[Weights, Tensor]:
        """Repeat it with the same likelihoods."""
        for _ in range(self.times):
            weights, gamma = self.single.e_step(weights, seen)
        return weights, gamma

    def newcomer(self, weights: Tensor, seen: EStepInputs) -> Tensor:
        """Newcomers likewise."""
        for _ in range(self.times):
            weights = self.single.newcomer(weights, seen)
        return weights


@dataclass(frozen=True)
class BatchStatistics(Network):
    """Batch normalisation by the client's own samples instead of the running statistics."""

    def embed(self, extractor: Params, inputs: Tensor, training: bool = False) -> Tensor:
        """Leave the running statistics as they are."""
        own = extractor if training else {name: tensor.clone() for name, tensor in extractor.items()}
        return super().embed(own, inputs, training=True)


@dataclass(frozen=True)
class OwnStatistics:
    """One client after another, each looking at its data with its own statistics; they train as ever."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Replace the network for what clients do; evaluation keeps the running ones."""
        received = task.setting.network
        network = BatchStatistics(received.extractor, received.head, received.half)
        own = replace(task, setting=replace(task.setting, network=network))
        return Sequential().execute(own)


def normalised(shape: tuple[int, ...], classes: int) -> Pair:
    """Return two convolutions with batch normalisation, for small images."""
    layers: list[nn.Module] = [AxisToFront()]
    for inward, outward in ((shape[-1], 16), (16, 32)):
        layers += [nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten()), nn.Linear(32 * (shape[0] // 4) * (shape[1] // 4), classes)


def prepared(method: Method, settings: dict[str, Any], engine: Any = None, model: Builder | None = None) -> Prepared:
    """Prepare a run of a method, if asked with another engine or model."""
    found = prepare(from_flat(**settings), method=method, model=model)
    return found if engine is None else replace(found, setting=replace(found.setting, engine=engine))


def variants(name: str, settings: dict[str, Any], data: str) -> dict[str, Callable[[], Prepared]]:
    """Return every choice as a run that could start."""
    base = methods.build(name)
    found = {
        "as decided": lambda: prepared(base, settings),
        "K⁰ = 3": lambda: prepared(methods.build(name, clusters=3), settings),
        "no split before round 10": lambda: prepared(replace(base, warm_up=10), settings),
        "five E-steps a round": lambda: prepared(replace(base, weighting=Repeated(base.weighting, 5)), settings),
        "β literal": lambda: prepared(base, {**settings, "beta_reading": "literal"}),
        "heads and extractor together": lambda: prepared(base, {**settings, "order": "together"}),
        "momentum kept": lambda: prepared(base, {**settings, "keep_momentum": True}),
    }
    if data == "digits":
        found |= {
            "batch normalisation, as decided": lambda: prepared(base, settings, model=normalised),
            "batch statistics in the E-step": lambda: prepared(base, settings, OwnStatistics(), normalised),
        }
    else:
        found["no split before round 30"] = lambda: prepared(replace(base, warm_up=30), settings)
    return found


def main() -> None:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=SETTINGS, default="digits")
    parser.add_argument("--method", default="hcfl+(fedrc)")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="*", help="some of the choices")
    parser.add_argument("--out", type=Path, default=Path("runs/choices"))
    options = parser.parse_args()
    print(last_rounds.head("choice"))
    for choice in options.only or variants(options.method, {}, options.data):
        name = f"{options.data}-{options.method}-{choice}".replace(" ", "-")
        runs = [options.out / f"{name}-seed{seed}" for seed in range(options.seeds)]
        for seed, path in enumerate(runs):
            if not (path / "summary.json").exists():
                shutil.rmtree(path, ignore_errors=True)  # one that was interrupted begins again
                settings = SETTINGS[options.data] | {"seed": seed, "device": options.device, "threads": 1}
                execute(variants(options.method, settings, options.data)[choice](), path)
        print(last_rounds.row(choice, runs), flush=True)


if __name__ == "__main__":
    main()
