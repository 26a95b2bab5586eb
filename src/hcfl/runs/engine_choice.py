"""The engine of a run, and its CPU threads: by a rule here, which a trial may overrule (`engine_trial.py`)."""

import os

import torch

from hcfl.config import Config, TrainingConfig
from hcfl.core.setting import Engine
from hcfl.data.readers import cache
from hcfl.engines import Batched, Private, Sequential
from hcfl.engines.kept_memory import keep_memory
from hcfl.engines.workers import Workers
from hcfl.errors import InputError
from hcfl.models import Network, kernels
from hcfl.models.recorded import Recorder

BATCHED_PARAMETERS = 150_000
"""The largest extractor that a CPU trains for all clients at once: stacked, larger ones do not fit its caches."""


COMPILED_ROUNDS = 20
"""The number of rounds from which compiling a network on a GPU pays by default."""


def chosen_engine(config: Config, network: Network, device: torch.device) -> tuple[str, bool]:
    """Return the engine and whether it compiles the network: on a CPU, only small dense networks gain from batching.

    Networks that we have kernels for are fast on a GPU without it; masks of dropout layers cannot be compiled.
    """
    parameters = [] if network.fixed else list(network.extractor.parameters())
    dense = all(parameter.ndim <= 2 for parameter in parameters)
    small = sum(parameter.numel() for parameter in parameters) <= BATCHED_PARAMETERS
    auto = "batched" if device.type != "cpu" or (dense and small) else "sequential"
    engine = auto if config.engine == "auto" else config.engine
    can = engine == "batched" and device.type == "cuda"
    if config.compile and not can:
        raise InputError(f"compile = true: is for the batched engine on a GPU, not for {engine} on {device.type}")
    dropping = bool(network.dropout_layers[0])
    if config.compile and dropping:
        raise InputError("compile = true: masks of dropout layers, which the extractor has, cannot be compiled")
    wanted = (
        not dense
        and not dropping
        and config.training.rounds >= COMPILED_ROUNDS
        and not (network.has_kernels and kernels.available())
    )
    compiled = can and (wanted if config.compile is None else config.compile)
    return engine, compiled


SMALL_STEP = 1_000_000
"""Parameters × batch: below about this product, an SGD step is too short to share between threads."""


def default_threads(network: Network, training: TrainingConfig, device: torch.device, engine: str) -> int:
    """Return the number of CPU threads; the last digits of a sum depend on it, so a run records it.

    Beside a GPU the CPU has only short steps to do, for which one thread is enough. Clients that train one after
    another can do so in several threads, each with one client.
    """
    if engine == "sequential" and device.type == "cpu":
        return torch.get_num_threads()
    parameters = sum(p.numel() for module in (network.extractor, network.head) for p in module.parameters())
    small = device.type != "cpu" or parameters * (training.batch or 1) < SMALL_STEP
    return 1 if small else torch.get_num_threads()


def engine_of(config: Config) -> Engine:
    """Build the engine. On Flower each client runs alone, and Flower's apps add the network and the noise."""
    if config.engine == "flower":
        return Sequential()
    if config.compile:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.location(config.data.cache_dir) / "compiled"))
    plain = plain_engine(config)
    return plain if config.privacy.mode == "none" else Private(plain, config.privacy)


def plain_engine(config: Config) -> Sequential | Batched:
    """Build the engine without noise.

    On a CPU, clients that train one after another do so side by side, in as many threads as there are, if that is
    faster. On a GPU, training steps of all clients at once are recorded unless the network is compiled.
    """
    keep_memory()  # weights and batches are made on the CPU also where a GPU trains
    if config.engine == "sequential":
        return Sequential(Workers(config.threads or 1) if config.device == "cpu" else None)
    return batched(config)


def batched(config: Config) -> Batched:
    """Build the engine that trains all clients at once."""
    recorder = Recorder() if config.device.startswith("cuda") and not config.compile else None
    return Batched(bool(config.compile), recorder)
