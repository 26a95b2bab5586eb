"""A user's own code by import path: `FILE.py:NAME` or `package.module:NAME`."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hcfl.errors import InputError
from hcfl.own_code import described_error

HUB_MODEL = "hf-model:"
"""What names of Hugging Face's models begin with: weights are loaded, and no code."""


def load(field: str, path: str) -> Any:
    """Return the object that a path names; `field` is the setting that asks for it."""
    where, _, name = path.rpartition(":")
    try:
        return getattr(_module(where), name)
    except Exception as error:  # show the user what the user's file raised
        raise InputError(f"{field} = {path!r}: cannot be imported ({described_error(error)})") from error


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    name = f"hcfl_user_{Path(where).stem}"
    spec = importlib.util.spec_from_file_location(name, where)
    if spec is None or spec.loader is None:
        raise ImportError(f"{where} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def named(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings that name code, {path of the setting: its text}: choices, model, loss."""
    sections = {name: values.get(name) for name in ("method", "model", "training")}
    method, model, training = (section if isinstance(section, Mapping) else {} for section in sections.values())
    given = {f"method.{field}": text for field, text in method.items()}
    given |= {"model.name": model.get("name"), "training.loss": training.get("loss")}
    return {
        path: text
        for path, text in given.items()
        if isinstance(text, str) and ":" in text.partition("(")[0] and not text.startswith(HUB_MODEL)
    }


def check_trusted(where: str, values: Mapping[str, Any], allow_code: bool) -> None:
    """Refuse code that a file names unless the user allows it: the file may come from another user."""
    for path, text in ({} if allow_code else named(values)).items():
        raise InputError(
            f"{where}: {path} = {text!r} would run code; if you trust it, add --allow-code (Python: allow_code=True)"
        )
