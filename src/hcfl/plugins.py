"""A user's own code by import path: `FILE.py:NAME` or `package.module:NAME`."""

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from hcfl.errors import InputError


def load(field: str, path: str) -> Any:
    """Return the object that a path names; `field` is the setting that asks for it."""
    where, _, name = path.rpartition(":")
    try:
        return getattr(_module(where), name)
    except Exception as error:  # whatever a user's file raises while it is imported is the user's to read
        raise InputError(f"{field} = {path!r}: cannot be imported ({type(error).__name__}: {error})") from error


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
