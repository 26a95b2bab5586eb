"""Engines execute the clients' work. `Sequential` is the reference; the others must agree with it."""

from hcfl.engines.batched import Batched
from hcfl.engines.local_dp import Private
from hcfl.engines.sequential import Sequential

__all__ = ["Batched", "Private", "Sequential"]
