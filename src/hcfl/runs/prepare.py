"""Builds every part of a run from its configuration: method, data, model, engine; the only place where they meet."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import nn

from hcfl import methods, rng
from hcfl.config import (
    Config,
    EvaluationConfig,
    MethodConfig,
    ModelConfig,
    PersonalConfig,
    TrainingConfig,
    plugins,
)
from hcfl.core import rounds
from hcfl.core.evaluation import without_shares
from hcfl.core.given_start import from_groups
from hcfl.core.local_plan import train
from hcfl.core.setting import Setting
from hcfl.core.sgd import LocalSGD
from hcfl.data import Federation, build
from hcfl.data.tables.schema import Schema
from hcfl.engines import Sequential
from hcfl.engines.faulty import attackers_of, backdoor_of, with_faults
from hcfl.engines.stacked import can_be_batched
from hcfl.errors import InputError
from hcfl.methods import Method, choices
from hcfl.models import (
    IMAGE_NETWORK_OPTIONS,
    IMAGE_NETWORKS,
    MODELS,
    Builder,
    Network,
    Pair,
    TrainedPart,
    built_for,
    check_pair,
    text,
)
from hcfl.models.ensemble import Ensemble, embed, initialise
from hcfl.models.precision import check_precision
from hcfl.models.tasks import AnyTask, Classification, OwnLikelihood, Task
from hcfl.own_code import described_error
from hcfl.personal.links import link_of
from hcfl.personal.measuring import PersonalParts
from hcfl.privacy.rules import check_model, settled
from hcfl.runs import engine_trial, memory_estimate
from hcfl.runs.defaults import (
    check_training,
    filled_admission,
    filled_evaluation,
    filled_method,
    filled_model,
    filled_personal,
    filled_training,
    over_time,
    passed_method,
    passed_model,
    with_groups,
    with_start,
)
from hcfl.runs.engine_choice import batched, chosen_engine, default_threads, engine_of
from hcfl.runs.loop import Prepared

TIERS = ("formulation", "weighting", "adaptation", "distance", "topology", "local", "aggregation")
"""Settings that replace a choice of the named method."""


def prepare(
    config: Config,
    federation: Federation | None = None,
    model: Builder | Pair | None = None,
    method: Method | None = None,
) -> Prepared:
    """Build and check every part of a run, before its first round.

    A `federation`, `model` (a function that builds one, or an extractor and a head) or `method` takes the place of the
    configured one. The configuration of what is returned has every default filled in.

    >>> from hcfl.config import from_flat
    >>> prepare(from_flat(method="fedavg", clients=3)).config.training.batch
    128
    """
    device = _device(config.device)
    steps = config.data.steps if federation is None else federation.steps
    config = config.model_copy(update={"method": over_time(config.method, steps)})
    method_settings = filled_method(config.method) if method is None else passed_method(config.method, method)
    method = method or method_of(config.method)
    groups_given = config.data.groups is not None if federation is None else federation.settings.groups is not None
    method = from_groups(method) if groups_given else method
    privacy = settled(config, method).privacy
    if config.evaluation.plain_newcomers:
        without_shares(method)  # refuses a method without class shares before anything is built

    check_training(config)
    federation = federation or build(config.data, config.seed)
    method_settings = with_groups(method_settings, federation.groups)
    model_settings = filled_model(config.model, federation.shape) if model is None else passed_model(config.model)
    builder = model_builder(model_settings) if model is None else model
    if model is None:
        check_reads_texts(model_settings.name, federation.schema)
    task = task_of(federation, config.training)
    if config.personal.kind in ("prior", "head") and link_of(task) is None:
        raise InputError(
            f"personal.kind = {config.personal.kind!r}: must be fine-tune, proximal, mixture or auto, since "
            "training.loss does not say what a network's outputs mean, and nothing can be added to them"
        )
    if federation.steps > 1 and config.personal.kind != "none":
        raise InputError(
            f"personal.kind = {config.personal.kind!r}: personal parts are made from one training set, and this "
            f"federation has {federation.steps} steps of time"
        )
    trained = trained_part(config.training)
    with rng.scoped(config.seed, "check model"):
        federation, example = fitting(federation, _example(builder, federation, task), task)
        template = trained.network(example)
    builder = trained.of(built_for(task, builder))
    check_model(config, template)
    check_precision(config.precision, device)

    config = config.model_copy(update={"evaluation": filled_evaluation(config, federation.clients)})
    federation = measured_by(federation, config.evaluation, config.seed)
    training = filled_training(config.training, federation, method)
    engine, compiled = chosen_engine(config, template, device)
    unusual = engine == "batched" and model_settings.name not in MODELS
    if unusual and not can_be_batched(template, federation.shape, federation.scaling.dtype):
        engine, compiled = "sequential", False
        told = "the model cannot be trained for several clients at once, so clients train one after another"
        federation = replace(federation, notes=(*federation.notes, told))
    asked = config
    config = config.model_copy(
        update={
            "method": method_settings,
            "data": federation.settings,
            "model": model_settings,
            "training": training,
            "personal": filled_personal(config.personal, training.rounds),
            "privacy": privacy,
            "admission": filled_admission(config.admission, engine),
            "engine": engine,
            "compile": compiled,
            "threads": config.threads or default_threads(template, training, device, engine),
        }
    )
    memory_estimate.check(template, method, federation, config, device)
    network, ensemble = initialise(
        builder,
        federation.shape,
        task.outputs(federation.classes),
        method.topology,
        clusters_at_start(method, federation),
        config.seed,
        identical=method.traits.weighting.assigned_by_server or federation.groups is not None,
    )
    network = replace(network, half=config.precision == "bf16", task=task).to(device)
    federation = federation.to(device)
    if network.fixed:
        federation = replace(federation, frozen=partial(embed, network, {}))
    setting = Setting(
        federation=federation,
        method=method,
        network=network,
        engine=Sequential(),
        sgd=LocalSGD.of(config.training),
        participation=config.training.participation,
        newcomers=config.evaluation.newcomers,
        plain_newcomers=config.evaluation.plain_newcomers,
        evaluate_every=config.evaluation.evaluate_every,
        seed=config.seed,
        admission=config.admission,
        personal_every=config.personal.personal_every,
        attackers=attackers_of(config, federation),
        backdoor=backdoor_of(config, federation),
        rounds_per_step=training.rounds_per_step,
        stops_early=training.patience is not None,
    )
    state = rounds.begin(setting, ensemble.to(device))
    config, notes = engine_trial.overruled(asked, config, setting, state)
    federation = replace(federation, notes=(*federation.notes, *notes))
    setting = replace(
        setting,
        federation=federation,
        engine=with_faults(engine_of(config), config, federation, method),
        personal=personal_of(config, federation, ensemble.to(device)),
    )
    return Prepared(config, setting, state, _groups_kept(config, setting, model))


def _groups_kept(config: Config, setting: Setting, model: Builder | Pair | None) -> Callable[[], Prepared] | None:
    """Return what prepares a run of the given groups as they are, one model each, to compare with; None: no such run.

    Noise and sealed uploads are paid for with privacy, and real clients with their time: there is none for them.
    """
    wanted = config.evaluation.groups_kept and config.engine != "flower" and config.privacy.mode == "none"
    if setting.federation.groups is None or not wanted or config.method.name == "fedavg":
        return None
    plain = config.model_copy(update={"method": MethodConfig(name="fedavg"), "personal": PersonalConfig()})
    plain = plain.updated("evaluation", evaluate_every=config.training.rounds, groups_kept=False)
    return partial(prepare, plain.updated("training", patience=None), setting.federation, model)


def clusters_at_start(method: Method, federation: Federation) -> int:
    """Return the number of clusters before round 1: the given groups, the method's own, or one for each client."""
    if federation.groups is not None:
        return len(federation.groups.names)
    return federation.clients if method.clusters is None else method.clusters


