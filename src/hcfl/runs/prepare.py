"""Config → parts → run: the only place where the parts meet."""

import os
from copy import deepcopy
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from torch import nn

from hcfl import methods, rng
from hcfl.config import Config, MethodConfig, ModelConfig, plugins
from hcfl.core import rounds
from hcfl.core.evaluation import without_shares
from hcfl.core.setting import Engine, Setting
from hcfl.core.sgd import LocalSGD
from hcfl.data import Federation, build
from hcfl.data.readers import cache
from hcfl.engines import Batched, Private, Sequential
from hcfl.engines.faulty import with_faults
from hcfl.errors import InputError
from hcfl.methods import Method, choices
from hcfl.models import IMAGE_NETWORK_OPTIONS, IMAGE_NETWORKS, MODELS, Builder, Network, Pair, check_pair, default_model
from hcfl.models.ensemble import initialise
from hcfl.models.precision import check_precision
from hcfl.privacy.rules import check_model, settled
from hcfl.runs import memory_estimate
from hcfl.runs.loop import Prepared

TIERS = ("formulation", "weighting", "adaptation", "distance", "topology", "local", "aggregation")
"""Settings that replace a choice of the named method."""


def prepare(
    config: Config,
    federation: Federation | None = None,
    model: Builder | Pair | None = None,
    method: Method | None = None,
) -> Prepared:
    """Build and check every part; what is passed from Python takes the place of what is configured."""
    device = _device(config.device)
    if method is None:
        config = config.model_copy(update={"method": with_start(config.method)})
        method = method_of(config.method)
        defaults, given = methods.settings_of(config.method.name), config.method.model_dump()
        used = {name: default if given[name] is None else given[name] for name, default in defaults.items()}
        config = config.updated("method", **used)
    else:
        config = config.updated("method", name=method.name, clusters=method.clusters)
    config = settled(config, method)
    if config.evaluation.plain_newcomers:
        without_shares(method)  # refuses it, before anything is built, where that means nothing

    federation = federation or build(config.data, config.seed)
    config = config.model_copy(update={"data": federation.settings})
    if model is None:
        config = config.updated("model", **model_settings(config.model, federation.shape))
        model = model_builder(config.model)
    else:
        config = config.updated("model", name="custom")

    with rng.scoped(config.seed, "check model"):
        template = check_pair(_example(model, federation), federation.shape, federation.classes)
    check_model(config, template)
    check_precision(config.precision, device)
    config = with_threads(with_local_steps(config, federation), template, device)
    config = with_engine(config, template, device)
    memory_estimate.check(template, method, federation, config, device)
    network, ensemble = initialise(
        model,
        federation.shape,
        federation.classes,
        method.topology,
        federation.clients if method.clusters is None else method.clusters,
        config.seed,
        identical=method.traits.weighting.assigned_by_server,
    )
    network = replace(network, half=config.precision == "bf16")
    federation = federation.to(device)
    setting = Setting(
        federation=federation,
        method=method,
        network=network,
        engine=with_faults(engine_of(config), config, federation, method),
        sgd=LocalSGD.of(config.training),
        participation=config.training.participation,
        newcomers=config.evaluation.newcomers,
        plain_newcomers=config.evaluation.plain_newcomers,
        evaluate_every=config.evaluation.evaluate_every,
        seed=config.seed,
        admission=config.admission,
    )
    return Prepared(config, setting, rounds.begin(setting, ensemble.to(device)))


def with_start(config: MethodConfig) -> MethodConfig:
    """Let FeSEM's K models start apart where the adaptation that would make them of one is replaced."""
    replaced = config.adaptation is not None and config.independent_start is None
    if replaced and "independent_start" in methods.settings_of(config.name):
        return config.model_copy(update={"independent_start": True})
    return config


def method_of(config: MethodConfig) -> Method:
    """Return a named method with its settings, and the tiers that take the place of its own."""
    config = with_start(config)
    method = methods.build(config.name, **config.model_dump(exclude={"name", "warm_up", *TIERS}))
    method = choices.override(method, **config.model_dump(include=set(TIERS)))
    return replace(method, warm_up=config.warm_up)


BATCHED_PARAMETERS = 150_000
"""On a CPU, the largest extractor that is trained for all clients at once: stacked, larger ones leave its caches."""


COMPILED_ROUNDS = 20
"""From how many rounds on compiling a network on a GPU pays, unless told otherwise."""


