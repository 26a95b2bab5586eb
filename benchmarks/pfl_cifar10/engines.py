"""hcfl's engines on pfl-research's network, on a CPU: whether its dropout layers drop the same, and what they cost.

python benchmarks/pfl_cifar10/engines.py
"""

from dataclasses import replace
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
from hcfl.engines.kept_memory import keep_memory
from hcfl.methods.local_models import Plan
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble, copies, flatten, initialise
from hcfl.tiers.client_segments import Segments

CLIENTS, SAMPLES, REPEATS = 4, 50, 5
TRAINERS = {"sequential": train, "batched": Batched().train}


def job_of(model: Network, start: Ensemble, sgd: LocalSGD) -> Job:
    """Return one local epoch of a few clients of 50 images, in batches of 10."""
    draw, segments = torch.Generator().manual_seed(0), Segments((SAMPLES,) * CLIENTS)
    inputs = torch.randn(segments.samples, *SHAPE, generator=draw)
    labels = torch.randint(0, 10, (segments.samples,), generator=draw)
    models = copies(start, torch.zeros(CLIENTS, 1, dtype=torch.long))
    batches = shuffle(segments, sgd, [rng.torch_generator(client) for client in range(CLIENTS)])
    plan = Plan(models, torch.ones(CLIENTS, 1, 1), torch.ones(segments.samples, 1), models)
    purposes = [(0, client) for client in range(CLIENTS)]
    return Job(plan, None, LocalData(inputs, labels, 10, segments), batches, sgd, purposes)


def difference(dtype: torch.dtype, sgd: LocalSGD) -> float:
    """Return the largest difference of a parameter between the engines, after five local epochs."""
    torch.set_default_dtype(dtype)
    model, start = initialise(network(), SHAPE, 10, "full", 1, 0)
    job = job_of(model, start, replace(sgd, epochs=5))
    each = [trainer(model, job).models.rows() for trainer in TRAINERS.values()]
    torch.set_default_dtype(torch.float32)
    one, two = (flatten(models.heads, models.extractors, frozenset()) for models in each)
    return float((one - two).abs().max())


def main() -> None:
    """Print the difference of the parameters, and the CPU time of a step with and without dropout."""
    torch.set_num_threads(1)
    keep_memory()  # as a run does
    training = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "batch": 10, "epochs": 1, "order": "together"}
    sgd = LocalSGD.of(from_flat(method="fedavg", **training).training)
    for name, dtype in (("single", torch.float32), ("double", torch.float64)):
        print(
            f"largest difference of a parameter after five local epochs, {name} precision: {difference(dtype, sgd):.1e}"
        )
    models = {}
    for dropping in (True, False):
        extractor, head = network()
        layers = [layer for layer in extractor if dropping or not isinstance(layer, nn.Dropout)]
        models[dropping] = initialise((nn.Sequential(*layers), head), SHAPE, 10, "full", 1, 0)
    seconds: dict[tuple[str, bool], list[float]] = {}
    for _ in range(REPEATS):
        for dropping, (model, start) in models.items():
            job = job_of(model, start, sgd)
            for name, trainer in TRAINERS.items():
                began = process_time()
                trainer(model, job)
                seconds.setdefault((name, dropping), []).append(process_time() - began)
    print("\n| engine | ms of CPU time a step of 10 images, with dropout | without |\n|---|---|---|")
    for name in TRAINERS:
        each = (1000 * min(seconds[name, dropping]) * sgd.batch / (CLIENTS * SAMPLES) for dropping in (True, False))
        print(f"| {name} | {' | '.join(f'{number:.1f}' for number in each)} |")


if __name__ == "__main__":
    main()
