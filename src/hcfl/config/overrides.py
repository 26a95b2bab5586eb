"""Settings by short names, as flags and keyword arguments give them, and grids over them."""

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import product
from typing import Any

from pydantic import BaseModel

from hcfl.config.schema import Config, flat_fields
from hcfl.errors import InputError


def field_at(path: str) -> Any:
    """Return the pydantic field of a dotted path."""
    section, _, leaf = path.rpartition(".")
    owner: type[BaseModel] = Config
    if section:
        annotation = Config.model_fields[section].annotation
        assert isinstance(annotation, type)
        owner = annotation
    return owner.model_fields[leaf]


def assign(values: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted path in nested values."""
    keys = path.split(".")
    if not all(keys):
        raise InputError(f"{path!r} = {value!r}: must be a field's path, such as data.alpha")
    node = values
    for key in keys[:-1]:
        if node.get(key) is None:
            node[key] = {}
        if not isinstance(node[key], dict):
            raise InputError(f"{path} = {value!r}: {key} is not a section here, but {node[key]!r}")
        node = node[key]
    node[keys[-1]] = value


def from_flat(**settings: Any) -> Config:
    """Build a configuration from short names, as flags and `hcfl.run` use them."""
    paths = flat_fields()
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in paths:
            close = get_close_matches(name, paths, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise InputError(f"{name} = {value!r}: there is no such setting{hint}")
        assign(values, paths[name], value)
    return Config.parse(values)


NOT_SWEPT = {
    "seed": "--seeds says how many there are",
    "method.name": "hcfl compare takes several methods",
    "device": "it says where runs happen, not what they find",
    "threads": "it says where runs happen, not what they find",
    "checkpoint_every": "it says what is kept, not what runs find",
    "evaluation.serve": "it says what is kept, not what runs find",
    "checkpoints_kept": "it says what is kept, not what runs find",
}
"""Settings that `--grid` refuses, with the reason."""

Axis = tuple[str, str, tuple[str, ...]]
"""A setting's name as it was typed, its path, and its values."""


def axis_of(text: str) -> Axis:
    """Read one `--grid`: a setting by its flag's name or its path, and its values."""
    name, equals, listed = text.partition("=")
    # A comma in parentheses is the setting's own, as in adaptation=split-and-remove(rho=0.1, …).
    values = tuple(value.strip() for value in re.split(r",(?![^()]*\))", listed))
    if not equals or not all(values):
        raise InputError(f"--grid {text}: has an empty place for a value; it must look like rho=0.05,0.1,0.3")
    paths = flat_fields()
    key = name.strip().replace("-", "_")
    path = key if key in paths.values() else paths.get(key)
    if path is None:
        close = get_close_matches(key, paths, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"--grid {text}: there is no such setting{hint}")
    if path in NOT_SWEPT:
        raise InputError(f"--grid {text}: cannot be swept, {NOT_SWEPT[path]}")
    if len(set(values)) < len(values):
        raise InputError(f"--grid {text}: has the same value twice")
    return key, path, values


def points(axes: Sequence[Axis]) -> list[tuple[tuple[str, str, str], ...]]:
    """Return every combination as (name, path, value) for each setting; the last setting changes fastest."""
    paths = [path for _, path, _ in axes]
    for name, path, _ in axes:
        if paths.count(path) > 1:
            raise InputError(f"--grid {name}: is there twice; give all its values at once, as in {name}=1,2")
    return list(product(*([(name, path, value) for value in values] for name, path, values in axes)))