def with_engine(config: Config, network: Network, device: torch.device) -> Config:
    """Fill in the engine: on a CPU, only small dense networks gain from running together; and whether it compiles."""
    parameters = list(network.extractor.parameters())
    dense = all(parameter.ndim <= 2 for parameter in parameters)
    small = sum(parameter.numel() for parameter in parameters) <= BATCHED_PARAMETERS
    auto = "batched" if device.type != "cpu" or (dense and small) else "sequential"
    engine = auto if config.engine == "auto" else config.engine
    can = engine == "batched" and device.type == "cuda"
    if config.compile and not can:
        raise InputError(f"compile = true: is for the batched engine on a GPU, not for {engine} on {device.type}")
    wanted = not dense and config.training.rounds >= COMPILED_ROUNDS
    compiled = can and (wanted if config.compile is None else config.compile)
    return config.model_copy(update={"engine": engine, "compile": compiled})


def engine_of(config: Config) -> Engine:
    """Return the engine; on Flower every client works by itself, and the apps put the network, and noise, between."""
    if config.engine == "flower":
        return Sequential()
    if config.compile:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache.location(config.data.cache_dir) / "compiled"))
    plain = Sequential() if config.engine == "sequential" else Batched(compiled=bool(config.compile))
    return plain if config.privacy.mode == "none" else Private(plain, config.privacy)


SMALL_CLIENT = 128
"""Training samples: below one batch of the paper's size, an epoch would be a single step of gradient descent."""


def with_local_steps(config: Config, federation: Federation) -> Config:
    """Fill in batch size and local epochs: the paper's (128, 1), unless the typical client is too small for them."""
    small = median(len(rows) for rows in federation.train) < SMALL_CLIENT
    training = config.training
    return config.updated(
        "training",
        batch=training.batch or (16 if small else 128),
        epochs=training.epochs or (5 if small else 1),
    )


SMALL_STEP = 1_000_000
"""Parameters × batch: a rough line below which steps are too short to share between threads."""


def with_threads(config: Config, network: Network, device: torch.device) -> Config:
    """Fill in the number of CPU threads; the last digits of a sum depend on it, so a run records it.

    Beside a GPU the CPU has only short steps left to do.
    """
    parameters = sum(p.numel() for module in (network.extractor, network.head) for p in module.parameters())
    small = device.type != "cpu" or parameters * (config.training.batch or 1) < SMALL_STEP
    return config.model_copy(update={"threads": config.threads or (1 if small else torch.get_num_threads())})


def _example(model: Builder | Pair, federation: Federation) -> object:
    if isinstance(model, tuple | list | nn.Module) or not callable(model):
        return deepcopy(model)
    try:
        return model(federation.shape, federation.classes)
    except InputError:
        raise
    except Exception as error:  # whatever a user's function raises is the user's to read
        raise InputError(f"model: building it failed ({type(error).__name__}: {error})") from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"device = {name!r}: is not a device of this machine; cpu always is") from None
    return device


def model_settings(config: ModelConfig, shape: tuple[int, ...]) -> dict[str, str | float]:
    """Fill in the name of the model, and its options where it has some; others are refused."""
    name = default_model(shape) if config.name == "auto" else config.name
    given = config.model_dump(include=set(IMAGE_NETWORK_OPTIONS), exclude_none=True)
    if name in IMAGE_NETWORKS:
        return {"name": name, **IMAGE_NETWORK_OPTIONS, **given}
    if given:
        option, value = next(iter(given.items()))
        raise InputError(f"model.{option} = {value}: is an option of {', '.join(IMAGE_NETWORKS)}, not of {name}")
    return {"name": name}


def model_builder(config: ModelConfig) -> Builder:
    """Return a named model's builder, or a user's own: `FILE.py:FUNCTION` or `package.module:FUNCTION`."""
    name = config.name
    if name in IMAGE_NETWORKS:
        return partial(IMAGE_NETWORKS[name], **config.model_dump(include=set(IMAGE_NETWORK_OPTIONS), exclude_none=True))
    if name in MODELS:
        return MODELS[name]
    if ":" not in name:
        names = ", ".join(MODELS)
        raise InputError(f"model.name = {name!r}: must be auto, {names}, or FILE.py:FUNCTION that builds one")
    builder: Builder = plugins.load("model.name", name)
    if not callable(builder):
        raise InputError(f"model.name = {name!r}: is not a function of (input shape, classes)")
    return builder
