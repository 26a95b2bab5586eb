"""Tier choices by name, for configurations and the command line.

A choice is written like a call: `split-and-remove(rho=0.1)`, `prototype-distance(principle=CSCP, weighted=false)`, or,
for a tier of the user's own, `FILE.py:CLASS(threshold=2)`.
"""

import re
from dataclasses import MISSING, fields, is_dataclass, replace
from difflib import get_close_matches
from inspect import signature
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError
from typing_extensions import get_protocol_members

from hcfl import tiers
from hcfl.config import plugins
from hcfl.config.yaml_files import MALFORMED
from hcfl.errors import InputError
from hcfl.methods import robust_means
from hcfl.methods.local_models import ClusterModels, LocalTraining, OwnHead, OwnModel
from hcfl.methods.method import Method, words

CHOICES: dict[str, tuple[type, ...]] = {
    "formulation": (tiers.Conditional, tiers.Correlation, tiers.Joint),
    "weighting": (
        tiers.Single,
        tiers.Assigned,
        tiers.AssignedAmongAll,
        tiers.HardByLoss,
        tiers.HardByParameters,
        tiers.ByLabelDistribution,
        tiers.SoftEM,
        tiers.SampleWiseEM,
        tiers.ForgettingEM,
        tiers.SoftCounts,
        tiers.FuzzyCMeans,
    ),
    "adaptation": (
        tiers.Fixed,
        tiers.SplitAndRemove,
        tiers.SplitOnContradiction,
        tiers.SplitOnGain,
        tiers.SplitWhenStationary,
        tiers.SplitBySpectrum,
        tiers.MergeSimilar,
        tiers.HierarchicalOnce,
        tiers.DecomposedCosineGroups,
        tiers.KMeansOnce,
        tiers.WeightedKMeans,
        tiers.LossVectorGroups,
        tiers.LossJump,
        tiers.RealDriftGroups,
        tiers.DensityOnce,
        tiers.SplitByInteractions,
        tiers.SpectralPartition,
        tiers.GrowingCohorts,
    ),
    "distance": (
        tiers.PrototypeDistance,
        tiers.ConflictDistance,
        tiers.FeatureNormDistance,
        tiers.UpdateCosine,
        tiers.ParameterDistance,
        tiers.PrincipalAngles,
    ),
    "local": (ClusterModels, OwnModel, OwnHead),
    "aggregation": (
        robust_means.Mean,
        robust_means.Median,
        robust_means.TrimmedMean,
        robust_means.Clip,
        robust_means.MultiKrum,
    ),
}
"""What each tier can be, what clients can train, and how their models become one."""

PROTOCOLS: dict[str, Any] = {
    "formulation": tiers.Formulation,
    "weighting": tiers.Weighting,
    "adaptation": tiers.Adaptation,
    "distance": tiers.Distance,
    "local": LocalTraining,
    "aggregation": robust_means.Average,
}
"""The Protocol of each tier, which a user's own class must follow."""

CALL = re.compile(r"\s*(?P<name>[^()]+?)\s*(\((?P<arguments>.*)\))?\s*")


def name_of(choice: type) -> str:
    """Return the name that users type: SplitAndRemove → split-and-remove."""
    return words(choice).lower().replace(" ", "-")


def names(tier: str) -> list[str]:
    """Return the names of the choices of a tier."""
    return [name_of(choice) for choice in CHOICES[tier]]


def parse(tier: str, text: str) -> Any:
    """Return the choice that a text names: `parse("adaptation", "split-and-remove(rho=0.1)")`."""
    field = f"method.{tier}"
    match = CALL.fullmatch(text)
    if match is None:
        raise InputError(f"{field} = {text!r}: must look like NAME or NAME(setting=value, …)")
    name, arguments = match["name"], _arguments(field, text, match["arguments"] or "")
    own = ":" in name
    known = {name_of(choice): choice for choice in CHOICES[tier]}
    if not own and name not in known:
        close = get_close_matches(name, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"{field} = {text!r}: must be {', '.join(known)}, or FILE.py:CLASS{hint}")
    choice = plugins.load(field, name) if own else known[name]
    if not own:
        arguments = _checked(field, text, choice, arguments)
    try:
        made = choice(**arguments)
    except Exception as error:  # the user reads what their own class raises
        raise InputError(f"{field} = {text!r}: {error}") from None
    _check_members(tier, text, made)
    return made


def _check_members(tier: str, text: str, made: object) -> None:
    """Refuse a choice that lacks something that its Protocol asks for, or whose methods take something else."""
    protocol = PROTOCOLS[tier]
    wanted = sorted(get_protocol_members(protocol))
    if missing := [name for name in wanted if not hasattr(made, name)]:
        raise InputError(f"method.{tier} = {text!r}: has no {', '.join(missing)}; it needs {', '.join(wanted)}")
    for name in wanted:
        if callable(asked := getattr(protocol, name)):
            parameters = list(signature(asked).parameters)[1:]
            try:
                signature(getattr(made, name)).bind(*parameters)
            except TypeError:
                expected = f"{name}({', '.join(parameters)})"
                raise InputError(f"method.{tier} = {text!r}: its {name} cannot be called as {expected}") from None


def _arguments(field: str, text: str, arguments: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for argument in filter(str.strip, arguments.split(",")):
        key, equals, value = argument.partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(f"{field} = {text!r}: {argument.strip()!r} must look like setting=value")
        try:
            pairs[key.strip()] = yaml.safe_load(value)
        except MALFORMED:
            raise InputError(f"{field} = {text!r}: {value.strip()!r} is not a value") from None
    return pairs


def settings_of(choice: type) -> dict[str, Any]:
    """Return the settings of a choice, by name, with their types."""
    assert is_dataclass(choice)
    hints = get_type_hints(choice)
    return {setting.name: hints[setting.name] for setting in fields(choice)}


def _checked(field: str, text: str, choice: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Refuse settings that do not exist, that are not of their type, or that are missing."""
    settings = settings_of(choice)
    checked = {}
    for key, value in arguments.items():
        if key not in settings:
            has = f"its settings are {', '.join(sorted(settings))}" if settings else "it has no settings"
            raise InputError(f"{field} = {text!r}: there is no setting {key}; {has}")
        try:
            checked[key] = TypeAdapter(settings[key]).validate_python(value)
        except ValidationError as error:
            raise InputError(f"{field} = {text!r}: {key} = {value!r}: {_reason(error)}") from None
    needed = [entry.name for entry in fields(choice) if entry.default is MISSING and entry.name not in arguments]
    if needed:
        raise InputError(f"{field} = {text!r}: {name_of(choice)} needs {', '.join(needed)}")
    return checked


def _reason(error: ValidationError) -> str:
    reason = error.errors()[0]["msg"].removeprefix("Input ")
    return reason[0].lower() + reason[1:]


def override(method: Method, **choices: str | None) -> Method:
    """Replace some choices of a method; its name says which. `distance=none` leaves the distance out."""
    given = {key: text for key, text in choices.items() if text is not None}
    if not given:
        return method
    changed: dict[str, Any] = {
        key: text if key == "topology" else None if key == "distance" and text == "none" else parse(key, text)
        for key, text in given.items()
    }
    name = f"{method.name} with {', '.join(f'{key} {text}' for key, text in given.items())}"
    return replace(method, name=name, **changed)
