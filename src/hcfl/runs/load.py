"""Opens a run from its folder, without the data it was trained on."""

from collections.abc import Mapping
from pathlib import Path

import torch

from hcfl import rng
from hcfl.config import Config, ModelConfig, plugins
from hcfl.data.readers.paths import is_file, is_folder
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.models import IMAGE_NETWORKS, MODELS, Builder, Network, Pair, TrainedPart, built_for, parameters_of
from hcfl.models.ensemble import Ensemble
from hcfl.models.tasks import Task
from hcfl.runs import backbone, best_round, checkpoint
from hcfl.runs import folder as run_folder
from hcfl.runs.best_round import Serve
from hcfl.runs.json_files import read_object
from hcfl.runs.prepare import method_of, model_builder, trained_part, with_own_loss
from hcfl.runs.run import Run

EVERYTHING = TrainedPart()


def load(
    path: str | Path,
    *,
    model: Builder | Pair | None = None,
    method: Method | None = None,
    allow_code: bool = False,
    serve: Serve = "best",
) -> Run:
    """Open a run from its folder, with the models of its best round, or, with `serve="last"`, of its last.

    A model or method that was passed to the run as a Python object is not in its folder, and has to be passed again.
    Where the folder names code of its own (`FILE.py:CLASS`), it runs only with `allow_code`.
    """
    path = Path(path)
    if serve not in ("best", "last"):
        raise InputError(f"serve = {serve!r}: must be best or last")
    if not is_file(path / run_folder.CONFIG) or not is_folder(path / run_folder.CHECKPOINT):
        raise InputError(f"run = {str(path)!r}: is not the folder of a run that ended")
    if not (path / run_folder.CHECKPOINT / checkpoint.OUTLINE_FILE).exists():
        raise InputError(f"run = {str(path)!r}: has no {checkpoint.OUTLINE_FILE} yet; `hcfl resume` ends the run")
    config = Config.load(path / run_folder.CONFIG)
    built = {name for name, part in (("model", model), ("method", method)) if part is not None}
    plugins.check_trusted(f"run = {str(path)!r}", config.model_dump(exclude=built), allow_code)
    state, scaling = checkpoint.load(path / run_folder.CHECKPOINT)
    known = checkpoint.load_outline(path / run_folder.CHECKPOINT)
    federation = known.outline.federation(config.data, scaling)
    task, trained = with_own_loss(federation.task, config.training), trained_part(config.training)
    if model is None and config.model.name in MODELS:
        with torch.device("meta"):  # takes no memory: a damaged folder can name any size
            sketch = rebuild(config.model, federation.shape, federation.classes, task, trained=trained)
        check_fit(sketch, state.server.ensemble, f"run = {str(path)!r}")
    network = rebuild(config.model, federation.shape, federation.classes, task, model, trained)
    network = backbone.read(path / run_folder.CHECKPOINT, network)
    best = best_round.read(path / run_folder.CHECKPOINT) if serve == "best" else None
    for each in (state, *(() if best is None else (best.state,))):
        check_fit(network, each.server.ensemble, f"run = {str(path)!r}")
    rows, summary = run_folder.rows(path, run_folder.METRICS), read_object(path / run_folder.SUMMARY)
    if not rows or not all(isinstance(row.get("round"), int) for row in rows):
        raise InputError(f"run = {str(path)!r}: {run_folder.METRICS} is damaged, every line must have its round")
    chosen = method or method_of(config.method)
    profiles, kept = (known.profiles, None) if best is None else (best.profiles, best.state)
    return Run(path, config, federation, summary, rows, state, chosen, network, profiles, kept)


def rebuild(
    config: ModelConfig,
    shape: tuple[int, ...],
    classes: int,
    task: Task,
    model: Builder | Pair | None = None,
    trained: TrainedPart = EVERYTHING,
) -> Network:
    """Build a network without its trained weights, which the caller has."""
    if model is None:
        if config.name == "custom":
            raise InputError("model = None: the run's model was passed from Python, so it has to be passed again")
        unweighted = {"pretrained": "none"} if config.name in IMAGE_NETWORKS else {}
        model = model_builder(config.model_copy(update=unweighted))
    model = built_for(task, model)
    with rng.scoped(0, "rebuild"):
        plain = Network(*(model(shape, task.outputs(classes)) if callable(model) else model), task=task)
        return trained.network(plain)


def check_fit(network: Network, ensemble: Ensemble, what: str) -> None:
    """Refuse a network whose parameters have other names or shapes than the stored weights."""
    parts = (
        (network.trained_part(network.extractor), ensemble.extractors),
        (parameters_of(network.head), ensemble.heads),
    )
    for built, stored in parts:
        found = {name: tuple(tensor.shape[1:]) for name, tensor in stored.items()}
        _compare({name: tuple(tensor.shape) for name, tensor in built.items()}, found, what)


def _compare(built: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], what: str) -> None:
    if wrong := sorted({*built.items()} ^ {*found.items()}):
        raise InputError(f"{what}: its weights do not fit the model, first at {wrong[0][0]}")
