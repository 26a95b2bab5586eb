"""Which methods can do without single clients' uploads, and why the others cannot; the settings of each way."""

from hcfl.averages import Mean
from hcfl.config import Config, Mode
from hcfl.errors import InputError
from hcfl.local import ClusterModels
from hcfl.method import Method
from hcfl.methods import METHODS
from hcfl.models import Network
from hcfl.tiers import Assigned, Single
from hcfl.tiers.distance import Evidence

OPTIONS: dict[Mode, dict[str, float]] = {
    "none": {},
    "local-dp": {"clip": 1.0, "epsilon": 1.0, "delta": 1e-5},
    "central-dp": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
    "secagg": {},
}
"""The settings of every way, with their defaults."""

NOISED: tuple[Mode, ...] = ("local-dp", "central-dp")
"""Where uploads are clipped, and noise is added."""

WORDS: dict[Evidence, str] = {
    "prototypes": "prototypes",
    "feature norms": "feature norms",
    "updates": "updates",
    "whole updates": "updates",
    "models": "trained parameters",
    "first updates": "first updates",
    "signatures": "signatures of their data",
}


def settled(config: Config, method: Method) -> Config:
    """Fill in the settings of the chosen way, or say why it cannot be had."""
    chosen = config.privacy
    options = OPTIONS[chosen.mode]
    given = chosen.model_dump(exclude={"mode"}, exclude_none=True)
    for name, value in given.items():
        if name not in options:
            ways = " and ".join(mode for mode, has in OPTIONS.items() if name in has)
            raise InputError(f"privacy.{name} = {value:g}: is a setting of {ways}, but privacy.mode is {chosen.mode}")
    if chosen.mode == "none":
        return config
    if config.engine != "flower":
        raise InputError(f"privacy.mode = {chosen.mode!r}: is for engine flower, not for engine {config.engine}")
    if reason := refusal(method, chosen.mode):
        raise InputError(f"privacy.mode = {chosen.mode!r}: {method.name} {reason}")
    return config.updated("privacy", **{**options, **given})


def check_model(config: Config, network: Network) -> None:
    """Say where a model cannot take noise."""
    mode = config.privacy.mode
    if mode in NOISED and network.buffers:
        raise InputError(
            f"privacy.mode = {mode!r}: the model has running statistics, and a variance with noise can be negative; "
            "take one without batch normalisation, such as model.norm = group"
        )


def refusal(method: Method, mode: Mode) -> str | None:
    """Return why a method cannot be had this way, as the rest of a sentence that begins with its name."""
    if mode == "none":
        return None
    if not method.federated:
        return "averages nothing: every client keeps a model of its own"
    if method.adaptation.adaptive:
        evidence = " and ".join(sorted({WORDS[need] for need in method.needs})) or "weights"
        instead = "" if isinstance(method.weighting, Assigned) else "; with adaptation=fixed and distance=none it can"
        return f"compares single clients by their {evidence}, and the server would see sums only{instead}"
    if not isinstance(method.aggregation, Mean):
        return "compares single clients' models before it averages them, and the server would see sums only"
    if method.local.uses_common:
        return "holds clients near the mean of everybody's own model, and the server would not know which is whose"
    if mode in NOISED and method.formulation.gaussians:
        return "adds up embedded inputs, which have no bound, so that no noise is known to hide them"
    return None


def mass_is_public(method: Method) -> bool:
    """Whether everybody counts alike in every cluster: then how much a client counts says nothing of its data."""
    everywhere = not method.weighting.hard or isinstance(method.weighting, Single)
    return everywhere and isinstance(method.local, ClusterModels)


def table() -> str:
    """Return the table of `docs/privacy.md`: every named method and every way."""
    modes = [mode for mode in OPTIONS if mode != "none"]
    lines = [f"| method | {' | '.join(modes)} | otherwise, it |", "|---" * (len(modes) + 2) + "|"]
    for name, declare in METHODS.items():
        reasons = [refusal(declare(), mode) for mode in modes]
        said = " · ".join(dict.fromkeys(reason for reason in reasons if reason))
        lines.append(f"| `{name}` | {' | '.join('no' if reason else 'yes' for reason in reasons)} | {said} |")
    return "\n".join(lines)
