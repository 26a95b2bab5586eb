"""Fills in what a configuration leaves open, from the method, the model and the data; refuses what has no effect."""

from statistics import median
from typing import Any, Literal

from hcfl import methods
from hcfl.config import (
    AdmissionConfig,
    Config,
    EvaluationConfig,
    MethodConfig,
    ModelConfig,
    PersonalConfig,
    TrainingConfig,
)
from hcfl.data import Federation
from hcfl.data.given_groups import GivenGroups
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import IMAGE_NETWORK_OPTIONS, IMAGE_NETWORKS, default_model


def with_groups(config: MethodConfig, groups: GivenGroups | None) -> MethodConfig:
    """Record as many clusters as there are given groups, where the method has this setting."""
    if groups is None or config.clusters is None:
        return config
    return config.model_copy(update={"clusters": len(groups.names)})


def with_start(config: MethodConfig) -> MethodConfig:
    """Let FeSEM start from K different models where another adaptation replaces the k-means that creates them."""
    replaced = config.adaptation is not None and config.independent_start is None
    if replaced and "independent_start" in methods.settings_of(config.name):
        return config.model_copy(update={"independent_start": True})
    return config


def over_time(config: MethodConfig, steps: int) -> MethodConfig:
    """Let a method follow clients that change, where there are steps and it can."""
    can = config.name in methods.METHODS and "follows" in methods.settings_of(config.name)
    return config.model_copy(update={"follows": True}) if can and steps > 1 and config.follows is None else config


def filled_method(config: MethodConfig) -> MethodConfig:
    """Fill in the settings of a named method."""
    started = with_start(config)
    defaults = methods.settings_of(config.name)
    return started.model_copy(update={name: _given(started, name, default) for name, default in defaults.items()})


def _given(config: MethodConfig, name: str, default: Any) -> Any:
    value = getattr(config, name)
    return default if value is None else value


def passed_method(config: MethodConfig, method: Method) -> MethodConfig:
    """Record a method that was passed as a Python object: its name and its number of clusters."""
    return config.model_copy(update={"name": method.name, "clusters": method.clusters})


def filled_model(config: ModelConfig, shape: tuple[int, ...]) -> ModelConfig:
    """Fill in the model's name and options; refuse options that it does not have."""
    name = default_model(shape) if config.name == "auto" else config.name
    given = config.model_dump(include=set(IMAGE_NETWORK_OPTIONS), exclude_none=True)
    if name in IMAGE_NETWORKS:
        return config.model_copy(update={"name": name, **IMAGE_NETWORK_OPTIONS, **given})
    if given:
        option, value = next(iter(given.items()))
        raise InputError(f"model.{option} = {value}: is an option of {', '.join(IMAGE_NETWORKS)}, not of {name}")
    return config.model_copy(update={"name": name})


def passed_model(config: ModelConfig) -> ModelConfig:
    """Record that the model was passed as a Python object, so that it has to be passed again to load the run."""
    return config.model_copy(update={"name": "custom"})


VAL_CLIENTS = 2000
"""Of more clients, so many of them measure Val by default: the time of a round must not grow with all clients."""


def filled_evaluation(config: Config, clients: int) -> EvaluationConfig:
    """Fill in how many clients measure Val: all where clients make personal parts or measure by themselves."""
    asked = config.evaluation.val_clients
    elsewhere = "clients on Flower measure by themselves" if config.engine == "flower" else None
    personal = "personal parts are measured on all clients" if config.personal.kind != "none" else None
    reason = elsewhere or personal
    if reason and isinstance(asked, int):
        raise InputError(f"evaluation.val_clients = {asked}: {reason}, so it must be all")
    default: int | Literal["all"] = VAL_CLIENTS if clients > VAL_CLIENTS and reason is None else "all"
    return config.evaluation.model_copy(update={"val_clients": asked or default})


def filled_personal(config: PersonalConfig, rounds: int) -> PersonalConfig:
    """Fill in the round after which clients choose their personal parts: half of the rounds, rounded up."""
    if config.kind == "none":
        return config
    after = config.after or (rounds + 1) // 2
    if after > rounds:
        raise InputError(f"personal.after = {after}: must be at most training.rounds = {rounds}")
    return config.model_copy(update={"after": after})


SMALL_CLIENT = 128
"""Training samples: a client with fewer than one batch of the paper's size would take one SGD step per epoch."""


def filled_training(config: TrainingConfig, federation: Federation, method: Method) -> TrainingConfig:
    """Fill in batch size, local epochs and order: the paper's (128, 1), or (16, 5) where the median client is small."""
    small = median(federation.train_sizes.tolist()) < SMALL_CLIENT
    batch, epochs = config.batch or (16 if small else 128), config.epochs or (5 if small else 1)
    rounds, each = rounds_of(config, federation.steps)
    filled = {"batch": batch, "epochs": epochs, "rounds": rounds, "rounds_per_step": each}
    return config.model_copy(update={**filled, "order": config.order or method.order})


def rounds_of(config: TrainingConfig, steps: int) -> tuple[int, int | None]:
    """Return the rounds of a run and of each of its steps; where there is one step, it has no rounds of its own."""
    each = config.rounds_per_step
    if steps == 1:
        if each is not None:
            raise InputError(f"training.rounds_per_step = {each}: needs data.steps above 1")
        return config.rounds, None
    if each is None and config.rounds < steps:
        raise InputError(f"training.rounds = {config.rounds}: must be at least data.steps = {steps}")
    return (config.rounds, config.rounds // steps) if each is None else (steps * each, each)


def check_training(config: Config) -> None:
    """Refuse settings of training that have no effect, or nothing to go by."""
    training = config.training
    for name in ("lr_every", "lr_decay"):
        if (value := getattr(training, name)) is not None and training.schedule != "step":
            raise InputError(
                f"training.{name} = {value:g}: is of schedule step, but the schedule is {training.schedule}"
            )
    if training.patience is None:
        return
    if config.privacy.mode != "none":
        raise InputError(
            f"training.patience = {training.patience}: with privacy {config.privacy.mode} no held-out likelihood is "
            "measured to stop by"
        )
    if config.data.steps > 1:
        raise InputError(
            f"training.patience = {training.patience}: held-out data change with every one of the {config.data.steps} "
            "steps of time, so rounds cannot be compared"
        )


LONGEST_CHANGE = 3.0
"""On Flower, where clients are strangers, a change is shortened to so many times the median length by default."""


def filled_admission(config: AdmissionConfig, engine: str) -> AdmissionConfig:
    """Fill in how long a client's change can be."""
    default = LONGEST_CHANGE if engine == "flower" else None
    return config.model_copy(update={"longest_change": config.longest_change or default})
