"""Every named method as a declaration over the tiers."""

from hcfl.methods.method import Method
from hcfl.methods.registry import METHODS, build, settings_of

__all__ = ["METHODS", "Method", "build", "settings_of"]
