"""Who executes the clients' work. Every engine runs the same `client.take_part`, or must agree with it."""

from hcfl.engines.sequential import Sequential

__all__ = ["Sequential"]
