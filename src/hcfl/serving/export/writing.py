"""Three formats: ONNX for any runtime, TorchScript for libtorch, safetensors for hcfl itself."""

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl import rng
from hcfl.config import ModelConfig
from hcfl.data.tables import Schema
from hcfl.errors import InputError
from hcfl.models import Builder, Network, Pair
from hcfl.models.tasks import CLASSES, AnyTask
from hcfl.runs import state_file
from hcfl.runs.atomic_file import replacing
from hcfl.runs.links import check_target
from hcfl.runs.load import check_fit, rebuild
from hcfl.runs.run import Run
from hcfl.serving import predict as predictions
from hcfl.serving.export.plain import plain
from hcfl.serving.export.served import Served
from hcfl.serving.predict import Blend

Format = Literal["onnx", "torchscript", "safetensors"]
"""Formats of model files."""

FORMATS: tuple[Format, ...] = get_args(Format)

SUFFIXES: dict[str, Format] = {".onnx": "onnx", ".pt": "torchscript", ".safetensors": "safetensors"}
"""The format of each file suffix."""

NEEDED: dict[Format, tuple[str, ...]] = {"onnx": ("onnx", "onnxscript", "onnxruntime")}
"""Libraries that are an extra."""

VERSION = 2
"""Of the safetensors layout; another one is refused."""

TOLERANCE = 1e-4
"""The largest allowed difference to the run's own probabilities: runtimes sum in another order."""

CHECKED = 7
"""The number of samples to check a written file with; not the number that the graph was traced with."""

OUTPUT = {
    "classification": "class probabilities (samples, classes)",
    "regression": "mean and standard deviation (samples, 2)",
    "multi-label": "probability of each label (samples, labels)",
}
"""What a model file returns, by task."""

Predictor = Callable[[Tensor], NDArray[np.float32]]
"""Raw inputs → class probabilities, by a file that was written."""


@dataclass(frozen=True)
class Architecture:
    """The network that weights belong to."""

    name: str
    norm: str | None = None
    stem: str | None = None

    def settings(self) -> ModelConfig:
        """Return the configuration that builds it."""
        return ModelConfig.model_validate({"name": self.name, "norm": self.norm, "stem": self.stem})


@dataclass(frozen=True)
class Exported:
    """What a safetensors file holds: everything that `hcfl.load_model` needs."""

    architecture: Architecture
    shape: tuple[int, ...]
    stored: str
    class_names: tuple[str, ...]
    blend: Blend
    schema: Schema | None = None
    """How rows of a table become inputs."""
    task: AnyTask = CLASSES


def write(run: Run, blend: Blend, path: Path, format: Format | None = None) -> Path:
    """Write a model, read it again, and compare it with the run's own prediction."""
    chosen = _format(path, format)
    blend = blend.to(torch.device("cpu"))
    network = replace(run.network, half=False).to(torch.device("cpu"))  # files are in single precision
    examples = _examples(run)
    check_target(path, run.path)
    try:
        with replacing(path) as unfinished:
            predict = WRITERS[chosen](run, *plain(network, blend), unfinished)
            expected = predictions.probabilities(network, blend, examples).numpy()
            off = float(np.abs(predict(examples) - expected).max())
            if not off <= TOLERANCE:
                raise RuntimeError(f"{path}: the {chosen} file predicts otherwise than the run, by up to {off:.1e}")
    except OSError as error:
        raise InputError(f"out = {str(path)!r}: cannot be written ({error.strerror})") from None
    return path


def _format(path: Path, asked: str | None) -> Format:
    chosen = asked or SUFFIXES.get(path.suffix)
    for known in FORMATS:
        if known == chosen:
            missing = [
                name for name in ("onnx", "onnxscript", "onnxruntime") if known == "onnx" and not find_spec(name)
            ]
            if missing:
                raise InputError(f"format = onnx: needs {', '.join(missing)}; pip install 'hcfl[onnx]'")
            return known
    if asked is None:
        raise InputError(f"out = {str(path)!r}: must end in {', '.join(SUFFIXES)}, or say the format")
    raise InputError(f"format = {asked!r}: must be {', '.join(FORMATS)}")


