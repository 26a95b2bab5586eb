"""hcfl: FedAvg, with the engine that it chooses itself."""

from functools import partial

import numpy as np
import torch
from torch import nn
from workload import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, arguments, load, network, report

from hcfl import Federation
from hcfl.config import from_flat
from hcfl.core import rounds
from hcfl.models import Pair, cnn, mlp
from hcfl.models.ensemble import forward
from hcfl.runs.prepare import prepare


def same_start(model: str, shape: tuple[int, ...], classes: int) -> Pair:
    """Build hcfl's own network, or LeNet's layers, with the parameters that all simulators start from."""
    if model == "lenet":
        *layers, head = network(model)
        return nn.Sequential(*layers), head
    extractor, head = mlp(shape, classes, hidden=(64,)) if model == "mlp" else cnn(shape, classes)
    whole, start = nn.Sequential(extractor, head), network(model).state_dict()
    whole.load_state_dict(dict(zip(whole.state_dict(), start.values(), strict=True)))
    return extractor, head


def main() -> None:
    """Run all rounds."""
    workload = arguments(__doc__)
    torch.set_num_threads(workload.cores)
    with np.load(workload.data) as archive:
        x, y = archive["x"], archive["y"]
    clients, samples = y.shape
    owner = np.arange(clients).repeat(samples)
    # Every client holds out the one sample that the others leave out: hcfl measures Val in every round.
    federation = Federation.from_arrays(
        x.reshape(-1, *x.shape[2:]), y.ravel(), client=owner, kind="vector" if x.ndim == 3 else "image", val_share=1e-6
    )
    settings = {"lr": LEARNING_RATE, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY, "epochs": workload.epochs}
    config = from_flat(method="fedavg", batch=workload.batch, evaluate_every=workload.rounds, **settings)
    prepared = prepare(config, federation, partial(same_start, workload.model))
    torch.set_num_threads(prepared.config.threads or workload.cores)
    seconds, state = [], prepared.state
    for after, record in rounds.play(prepared.setting, prepared.state, workload.rounds):
        seconds.append(sum(record.seconds.values()))
        state = after
    inputs, labels = load(workload.data)
    right = 0
    for mine, truth in zip(inputs, labels, strict=True):
        _, logits = forward(prepared.setting.network, state.server.ensemble, mine)
        right += int((logits[:, 0].argmax(1) == truth).sum())
    steps = workload.rounds * workload.epochs * sum(-(-len(rows) // workload.batch) for rows in federation.train)
    report(f"hcfl ({prepared.config.engine})", seconds, steps, right / labels.numel())


if __name__ == "__main__":
    main()
