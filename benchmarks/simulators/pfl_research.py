"""pfl-research: FedAvg by its simulated backend, in one process, or in several that torchrun starts.

Its user data sets keep their batches, so that samples are not shuffled anew in every round.
"""

from time import perf_counter

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from workload import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, CountedLoss, accuracy, arguments, load, network, report


class Model(nn.Module):
    """The network with the two methods that pfl calls."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layers, self.criterion = network(name), CountedLoss()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.layers(x)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what is minimised."""
        self.train()
        return self.criterion(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Nothing: pfl measures in its first round only, which does not count."""
        return {"samples": Weighted(len(y), 1)}


class Clock(TrainingProcessCallback):
    """When each round ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start."""
        self.times.append(perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        self.times.append(perf_counter())
        return False, Metrics()


def main() -> None:
    """Run all rounds."""
    workload = arguments(__doc__)
    processes = distributed.world_size
    torch.set_num_threads(workload.threads if processes == 1 else 1)
    x, y = load(workload.data)
    users = [PyTorchTensorDataset(mine) for mine in zip(x, y, strict=True)]
    dataset = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", range(len(users))))
    module, clock = Model(workload.model), Clock()
    model = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.SGD(parameters, lr, MOMENTUM, weight_decay=WEIGHT_DECAY),
        torch.optim.SGD(module.parameters(), 1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(workload.rounds, workload.rounds, train_cohort_size=len(users), val_cohort_size=None),
        SimulatedBackend(dataset, dataset),
        model,
        NNTrainHyperParams(workload.batch, local_num_epochs=workload.epochs, local_learning_rate=LEARNING_RATE),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    (steps,) = distributed.all_reduce([torch.tensor([float(CountedLoss.calls)])])  # of all processes
    if distributed.global_rank == 0:
        seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
        name = "pfl-research" if processes == 1 else f"pfl-research, {processes} processes"
        report(name, seconds, int(steps), accuracy(module, x, y))
    if processes > 1:  # a process that ends before the others would break them off
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
