"""What a choice says of itself, beside what its Protocol asks for.

The rest of the package never asks for the class of a choice, only for these traits. A choice declares a trait as an
attribute of the same name: a class attribute, a field or a property. Traits that a choice does not declare have the
defaults below, so a user's own class declares only those that differ.
"""

from dataclasses import dataclass, fields
from typing import TypeVar

from hcfl.config import Order

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class FormulationTraits:
    """What a formulation says of itself, beside `uses_class_shares` and `gaussians`."""

    share_floor: float = 1e-8
    """Class counts below it are raised to it, so that P_k(y) is never 0."""
    principal_axes: int = 32
    """How many principal axes embedded inputs are reduced to, at most; where `gaussians` is above 0."""
    variance_floor: float = 1e-3
    """The smallest variance of a Gaussian on an axis; where `gaussians` is above 0."""


@dataclass(frozen=True)
class WeightingTraits:
    """What a weighting says of itself, beside `hard`."""

    one_cluster: bool = False
    """All clients are in one cluster, so there is nothing to compare, split or merge."""
    assigned_by_server: bool = False
    """The server's decisions (tier 3) place clients; a placed client looks at its own cluster only."""
    uses_class_shares: bool = False
    """Clients must report their class counts F, so that the server can send P_k(y)."""
    needs_own_model: bool = False
    """Weights come from one trained model of each client, so `local` must train one."""
    mass_power: float = 1.0
    """A client counts in a cluster's average with its weight to this power (fuzzy c-means: u^m)."""
    zero_empty: bool = False
    """The server sets the model of a cluster without participants to zero, as some public code does."""


@dataclass(frozen=True)
class AdaptationTraits:
    """What an adaptation says of itself, beside `adaptive`, `uses_distance` and `needs`."""

    splits: bool = False
    """It splits clusters, so one cluster for every client is no start."""
    merges: bool = False
    """It merges clusters; one that never splits cannot start from one cluster."""
    groups_all_at_once: bool = False
    """It deals all clients into groups in one step, so it starts from one cluster."""
    groups: int = 1
    """How many groups these are, where it is known before the run."""
    remembers: bool = False
    """Clusters that had clients at the end of a step of time are never empty for it: their concept may come back."""
    spreads_weights: bool = False
    """After a split, every client's weights are uniform over all clusters, so weights must be soft."""
    deals_among_clusters: bool = False
    """It deals clients among the clusters that there are, so it starts from several."""
    asked_every: int = 1
    """Clients are asked for `REPORTS` in every such round, beginning with the first."""
    asked_once: int | None = None
    """The only round in which clients are asked for `REPORTS`; None: there are several."""
    lost_ids: bool = False
    """Splits name positions instead of client ids, as public code of CFL does (`hcfl.core.lost_ids`)."""


@dataclass(frozen=True)
class DistanceTraits:
    """What a distance says of itself, beside `needs`."""

    compares_classes_only: bool = False
    """Of prototypes, it looks at class means only; clients then need not send their mean feature with noise."""


@dataclass(frozen=True)
class LocalTraits:
    """What local training says of itself, beside `proximal`, `kept` and `uses_global_model`."""

    trains_cluster_models: bool = False
    """Each trained model is one cluster's, and counts in that cluster's average only."""
    by_weight: bool = False
    """With soft weights, each of these models counts by its client's weight on the cluster, not all alike."""
    trains_own_model: bool = False
    """Each client trains exactly one model, which counts in every cluster's average."""
    order: Order | None = None
    """The order in which it trains extractors and heads; None: as the configuration says."""


@dataclass(frozen=True)
class AggregationTraits:
    """What an average of models says of itself."""

    is_mean: bool = False
    """It is the mean weighted by mass, so the server needs no more than sums over clients."""


def traits_of(kind: type[Kind], choice: object) -> Kind:
    """Return the traits of a choice: what it declares, and the defaults of `kind` for the rest.

    >>> from hcfl.tiers import Single
    >>> traits_of(WeightingTraits, Single()).one_cluster
    True
    """
    return kind(**{field.name: getattr(choice, field.name, field.default) for field in fields(kind)})  # type: ignore[arg-type]
