"""Sources, partition, shifts, and the federation they make.

Names are imported on first use: processes that only decode images (`readers`) start without torch, in a third of the
time.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hcfl.data.assemble import build
    from hcfl.data.federation import Federation, Newcomer, Truth

__all__ = ["Federation", "Newcomer", "Truth", "build"]

_HOMES = {
    "Federation": "hcfl.data.federation",
    "Newcomer": "hcfl.data.federation",
    "Truth": "hcfl.data.federation",
    "build": "hcfl.data.assemble",
}


def __getattr__(name: str) -> Any:
    """Import the module that a name is in."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hcfl.data' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