def check_reads_texts(model: str, schema: Schema | None) -> None:
    """Refuse a language model for columns that are no texts, and texts that another model's tokenizer read."""
    column = None if schema is None else schema.text
    if column is not None and column.tokens is not None and column.tokens.tokenizer != model:
        raise InputError(
            f"model.name = {model!r}: the texts were read by the tokenizer of {column.tokens.tokenizer}, and only that "
            "model knows its token numbers"
        )
    if schema is not None and column is None and model.startswith(plugins.HUB_MODEL):
        raise InputError(f"model.name = {model!r}: reads texts; name the table's column of texts with data.text")


def fitting(federation: Federation, pair: object, task: Task) -> tuple[Federation, Network]:
    """Return the network, checked, and the federation with inputs of the type that it reads.

    Inputs that are not scaled and are whole numbers stay such where the network takes them, as embeddings do. Most
    other layers take floating-point numbers only, and get them.
    """
    shape, outputs, scaling = federation.shape, task.outputs(federation.classes), federation.scaling
    try:
        return federation, check_pair(pair, shape, outputs, scaling.dtype)
    except InputError as error:
        if not scaling.whole:
            raise InputError(f"{error}{_token_hint(federation, pair)}") from error.__cause__
        try:
            network = check_pair(pair, shape, outputs)
        except InputError:
            raise error from None
        return federation.with_floats(), network


def _token_hint(federation: Federation, pair: object) -> str:
    """Return what to say of a network that cannot read its inputs and has an embedding."""
    parts = [part for part in pair if isinstance(part, nn.Module)] if isinstance(pair, tuple | list) else []
    embeds = any(isinstance(module, nn.Embedding) for part in parts for module in part.modules())
    return "; token numbers need data.scale = none" if embeds and federation.settings.scale != "none" else ""


