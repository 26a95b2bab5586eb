"""State is data: what the server and the clients hold between rounds, and what they send each other.

All are frozen dataclasses of tensors and numbers. A round maps them to new ones, so that saving, resuming, sending and
testing need nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from hcfl.clusters import Change
from hcfl.ensemble import Ensemble
from hcfl.models import Params
from hcfl.tiers import Prototypes, Weights
from hcfl.tiers.gaussians import Gaussians, Moments


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
    anchor: Ensemble | None = None
    """The initial model, where clients are compared by how it changes on their data, or embed their inputs with it."""
    common: Ensemble | None = None
    """The N_i-weighted mean of all participants' models, where local training is held near it."""
    signatures: Mapping[int, Tensor] = field(default_factory=dict)
    """What each client sent when it first took part, where tiers 3 and 4 compare it."""
    gaussians: Gaussians | None = None
    """The density of the embedded inputs, where the formulation models it, from round 1 on."""

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
    own: Ensemble | None = None
    """Its own model, where it keeps one."""


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
    anchor: Ensemble | None = None
    """For those who take part for the first time; they keep it."""
    common: Ensemble | None = None
    gaussians: Gaussians | None = None


@dataclass(frozen=True)
class Update:
    """What a participant sends back."""

    client: int
    samples: int
    extractors: Params
    """Leading axis 1 in the split topology, one per trained model in the full one."""
    heads: Params
    """Leading axis: one per trained model."""
    started: Tensor
    """(models, clusters): each model was trained from this mixture of the clusters' models."""
    mass: Tensor
    """(models, clusters): how much each model counts in each cluster's average, beside N_i. With soft weights there is
    a model for each cluster; with hard ones, one, which counts in the cluster that the client has joined."""
    weights: Tensor
    """ω̃, (clusters,)."""
    objective: float
    """Σ_j log Σ_k ω̃_k L_k after its E-step."""
    counts: Tensor | None = None
    prototypes: Prototypes | None = None
    signature: Tensor | None = None
    moments: Moments | None = None


@dataclass(frozen=True)
class RunState:
    """Everything a run is between two rounds."""

    server: ServerState
    clients: Mapping[int, ClientState]
    """Of the clients who took part so far."""
    newcomers: tuple[Weights, ...]
    """The weights of the virtual newcomers, one for each concept."""
