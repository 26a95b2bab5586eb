"""hcfl: clustered federated learning on four independent tiers.

>>> import hcfl
>>> run = hcfl.run("hcfl++", data="digits", rounds=30)  # doctest: +SKIP
>>> run.summary["clusters_last"]  # doctest: +SKIP
3
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcfl.config import Config
    from hcfl.data import Federation
    from hcfl.data.tables import Schema
    from hcfl.errors import InputError
    from hcfl.launch import resume, run
    from hcfl.methods import METHODS, Method
    from hcfl.runs.load import load
    from hcfl.runs.run import Run
    from hcfl.serving.export import load_model
    from hcfl.studies.comparison import compare

__version__ = version("hcfl")
__all__ = [
    "METHODS",
    "Config",
    "Federation",
    "InputError",
    "Method",
    "Run",
    "Schema",
    "compare",
    "load",
    "load_model",
    "resume",
    "run",
]

_HOMES = {
    "Config": "hcfl.config.schema",
    "Federation": "hcfl.data",
    "InputError": "hcfl.errors",
    "METHODS": "hcfl.methods.registry",
    "Method": "hcfl.methods.method",
    "Run": "hcfl.runs.run",
    "Schema": "hcfl.data.tables.schema",
    "compare": "hcfl.studies.comparison",
    "load": "hcfl.runs.load",
    "load_model": "hcfl.serving.export",
    "resume": "hcfl.launch",
    "run": "hcfl.launch",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `hcfl --help` should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hcfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Names for completion, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
