"""HCFL+ (FedRC) that does all the work of a round and keeps K: a changing K would have no time of its own."""

from dataclasses import dataclass, replace
from typing import Any

from hcfl import methods
from hcfl.methods import Method
from hcfl.tiers import Decision, SplitAndRemove


@dataclass(frozen=True)
class LookOnly(SplitAndRemove):
    """Decide as HCFL+ does, from the same distances, then leave the clusters as they are."""

    def decide(self, *seen: Any) -> Decision:
        """Return that nothing changes."""
        super().decide(*seen)
        return Decision()


def hcfl_plus(clusters: int) -> Method:
    """Build the method with so many clusters."""
    return replace(methods.build("hcfl+(fedrc)", clusters=clusters), adaptation=LookOnly(rho=0.3))
