"""State is data: what the server and the clients hold between rounds, and what they send each other.

All are frozen dataclasses of tensors and numbers. A round maps them to new ones, so that saving, resuming, sending and
testing need nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hcfl.clusters import Change
from hcfl.ensemble import Ensemble
from hcfl.models import Params
from hcfl.tiers import Prototypes, Weights


@dataclass(frozen=True)
class ServerState:
    """What the server knows after a round. Of absent clients it keeps only the last report, with its age."""

    round: int
    """Rounds completed."""
    ensemble: Ensemble
    clusters: tuple[int, ...]
    """Stable id of each column."""
    born: int
    """How many clusters ever existed: the next id."""
    weights: Tensor
    """ω̃ as last reported, (clients, clusters); uniform for clients of whom nothing is known."""
    members: Tensor
    """(clients,): each client's cluster as a column; −1 for clients of whom nothing is known, because they never took
    part and no decision of the server's has placed them."""
    counts: Tensor | None
    """F as last reported, (clients, clusters, classes), where the formulation uses it."""
    sizes: Tensor
    """N_i as last reported, (clients,)."""
    last_seen: Tensor
    """The last round in which each client took part, (clients,); 0 for never."""
    changes: tuple[Change, ...] = ()
    """Every cluster added or removed so far, for clients who missed rounds."""

    def column(self, cluster: int) -> int:
        """Return the column of a cluster id."""
        return self.clusters.index(cluster)


@dataclass(frozen=True)
class ClientState:
    """What a client keeps to itself between rounds."""

    round: int
    """The last round it took part in."""
    clusters: tuple[int, ...]
    """The cluster ids that the columns of its weights stand for."""
    weights: Weights


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to each participant."""

    round: int
    ensemble: Ensemble
    class_shares: Tensor
    """P_k(y), (clusters, classes)."""
    clusters: tuple[int, ...]
    changes: tuple[Change, ...]
    weights: Tensor
    """(clients, clusters): a client that takes part for the first time starts from its row."""


@dataclass(frozen=True)
class Update:
    """What a participant sends back."""

    client: int
    samples: int
    columns: tuple[int, ...]
    """The clusters that its models belong to: all of them with soft weights, its own with hard ones."""
    started: tuple[int, ...]
    """The clusters that they were trained from: others only where a client joins another cluster after training."""
    extractors: Params
    """Leading axis 1 in the split topology, one per trained cluster in the full one."""
    heads: Params
    """Leading axis: one per trained cluster."""
    weights: Tensor
    """ω̃, (clusters,)."""
    objective: float
    """Σ_j log Σ_k ω̃_k L_k after its E-step."""
    counts: Tensor | None = None
    prototypes: Prototypes | None = None


@dataclass(frozen=True)
class RunState:
    """Everything a run is between two rounds."""

    server: ServerState
    clients: Mapping[int, ClientState]
    """Of the clients who took part so far."""
    newcomers: Tensor
    """ω̃ of the virtual newcomers, (concepts, clusters)."""
