"""fluke: FedAvg, without evaluation. Clients start every round afresh, so that momentum does, too."""

from time import perf_counter
from typing import Any

import torch

try:
    import torchvision  # noqa: F401
except RuntimeError:
    # fluke imports it, but nothing of it is used here. Its wheels expect torch's build for CUDA: on a CPU build, two
    # operators have to be declared before it can be imported.
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver
from workload import (
    CLASSES,
    LEARNING_RATE,
    MOMENTUM,
    WEIGHT_DECAY,
    CountedLoss,
    accuracy,
    arguments,
    load,
    network,
    report,
)


class Clock(FederationObserver):
    """How long each round takes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.started = 0.0

    def start_round(self, round: int, global_model: Any) -> None:
        """Start."""
        self.started = perf_counter()

    def end_round(self, round: int) -> None:
        """Stop."""
        self.seconds.append(perf_counter() - self.started)


def main() -> None:
    """Run all rounds."""
    workload = arguments(__doc__)
    torch.set_num_threads(workload.threads)
    environment = FlukeENV()
    environment.set_device("cpu")
    environment.set_inmemory(True)
    environment.set_eval_cfg(server=False)
    environment.get_live_renderer().console.quiet = True
    x, y = load(workload.data)
    optimizer = OptimizerConfigurator(
        {"name": "SGD", "lr": LEARNING_RATE, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    )
    clients = [
        Client(
            index,
            FastDataLoader(*mine, num_labels=CLASSES, batch_size=workload.batch, shuffle=True),
            None,
            optimizer,
            CountedLoss(),
            local_epochs=workload.epochs,
            persistency=False,
        )
        for index, mine in enumerate(zip(x, y, strict=True))
    ]
    server = Server(network(workload.model), None, clients, weighted=True)
    algorithm, clock = FedAVG(len(clients), None, {}, clients=clients, server=server), Clock()
    algorithm.set_callbacks([clock])
    algorithm.run(workload.rounds, 1.0)
    report("fluke", clock.seconds, CountedLoss.calls, accuracy(server.model, x, y))


if __name__ == "__main__":
    main()
