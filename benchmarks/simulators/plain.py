"""A plain PyTorch loop: one client after another, a copy of the model each."""

from copy import deepcopy
from time import perf_counter

import torch
from torch.utils.data import DataLoader, TensorDataset
from workload import LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, CountedLoss, accuracy, arguments, load, network, report


def main() -> None:
    """Run all rounds."""
    workload = arguments(__doc__)
    torch.set_num_threads(workload.threads)
    x, y = load(workload.data)
    loaders = [
        DataLoader(TensorDataset(*mine), batch_size=workload.batch, shuffle=True) for mine in zip(x, y, strict=True)
    ]
    model, loss, seconds = network(workload.model), CountedLoss(), []
    for _ in range(workload.rounds):
        started = perf_counter()
        states = []
        for loader in loaders:
            local = deepcopy(model).train()
            optimizer = torch.optim.SGD(local.parameters(), LEARNING_RATE, MOMENTUM, weight_decay=WEIGHT_DECAY)
            for _ in range(workload.epochs):
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    loss(local(inputs), labels).backward()
                    optimizer.step()
            states.append(local.state_dict())
        # All clients hold equally many samples, so the weighted mean is the mean.
        model.load_state_dict({name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]})
        seconds.append(perf_counter() - started)
    report("plain PyTorch loop", seconds, CountedLoss.calls, accuracy(model, x, y))


if __name__ == "__main__":
    main()
