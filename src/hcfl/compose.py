"""Tier choices by name, for configurations and the command line.

A choice is written like a call: `split-and-remove(rho=0.1)`, `prototype-distance(principle=CSCP, weighted=false)`, or,
for a tier of the user's own, `FILE.py:CLASS(threshold=2)`.
"""

import re
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from typing import Any

import yaml

from hcfl import plugins, tiers
from hcfl.errors import InputError
from hcfl.local import ClusterModels, OwnModel
from hcfl.method import Method, words

CHOICES: dict[str, tuple[type, ...]] = {
    "formulation": (tiers.Conditional, tiers.Correlation, tiers.Joint),
    "weighting": (
        tiers.Single,
        tiers.Assigned,
        tiers.HardByLoss,
        tiers.HardByParameters,
        tiers.ByLabelDistribution,
        tiers.SoftEM,
        tiers.SampleWiseEM,
        tiers.SoftCounts,
        tiers.FuzzyCMeans,
    ),
    "adaptation": (
        tiers.Fixed,
        tiers.SplitAndRemove,
        tiers.SplitWhenStationary,
        tiers.SplitBySpectrum,
        tiers.MergeSimilar,
        tiers.HierarchicalOnce,
        tiers.DecomposedCosineGroups,
        tiers.WeightedKMeans,
    ),
    "distance": (
        tiers.PrototypeDistance,
        tiers.FeatureNormDistance,
        tiers.UpdateCosine,
        tiers.ParameterDistance,
        tiers.PrincipalAngles,
    ),
    "local": (ClusterModels, OwnModel),
}
"""What each tier can be, and what clients can train."""

FIXED_FIELDS = ("hard", "adaptive", "uses_distance", "needs", "uses_class_shares", "uses_common")
"""What a choice is, as opposed to how it is set."""

CALL = re.compile(r"\s*(?P<name>[^()]+?)\s*(\((?P<arguments>.*)\))?\s*")


def name_of(choice: type) -> str:
    """SplitAndRemove → split-and-remove."""
    return words(choice).lower().replace(" ", "-")


def names(tier: str) -> list[str]:
    """Return the choices of a tier."""
    return [name_of(choice) for choice in CHOICES[tier]]


def parse(tier: str, text: str) -> Any:
    """Return the choice that a text names."""
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
        _check_settings(field, text, choice, arguments)
    try:
        return choice(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{field} = {text!r}: {error}") from None


def _arguments(field: str, text: str, arguments: str) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for argument in filter(str.strip, arguments.split(",")):
        key, equals, value = argument.partition("=")
        if not equals or not key.strip().isidentifier():
            raise InputError(f"{field} = {text!r}: {argument.strip()!r} must look like setting=value")
        try:
            pairs[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise InputError(f"{field} = {text!r}: {value.strip()!r} is not a value") from None
    return pairs


def settings_of(choice: type) -> set[str]:
    """Return the names of what can be set."""
    assert is_dataclass(choice)
    fixed = {"gaussians"} if not hasattr(choice, "dimensions") else set()
    return {setting.name for setting in fields(choice)} - set(FIXED_FIELDS) - fixed


def _check_settings(field: str, text: str, choice: type, arguments: dict[str, Any]) -> None:
    assert is_dataclass(choice)
    settings = settings_of(choice)
    for key in arguments:
        if key not in settings:
            has = f"its settings are {', '.join(sorted(settings))}" if settings else "it has no settings"
            raise InputError(f"{field} = {text!r}: there is no setting {key}; {has}")


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
