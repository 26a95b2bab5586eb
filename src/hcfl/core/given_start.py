"""Beginning with clusters that the user gives: how methods start from them, and how far they went."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.core.cluster_log import LEAN
from hcfl.data.given_groups import GivenGroups
from hcfl.errors import InputError
from hcfl.methods import Method
from hcfl.tiers.weighting import InGivenGroup, one_hot, uniform


def from_groups(method: Method) -> Method:
    """Return a method as it begins with given clusters; one that knows a single cluster keeps clients in their own."""
    if not method.federated:
        raise InputError(f"data.groups: {method.name} has a cluster for each client, so no groups to begin with")
    if method.traits.adaptation.lost_ids:
        raise InputError("data.groups: method.lost_ids = true repeats public code that begins with one cluster")
    return replace(method, weighting=InGivenGroup()) if method.traits.weighting.one_cluster else method


def first_rows(groups: GivenGroups, hard: bool) -> tuple[Tensor, Tensor]:
    """Return the weights (clients, groups) and the clusters (clients,) that clients begin with.

    Soft weights only lean to the given group: with all of it there, no E-step could ever move them. Clients without a
    known group are uniform, in no cluster.
    """
    members, number = torch.from_numpy(groups.of), len(groups.names)
    rows = one_hot(members.clamp_min(0), number)
    if not hard:
        rows = LEAN * rows + (1 - LEAN) / (number - 1) * (1 - rows)
    return torch.where((members >= 0).unsqueeze(1), rows, uniform(number)), members


@dataclass(frozen=True)
class Distance:
    """How far the clusters of a run are from the given groups."""

    ari: float
    moved: int
    """The smallest number of clients that would have to move for clusters and groups to be the same."""
    clients: int
    """How many clients have a group and a cluster."""


def how_far(groups: GivenGroups, members: NDArray[np.int64]) -> Distance | None:
    """Compare each client's cluster with its given group; None where no client has both."""
    from scipy.optimize import linear_sum_assignment  # takes a while to import: not for clients
    from sklearn.metrics import adjusted_rand_score

    both = (members >= 0) & (groups.of >= 0)
    if not both.any():
        return None
    given, found = groups.of[both], members[both]
    together = np.zeros((len(groups.names), int(found.max()) + 1), dtype=np.int64)
    np.add.at(together, (given, found), 1)
    stayed = int(together[linear_sum_assignment(together, maximize=True)].sum())
    return Distance(float(adjusted_rand_score(given, found)), len(given) - stayed, len(given))
