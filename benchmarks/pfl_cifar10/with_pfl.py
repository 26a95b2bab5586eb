"""pfl-research on its own CIFAR-10 benchmark, in an environment with pfl[pytorch]==0.6.*.

python benchmarks/pfl_cifar10/with_pfl.py --device cuda
torchrun --standalone --nproc-per-node 5 benchmarks/pfl_cifar10/with_pfl.py --device cuda   # five processes, one GPU
"""

import os
from time import perf_counter

import torch

if "TORCHELASTIC_RUN_ID" in os.environ:
    # pfl gives each of several processes a GPU of its own, by NCCL. Here they share one, as in its own benchmark.
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda backend, **settings: begin("gloo", **settings)
    torch.cuda.set_device = lambda device: None

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
from torch.nn.functional import cross_entropy
from work import BATCH, EVERY, LEARNING_RATE, arguments, images, network, report


class Model(nn.Module):
    """The network with the two methods that pfl calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*network())

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return what is minimised."""
        self.train()
        return cross_entropy(self.layers(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Nothing: Test is measured by the callback."""
        return {"samples": Weighted(len(y), 1)}


class Clock(TrainingProcessCallback):
    """When each round ended; every tenth one measures Test before, on one of the processes."""

    def __init__(self, module: Model, x: Tensor, y: Tensor) -> None:
        self.module, self.x, self.y = module, x, y
        self.times: list[float] = []
        self.accuracy = 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start."""
        self.times.append(perf_counter())
        return Metrics()

    @torch.no_grad()
    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note the time."""
        if central_iteration % EVERY == EVERY - 1 and distributed.global_rank == 0:
            self.module.eval()
            best = [self.module.layers(some).argmax(1) for some in torch.split(self.x, 1000)]
            self.accuracy = float((torch.cat(best) == self.y).float().mean())
        self.times.append(perf_counter())
        return False, Metrics()


def main() -> None:
    """Run all rounds."""
    work = arguments(__doc__)
    device = torch.device(work.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    os.environ["PFL_PYTORCH_DEVICE"] = work.device  # which pfl reads
    x, y = (torch.from_numpy(part) for part in images(work))
    train = work.users * work.samples
    mean, std = (of(x[:train].float(), (0, 1, 2)) for of in (torch.mean, torch.std))
    inputs, labels = ((x.float() - mean) / std).to(device), y.to(device)
    parts = zip(inputs[:train].split(work.samples), labels[:train].split(work.samples), strict=True)
    users = [PyTorchTensorDataset(list(mine)) for mine in parts]
    dataset = FederatedDataset(users.__getitem__, get_user_sampler("random", range(len(users))))
    module = Model().to(device)
    clock = Clock(module, inputs[train:], labels[train:])
    FederatedAveraging().run(
        NNAlgorithmParams(work.rounds, work.rounds, train_cohort_size=work.cohort, val_cohort_size=None),
        SimulatedBackend(dataset, dataset),
        PyTorchModel(
            module,
            lambda parameters, lr: torch.optim.SGD(parameters, lr),
            torch.optim.SGD(module.parameters(), 1.0),
        ),
        NNTrainHyperParams(BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    if distributed.global_rank == 0:
        seconds = [after - before for before, after in zip(clock.times, clock.times[1:], strict=False)]
        report(f"pfl-research, {distributed.world_size} processes", seconds, clock.accuracy)


if __name__ == "__main__":
    main()
