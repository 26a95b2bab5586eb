"""What a run on Flower is told by `[tool.flwr.app.config]` and `--run-config`: the experiment, and how to run it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hcfl.config import Config, from_flat
from hcfl.engines.flower.engine import Patience
from hcfl.errors import InputError
from hcfl.flower.client_data import Public
from hcfl.runs import folder as run_folder
from hcfl.runs.folder import RUNS

OWN = (
    *("experiment", "settings", "names", "out", "resume", "problem-file", "quorum", "timeout", "wait"),
    *("classes", "mean", "std", "measure", "step-seconds"),
)
"""Keys that are not settings of an experiment."""

MEASURE = ("end", "rounds")
"""When all clients are asked to measure models: after the last round, or after each."""


@dataclass(frozen=True)
class RunSettings:
    """A run as it was asked for."""

    config: Config
    names: tuple[str, ...]
    """The clients that hold their own data; none: they hold parts of one source, simulated."""
    out: Path
    resume: bool
    quorum: float
    """A round counts with at least this share of the sampled clients."""
    patience: Patience
    public: Public = field(default_factory=Public)
    measure: str = MEASURE[0]
    """When all clients measure the models that a round ends with."""
    step_seconds: float = 0.0
    """Seconds from the beginning of a step of time to that of the next; 0: it begins at once."""


def read(given: Mapping[str, Any]) -> RunSettings:
    """Check a run's configuration; what is wrong is said in one sentence."""
    resumed = str(given.get("resume", ""))
    out = Path(resumed or str(given.get("out", "")) or run_folder.free_path(RUNS, "flower"))
    names, config = _names(given, "names"), _config(given)
    patience = Patience(
        timeout=_number(given, "timeout", Patience.timeout),
        limit=_number(given, "wait", Patience.limit),
    )
    quorum = _number(given, "quorum", config.admission.quorum)
    if quorum > 1:
        raise InputError(f"quorum = {quorum:g}: must be above 0 and at most 1")
    if len(set(names)) < len(names):
        raise InputError(f"names = {', '.join(names)}: two clients have the same name")
    mean, std = given.get("mean", Public.mean), _number(given, "std", Public.std)
    if isinstance(mean, bool) or not isinstance(mean, int | float):
        raise InputError(f"mean = {mean!r}: must be a number")
    public = Public(_names(given, "classes"), float(mean), std)
    measure = given.get("measure", MEASURE[0])
    if measure not in MEASURE:
        raise InputError(f"measure = {measure!r}: must be one of {', '.join(MEASURE)}")
    step_seconds = _number(given, "step-seconds", 0.0) if given.get("step-seconds") else 0.0
    return RunSettings(config, names, out, bool(resumed), quorum, patience, public, str(measure), step_seconds)


def _names(given: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in str(given.get(key, "")).split(",") if name.strip())


def _config(given: Mapping[str, Any]) -> Config:
    if given.get("experiment"):
        return Config.from_yaml(str(given["experiment"]))
    settings: dict[str, Any] = {}
    for key, value in given.items():
        if key not in OWN and value != "":
            settings[key.replace("-", "_")] = value
    for word in str(given.get("settings", "")).split():
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"settings = {word!r}: must look like lr=0.05")
        settings[name.replace("-", "_")] = value
    settings.pop("engine", None)
    return from_flat(engine="flower", **settings)


def _number(given: Mapping[str, Any], name: str, default: float) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InputError(f"{name} = {value!r}: must be a number above 0")
    return float(value)
