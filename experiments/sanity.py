"""What must hold before a figure is believed: simple rules and known bounds for a federation and a network.

    python experiments/sanity.py                              # digits, on a CPU
    python experiments/sanity.py --data cifar10 --scenario diverse --model efficientnet-lite0 --pretrained imagenet \
        --device cuda --precision bf16 --lr 0.1 --rounds 60 --copies 3

Takes every setting of `hcfl run` but the method. A method that does not beat these rows on its own goal is not worth
its clusters. Val and Test are those of the last round, and the best of any round in brackets.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hcfl.cli.settings import add_settings, config_of
from hcfl.config import Config
from hcfl.core import rounds
from hcfl.core.evaluation import meet_newcomers
from hcfl.core.record import Record
from hcfl.core.state import RunState
from hcfl.data import Federation, build
from hcfl.models.ensemble import Ensemble, embed
from hcfl.models.inputs import Scaled
from hcfl.models.precision import matrix_products, threads
from hcfl.runs.loop import Prepared
from hcfl.runs.prepare import prepare
from hcfl.tiers.weighting import one_hot

FIRST_BATCH = 128


def first_loss(prepared: Prepared) -> float:
    """Cross-entropy of the initial model on one batch of all clients' samples, as training would see it."""
    federation, network, start = prepared.setting.federation, prepared.setting.network, prepared.state.server.ensemble
    generator = torch.Generator().manual_seed(0)
    pooled = torch.cat([*federation.train])
    rows = pooled[torch.randperm(len(pooled), generator=generator)[:FIRST_BATCH]]
    inputs = Scaled(federation.x[rows.to(federation.x.device)], federation.scaling)[:]
    extractor = {name: tensor.clone() for name, tensor in start.extractor(0).items()}
    with torch.no_grad():
        features = network.embed(extractor, inputs, training=True)
        logits = network.logits(start.heads, features)[:, 0]
    return float(cross_entropy(logits, federation.y[rows].to(logits.device)))


def majority(federation: Federation) -> tuple[float, float | None]:
    """Accuracy of always predicting the most frequent label: each client's own, and each newcomer's."""
    right, samples = 0, 0
    for train, val in zip(federation.train, federation.val, strict=True):
        right += int((federation.y[val] == federation.y[train].mode().values).sum())
        samples += len(val)
    tests = [float((one.score_labels == one.fit_labels.mode().values).float().mean()) for one in federation.newcomers]
    return right / samples, sum(tests) / len(tests) if tests else None


def linear_probe(prepared: Prepared, steps: int = 300, decay: float = 1e-4) -> tuple[float, float | None]:
    """Accuracy of logistic regression on features of the initial extractor, trained on all clients' samples at once.

    It is for a federation without concept shift, where all samples have labels of one kind.
    """
    federation, network = prepared.setting.federation, prepared.setting.network
    phi, device = prepared.state.server.ensemble.extractor(0), federation.x.device

    def features_of(x: Tensor) -> Tensor:
        return embed(network, phi, Scaled(x, federation.scaling))

    train, val = torch.cat([*federation.train]), federation.val_rows
    features, labels = features_of(federation.x[train.to(device)]), federation.y[train].to(device)
    mean, std = features.mean(dim=0), features.std(dim=0).clamp_min(1e-6)
    features = (features - mean) / std
    weight = torch.zeros(features.shape[1], federation.classes, device=device, requires_grad=True)
    bias = torch.zeros(federation.classes, device=device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(features @ weight + bias, labels) + decay * weight.square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)

    @torch.no_grad()
    def accuracy(x: Tensor, y: Tensor) -> float:
        guess = ((features_of(x) - mean) / std @ weight + bias).argmax(dim=1)
        return float((guess.cpu() == y).float().mean())

    test = None
    if federation.test_x is not None and federation.newcomers:
        newcomer = federation.newcomers[0]
        test = accuracy(federation.test_x[newcomer.score_rows.to(device)], newcomer.score_labels)
    return accuracy(federation.x[val.to(device)], federation.y[val]), test


