"""hcfl: clustered federated learning on four independent tiers.

>>> import hcfl
>>> run = hcfl.run("hcfl+(fedrc)", data="digits", rounds=30)  # doctest: +SKIP
>>> run.summary["clusters_last"]  # doctest: +SKIP
3
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcfl.comparison import compare
    from hcfl.config import Config
    from hcfl.data import Federation
    from hcfl.errors import InputError
    from hcfl.experiment import run
    from hcfl.export import load_model
    from hcfl.loading import load
    from hcfl.method import Method
    from hcfl.methods import METHODS
    from hcfl.result import Run

__version__ = version("hcfl")
__all__ = ["METHODS", "Config", "Federation", "InputError", "Method", "Run", "compare", "load", "load_model", "run"]

_HOMES = {
    "Config": "hcfl.config",
    "Federation": "hcfl.data",
    "InputError": "hcfl.errors",
    "METHODS": "hcfl.methods",
    "Method": "hcfl.method",
    "Run": "hcfl.result",
    "compare": "hcfl.comparison",
    "load": "hcfl.loading",
    "load_model": "hcfl.export",
    "run": "hcfl.experiment",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `hcfl --help` should not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hcfl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
