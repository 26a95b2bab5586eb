"""Sources, partition, shifts, and the federation they make."""

from hcfl.data.build import build
from hcfl.data.federation import Federation, Newcomer, Scaling, Truth

__all__ = ["Federation", "Newcomer", "Scaling", "Truth", "build"]