def play(prepared: Prepared) -> tuple[RunState, list[Record]]:
    """Play all rounds, without a folder."""
    config, state, records = prepared.config, prepared.state, []
    with threads(config.threads), matrix_products(rounded=config.precision != "fp32"):
        for after, record in rounds.play(prepared.setting, state, config.training.rounds):
            state = after
            records.append(record)
    return state, records


def oracle(prepared: Prepared) -> Prepared:
    """Let clients share a model with those of their true concept, from the start and for ever.

    `prepared` is a run of `local`, in which every client has a model of its own.
    """
    truth, server = prepared.setting.federation.truth, prepared.state.server
    assert truth is not None
    concept = torch.unique(torch.as_tensor(truth.concept), return_inverse=True)[1]
    knows = replace(
        server,
        ensemble=server.ensemble.select(range(truth.concepts)),
        clusters=tuple(range(truth.concepts)),
        born=truth.concepts,
        weights=one_hot(concept, truth.concepts),
        members=concept,
    )
    newcomers = meet_newcomers(prepared.setting.federation, prepared.setting.method, truth.concepts)
    return replace(prepared, state=RunState(knows, {}, newcomers))


def fine_tuned(local: Prepared, model: Ensemble, epochs: int) -> Prepared:
    """Let every client go on from one model for some epochs, alone: one round of `local` that starts from it."""
    setting = replace(local.setting, sgd=replace(local.setting.sgd, epochs=epochs))
    one_each = model.select([0] * setting.federation.clients)
    config = local.config.updated("training", rounds=1)
    return Prepared(config, setting, rounds.begin(setting, one_each))


def shown(values: list[float | None]) -> str:
    """Return the last of some accuracies, and the best."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    best = f" ({100 * max(known):.1f})" if len(values) > 1 else ""
    return f"{100 * known[-1]:.1f}{best}"


def main() -> None:
    """Print one row after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_settings(parser)
    parser.add_argument("--fine-tuning-epochs", type=int, default=5)
    arguments = parser.parse_args()

    def configured(method: str, *changes: tuple[str, Any]) -> Config:
        return config_of(arguments, [("method.name", method), *changes])

    shifted = build(configured("fedavg").data, configured("fedavg").seed)
    plain = (("data.beta", 0.0), ("data.concepts", None))
    alone = prepare(configured("local"), shifted)
    fedavg, unshifted = prepare(configured("fedavg"), shifted), prepare(configured("fedavg", *plain))

    config = fedavg.config
    print(f"{config.data.source}, {config.model.name}, {config.training.rounds} rounds, seed {config.seed}")
    print(f"first loss {first_loss(fedavg):.3f}, log(classes) {log(shifted.classes):.3f}\n")
    print("| | Val % | Test % |\n|---|---|---|")

    def say(name: str, val: list[float | None], test: list[float | None]) -> None:
        print(f"| {name} | {shown(val)} | {shown(test)} |", flush=True)

    def say_played(name: str, prepared: Prepared) -> RunState:
        state, records = play(prepared)
        say(name, [record.val for record in records], [record.test for record in records])
        return state

    def say_once(name: str, found: Callable[[], tuple[float, float | None]]) -> None:
        val, test = found()
        say(name, [val], [test])

    say_once("always the most frequent class", lambda: majority(shifted))
    say_once("linear probe on the initial features, no concept shift", lambda: linear_probe(unshifted))
    say_played("local: every client alone", alone)
    model = say_played("FedAvg", fedavg).server.ensemble
    epochs = arguments.fine_tuning_epochs
    say_played(f"FedAvg, then {epochs} epochs on each client", fine_tuned(alone, model, epochs))
    say_played("FedAvg, no concept shift", unshifted)
    if shifted.truth is not None:
        say_played("oracle: a FedAvg for each true concept", oracle(alone))


if __name__ == "__main__":
    main()
