"""BlazeFL: FedAvg by its pool of processes, one for each core, with parameters in shared memory.

Its pool of threads needs a Python without the global interpreter lock to run clients side by side.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter

import torch
import torch.multiprocessing as mp
from blazefl.core import IPCMode, ProcessPoolClientTrainer, SHMHandle, deserialize_model, serialize_model
from torch import Tensor
from workload import (
    LEARNING_RATE,
    MOMENTUM,
    WEIGHT_DECAY,
    CountedLoss,
    Workload,
    accuracy,
    arguments,
    load,
    network,
    report,
)


@dataclass
class Sent:
    """What a client sends: its parameters, and how many steps it took."""

    parameters: Tensor | SHMHandle
    steps: int


class Trainer(ProcessPoolClientTrainer[Sent, Tensor, tuple[Workload, int]]):
    """Trains clients in processes. They are forks, so they have the data."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.num_parallels, self.device, self.ipc_mode = workload.cores, "cpu", IPCMode.SHARED_MEMORY
        self.share_dir, self.cache = Path(mkdtemp()), []
        self.manager = mp.Manager()
        self.stop_event = self.manager.Event()

    def get_client_config(self, cid: int) -> tuple[Workload, int]:
        """Return what a process needs to know of a client."""
        return self.workload, cid

    def prepare_uplink_package_buffer(self) -> Sent:
        """Return where a client puts its parameters."""
        return Sent(serialize_model(network(self.workload.model)), 0)

    @staticmethod
    def worker(
        config: tuple[Workload, int],
        payload: Tensor,
        device: str,
        stop_event: threading.Event,
        *,
        shm_buffer: Sent,
    ) -> Sent:
        """Train one client, with batches drawn by index: faster than a DataLoader."""
        workload, client = config
        torch.set_num_threads(1)
        x, y = load(workload.data)
        model, loss, steps = network(workload.model).train(), CountedLoss(), 0
        deserialize_model(model, payload)
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
        for _ in range(workload.epochs):
            for batch in torch.split(torch.randperm(y.shape[1]), workload.batch):
                optimizer.zero_grad()
                loss(model(x[client, batch]), y[client, batch]).backward()
                optimizer.step()
                steps += 1
        shm_buffer.parameters.copy_(serialize_model(model))
        return Sent(SHMHandle(), steps)

    def uplink_package(self) -> list[Sent]:
        """Return what all clients of the round sent."""
        sent, self.cache = self.cache, []
        return sent


def main() -> None:
    """Run all rounds."""
    workload = arguments(__doc__)
    torch.set_num_threads(1)  # before processes are forked
    x, y = load(workload.data)
    model, trainer, seconds, steps = network(workload.model), Trainer(workload), [], 0
    for _ in range(workload.rounds):
        started = perf_counter()
        trainer.local_process(serialize_model(model), list(range(len(y))))
        sent = trainer.uplink_package()
        # All clients hold equally many samples, so the weighted mean is the mean.
        deserialize_model(model, torch.stack([one.parameters for one in sent]).mean(0))
        seconds.append(perf_counter() - started)
        steps += sum(one.steps for one in sent)
    report(f"BlazeFL, {workload.cores} processes", seconds, steps, accuracy(model, x, y))


if __name__ == "__main__":
    main()
