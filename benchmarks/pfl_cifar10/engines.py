"""hcfl's engines on pfl-research's network, on a CPU: whether its dropout layers drop the same, and what they cost.

python benchmarks/pfl_cifar10/engines.py
"""

from time import process_time

import torch
from torch import nn
from work import SHAPE, network

from hcfl import rng
from hcfl.config import from_flat
from hcfl.core.local_plan import Job, train
from hcfl.core.sgd import LocalSGD, shuffle
from hcfl.data.local_data import LocalData
from hcfl.engines import Batched
from hcfl.methods.local_models import Plan
from hcfl.models import Network
from hcfl.models.ensemble import copies, flatten, initialise
from hcfl.tiers.client_segments import Segments

CLIENTS, SAMPLES, REPEATS = 4, 50, 5


def job_of(model: Network, start: object, sgd: LocalSGD) -> Job:
    """Return one local epoch of a few clients of 50 images, in batches of 10."""
    draw, segments = torch.Generator().manual_seed(0), Segments((SAMPLES,) * CLIENTS)
    inputs = torch.randn(segments.samples, *SHAPE, generator=draw)
    labels = torch.randint(0, 10, (segments.samples,), generator=draw)
    models = copies(start, torch.zeros(CLIENTS, 1, dtype=torch.long))
    batches = shuffle(segments, sgd, [rng.torch_generator(client) for client in range(CLIENTS)])
    plan = Plan(models, torch.ones(CLIENTS, 1, 1), torch.ones(segments.samples, 1), models)
    purposes = [(0, client) for client in range(CLIENTS)]
    return Job(plan, None, LocalData(inputs, labels, 10, segments), batches, sgd, purposes)


def main() -> None:
    """Print the difference of the parameters and the CPU time of a step, with and without dropout."""
    torch.set_num_threads(1)
    training = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch": 10, "epochs": 1, "order": "together"}
    sgd = LocalSGD.of(from_flat(method="fedavg", **training).training)
    steps = CLIENTS * SAMPLES // sgd.batch
    seconds: dict[tuple[str, bool], list[float]] = {}
    difference = 0.0
    models = {}
    for dropping in (True, False):
        extractor, head = network()
        if not dropping:
            extractor = nn.Sequential(*(layer for layer in extractor if not isinstance(layer, nn.Dropout)))
        models[dropping] = initialise((extractor, head), SHAPE, 10, "full", 1, 0)
    for _ in range(REPEATS):
        for dropping, (model, start) in models.items():
            job, trained = job_of(model, start, sgd), []
            for name, trainer in (("sequential", train), ("batched", Batched().train)):
                began = process_time()
                trained.append(trainer(model, job).models.rows())
                seconds.setdefault((name, dropping), []).append((process_time() - began) / steps)
            one, two = (flatten(each.heads, each.extractors, frozenset()) for each in trained)
            difference = max(difference, float((one - two).abs().max()))
    print(f"largest difference of a parameter after one local epoch: {difference:.1e}\n")
    print("| engine | ms of CPU time a step of 10 images, with dropout | without |\n|---|---|---|")
    for name in ("sequential", "batched"):
        cells = (f"{1000 * min(seconds[name, dropping]):.1f}" for dropping in (True, False))
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
