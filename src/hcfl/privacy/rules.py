"""Which methods each privacy mode supports, and why it does not support the others; the settings of each mode."""

from torch import Tensor

from hcfl.config import Config, Mode
from hcfl.errors import InputError
from hcfl.methods import METHODS, Method
from hcfl.models import Network
from hcfl.privacy.sums import SHARES, Parts
from hcfl.tiers.participants import Statistic

OPTIONS: dict[Mode, dict[str, float]] = {
    "none": {},
    "local-dp": {"clip": 1.0, "epsilon": 1.0, "delta": 1e-5},
    "central-dp": {"clip": 1.0, "noise_multiplier": 1.0, "delta": 1e-5},
    "secagg": {},
}
"""The settings of every mode, with their defaults."""

INSTEAD = {"local-dp": {"noise_multiplier": "epsilon"}}
"""Settings that replace another setting of the same mode."""

NOISED: tuple[Mode, ...] = ("local-dp", "central-dp")
"""The modes that clip uploads and add noise."""

WORDS: dict[Statistic, str] = {
    "prototypes": "prototypes",
    "half prototypes": "prototypes",
    "feature norms": "feature norms",
    "updates": "updates",
    "whole updates": "updates",
    "models": "trained parameters",
    "first updates": "first updates",
    "signatures": "signatures of their data",
    "losses": "losses",
    "training losses": "training losses",
    "probes": "updates of one model",
    "descriptors": "descriptors of their data",
}


def settled(config: Config, method: Method) -> Config:
    """Fill in the settings of the chosen mode; refuse a method that the mode does not support."""
    chosen = config.privacy
    options = OPTIONS[chosen.mode]
    given = chosen.model_dump(exclude={"mode"}, exclude_none=True)
    instead = INSTEAD.get(chosen.mode, {})
    for name, value in given.items():
        if name not in options and name not in instead:
            ways = " and ".join(mode for mode, has in OPTIONS.items() if name in has or name in INSTEAD.get(mode, {}))
            raise InputError(f"privacy.{name} = {value:g}: is a setting of {ways}, but privacy.mode is {chosen.mode}")
        if instead.get(name) in given:
            raise InputError(
                f"privacy.{name} = {value:g}: privacy.{instead[name]} says already how much noise there is"
            )
    if chosen.mode == "none":
        return config
    if chosen.mode == "secagg" and config.engine != "flower":
        raise InputError(
            f"privacy.mode = 'secagg': is for engine flower, not for engine {config.engine}: masks are for messages "
            "between machines"
        )
    if reason := refusal(method, chosen.mode, config.engine == "flower"):
        raise InputError(f"privacy.mode = {chosen.mode!r}: {method.name} {reason}")
    replaced = {instead[name] for name in given if name in instead}
    defaults = {name: value for name, value in options.items() if name not in replaced}
    return config.updated("privacy", **{**defaults, **given})


def check_model(config: Config, network: Network) -> None:
    """Refuse a model that noise would break."""
    mode = config.privacy.mode
    if mode in NOISED and network.buffers:
        raise InputError(
            f"privacy.mode = {mode!r}: the model has running statistics, and a variance with noise can be negative; "
            "take one without batch normalisation, such as model.norm = group"
        )


UNBOUNDED: dict[Statistic, str] = {
    "feature norms": "feature norms, which have no bound, so that no noise is known to hide them",
    "signatures": "signatures of their data, which are no longer such when there is noise in them",
    "losses": "losses, which have no bound, so that no noise is known to hide them",
    "training losses": "training losses, which have no bound, so that no noise is known to hide them",
    "probes": "updates of one model, which are sent beside those of their own and are not clipped with them",
    "descriptors": "descriptors of their data, which have no bound, so that no noise is known to hide them",
}
"""Statistics that clients are compared by, and that noise cannot protect."""


def refusal(method: Method, mode: Mode, on_flower: bool = True) -> str | None:
    """Return why a mode does not support a method, as the rest of a sentence that begins with its name, or None."""
    if mode == "none":
        return None
    if not method.federated:
        return "averages nothing: every client keeps a model of its own"
    if not method.traits.aggregation.is_mean:
        return "compares single clients' models before it averages them, and the server would see sums only"
    if mode in NOISED and method.formulation.gaussians:
        return "adds up embedded inputs, which have no bound, so that no noise is known to hide them"
    if method.adaptation.adaptive:
        return _refused_comparison(method, mode, on_flower)
    if method.local.uses_global_model:
        return "holds clients near the mean of all clients' models, and the server would not know single models"
    return None


def _refused_comparison(method: Method, mode: Mode, on_flower: bool) -> str | None:
    """Return why clients cannot be compared by what they send."""
    evidence = " and ".join(sorted({WORDS[need] for need in method.needs})) or "weights"
    fixed = "" if method.traits.weighting.assigned_by_server else "with adaptation=fixed and distance=none it can"
    for need in sorted(method.needs & UNBOUNDED.keys()):
        if mode in NOISED:
            return f"compares single clients by their {UNBOUNDED[need]}"
    if mode in NOISED and not method.traits.local.trains_cluster_models:
        return "lets one model of each client count in several clusters while clients are compared"
    if mode == "local-dp" and not on_flower:
        return None
    if mode == "central-dp":
        others = "; ".join(filter(None, ("local-dp can", fixed)))
        compared = f"compares single clients by their {evidence}"
        return f"{compared}, and noise in sums would not hide which clients are alike; {others}"
    simulated = "engine sequential or batched can" if mode == "local-dp" else ""
    others = "".join(f"; {way}" for way in (simulated, fixed) if way)
    return f"compares single clients by their {evidence}, and the server would see sums only{others}"


def mass_is_public(method: Method) -> bool:
    """Whether all clients count alike in every cluster: then a client's mass tells nothing of its data."""
    everywhere = not method.weighting.hard or method.traits.weighting.one_cluster
    alike = method.traits.weighting.one_cluster or not method.traits.local.by_weight
    return everywhere and alike and method.traits.local.trains_cluster_models


def scaled_shares(method: Method, parts: Parts, clip: float) -> dict[str, Tensor]:
    """Return the shares that a client sends beside its models, scaled to the models' bound `clip`.

    Shares of samples have a norm of at most 1, so they need no clipping.
    """
    kept = [name for name in SHARES if name in parts and not (name == "mass" and mass_is_public(method))]
    return {name: parts[name] * clip for name in kept}


def table() -> str:
    """Return the table of `docs/privacy.md`: every named method and every mode."""
    modes = [mode for mode in OPTIONS if mode != "none"]
    lines = [f"| method | {' | '.join(modes)} | otherwise, it |", "|---" * (len(modes) + 2) + "|"]
    for name, declare in METHODS.items():
        method = declare()
        cells, reasons = [], list[str]()
        for mode in modes:
            simulated, real = (refusal(method, mode, on_flower) for on_flower in (False, True))
            cells.append("no" if simulated else "simulated" if real else "yes")
            reasons += [reason for reason in (simulated,) if reason]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {' · '.join(dict.fromkeys(reasons))} |")
    return "\n".join(lines)