def _examples(run: Run) -> Tensor:
    """Draw inputs with the mean and deviation of the federation's; of whole numbers 0 and 1, which any table has."""
    scaling, like = run.federation.scaling, run.federation.x
    generator = rng.torch_generator(run.config.seed, "export")
    if scaling.whole:
        return torch.randint(2, (CHECKED, *run.federation.shape), generator=generator).to(like.dtype)
    drawn = torch.randn(CHECKED, *run.federation.shape, generator=generator) * scaling.std.cpu() + scaling.mean.cpu()
    return drawn if like.is_floating_point() else drawn.round().clamp(0, 255).to(like.dtype)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's warnings that do not matter here.

    They are about fixed input shapes, about TorchScript, which the user asked for, and about torchvision, which is not
    needed.
    """
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Converting a tensor to a Python")
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
            warnings.filterwarnings("ignore", ".*treespec", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _facts(run: Run, blend: Blend) -> dict[str, str]:
    """Return the file's metadata, as text."""
    federation = run.federation
    return {
        "class_names": json.dumps(list(federation.class_names), ensure_ascii=False),
        "input": f"{str(federation.x.dtype).removeprefix('torch.')} (samples, {', '.join(map(str, federation.shape))})",
        "output": OUTPUT[federation.task.name],
        "method": run.method.name,
        "weights": json.dumps(blend.weights.tolist()),
        **({} if federation.schema is None else {"schema": federation.schema.to_json()}),
    }


def _onnx(run: Run, network: Network, blend: Blend, path: Path) -> Predictor:
    import onnxruntime

    with _quiet():
        program = torch.onnx.export(
            Served(network, blend),
            (_examples(run)[:2],),  # a batch of one would be taken for a constant
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=["probabilities"],
            dynamic_shapes=({0: torch.export.Dim("samples")},),
        )
    assert program is not None
    program.model.metadata_props.update(_facts(run, blend))
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def predict(x: Tensor) -> NDArray[np.float32]:
        found: NDArray[np.float32] = session.run(["probabilities"], {"x": x.numpy()})[0]
        return found

    return predict


def _torchscript(run: Run, network: Network, blend: Blend, path: Path) -> Predictor:
    jit: Any = torch.jit
    with _quiet():
        traced = jit.trace(Served(network, blend), (_examples(run)[:2],))
        jit.save(traced, path, _extra_files={"hcfl.json": json.dumps(_facts(run, blend))})
        loaded = jit.load(path)
    return lambda x: loaded(x).numpy()


def _safetensors(run: Run, network: Network, blend: Blend, path: Path) -> Predictor:
    federation, model = run.federation, run.config.model
    if run.config.training.loss is not None:
        raise InputError("format = safetensors: the run has a likelihood of its own; take onnx or torchscript")
    exported = Exported(
        Architecture(model.name, model.norm, model.stem),
        federation.shape,
        str(federation.x.dtype).removeprefix("torch."),
        federation.class_names,
        blend,
        federation.schema,
        federation.task,
    )
    state_file.write(path, exported, VERSION)
    loaded = load_model(path, (network.extractor, network.head) if model.name == "custom" else None)
    return lambda x: loaded(x).numpy()


WRITERS: dict[Format, Callable[[Run, Network, Blend, Path], Predictor]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "safetensors": _safetensors,
}


def load_model(path: str | Path, model: Builder | Pair | None = None) -> Served:
    """Read a safetensors file that was exported: a module from raw inputs to class probabilities.

    A model that was passed to the run from Python has to be passed again. Where the run's data were a table, the
    module's `schema` turns rows into inputs: `model(torch.from_numpy(model.schema.encode(table).x))`.
    """
    found = state_file.read(Exported, Path(path), VERSION, f"model {path}")
    network = rebuild(found.architecture.settings(), found.shape, len(found.class_names), found.task, model)
    check_fit(network, found.blend.models, f"model {path}")
    return Served(network, found.blend, found.schema)
