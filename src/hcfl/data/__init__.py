"""Sources, partition, shifts, and the federation they make."""

from hcfl.data.assemble import build
from hcfl.data.federation import Federation, Newcomer, Truth

__all__ = ["Federation", "Newcomer", "Truth", "build"]