def task_of(federation: Federation, training: TrainingConfig) -> Task:
    """Return what clients train for: the federation's task, with class weights or the user's own likelihood."""
    task = federation.task
    if training.class_weights is not None:
        if not isinstance(task, Classification):
            raise InputError(f"training.class_weights = {training.class_weights!r}: the task is {task.name}")
        task = Classification(class_weights(training.class_weights, federation))
    return with_own_loss(task, training)


def with_own_loss(task: AnyTask, training: TrainingConfig) -> Task:
    """Return the task with the user's own likelihood, where there is one."""
    if training.loss is None:
        return task
    function = plugins.load("training.loss", training.loss)
    if not callable(function):
        raise InputError(f"training.loss = {training.loss!r}: is not a function of (outputs, answers)")
    return OwnLikelihood(task, function)


def trained_part(training: TrainingConfig) -> TrainedPart:
    """Return what clients train of the extractor."""
    names, layers = (
        tuple(name.strip() for name in listed.split(",") if name.strip())
        for listed in (training.train, training.lora_layers)
    )
    return TrainedPart(names or ("heads",), training.lora_rank, training.lora_scale, layers or ("*",))


def class_weights(asked: str, federation: Federation) -> tuple[float, ...]:
    """Return the weight of each class: `balanced` (n / (classes · samples of the class)), or as `sick=3,well=1` says.

    They are scaled so that the mean over all samples is 1, where the samples are known: the step size stays.
    """
    names, field = federation.class_names, f"training.class_weights = {asked!r}"
    if asked == "balanced":
        if not len(federation.y):
            raise InputError(f"{field}: the server does not know the labels; give a weight for each class")
        counts = federation.class_table().sum(axis=0)
        return tuple((counts.sum() / (len(names) * counts.clip(1))).tolist())
    pairs = [pair.rpartition("=") for pair in asked.split(",")]
    try:
        given = {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        raise InputError(f"{field}: must be balanced, or look like {names[0]}=3,{names[-1]}=1") from None
    if set(given) != set(names) or min(given.values()) <= 0:
        raise InputError(f"{field}: must have a weight above 0 for each of the classes {', '.join(names[:20])}")
    return tuple(given[name] for name in names)


def method_of(config: MethodConfig) -> Method:
    """Build a named method with its settings; configured tiers replace the method's own."""
    config = with_start(config)
    method = methods.build(config.name, **config.model_dump(exclude={"name", "warm_up", *TIERS}))
    method = choices.override(method, **config.model_dump(include=set(TIERS)))
    return replace(method, warm_up=config.warm_up)


def personal_of(config: Config, federation: Federation, start: Ensemble) -> PersonalParts | None:
    """Build the maker of personal parts, which trains whole models as the engine does.

    None where there are none: in private runs, single clients measure nothing to choose by.
    """
    after = config.personal.after
    if config.personal.kind == "none" or after is None or config.privacy.mode != "none":
        return None
    trainer, first = batched(config).train if config.engine == "batched" else train, start.select([0])
    return PersonalParts(config.personal.kind, trainer, replace(first, topology="full"), federation, after)


def measured_by(federation: Federation, evaluation: EvaluationConfig, seed: int) -> Federation:
    """Let a sample of the clients that hold out samples measure Val, the same in all rounds; or all clients."""
    holders, wanted = np.flatnonzero(federation.val_sizes), evaluation.val_clients
    if not isinstance(wanted, int) or wanted >= len(holders):
        return replace(federation, val_clients=None)
    drawn = rng.numpy_generator(seed, "val clients").choice(holders, wanted, replace=False)
    return replace(federation, val_clients=np.sort(drawn))


def _example(model: Builder | Pair, federation: Federation, task: Task) -> object:
    if isinstance(model, tuple | list | nn.Module) or not callable(model):
        return deepcopy(model)
    try:
        return model(federation.shape, task.outputs(federation.classes))
    except InputError:
        raise
    except Exception as error:  # show the user what the user's function raised
        raise InputError(f"model: building it failed ({described_error(error)})") from error


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise InputError(f"device = {name!r}: is not a device of this machine; cpu always is") from None
    return device


def model_builder(config: ModelConfig) -> Builder:
    """Return the builder of a model by its name, or a user's own: `FILE.py:FUNCTION` or `package.module:FUNCTION`."""
    name = config.name
    if name in IMAGE_NETWORKS:
        return partial(IMAGE_NETWORKS[name], **config.model_dump(include=set(IMAGE_NETWORK_OPTIONS), exclude_none=True))
    if name in MODELS:
        return MODELS[name]
    if name.startswith(plugins.HUB_MODEL):
        return text.builder(name)
    if ":" not in name:
        names = ", ".join(MODELS)
        raise InputError(f"model.name = {name!r}: must be auto, {names}, or FILE.py:FUNCTION that builds one")
    builder: Builder = plugins.load("model.name", name)
    if not callable(builder):
        raise InputError(f"model.name = {name!r}: is not a function of (input shape, classes)")
    return builder
