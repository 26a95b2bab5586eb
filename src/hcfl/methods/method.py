"""A method: one choice on each of the four tiers, how models are shared, and what clients train."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from hcfl.config import Order
from hcfl.errors import InputError
from hcfl.methods.local_models import ClusterModels, LocalTraining
from hcfl.methods.robust_means import Average, Mean
from hcfl.models.ensemble import Topology
from hcfl.tiers import Adaptation, Distance, Fixed, Formulation, Signs, Weighting
from hcfl.tiers.participants import REPORTS, Statistic
from hcfl.tiers.traits import (
    AdaptationTraits,
    AggregationTraits,
    DistanceTraits,
    FormulationTraits,
    LocalTraits,
    WeightingTraits,
    traits_of,
)
from hcfl.tiers.weighting import InGivenGroup

KEPT_STATISTICS: frozenset[Statistic] = frozenset({"first updates", "signatures"})
"""What a client sends only when it first takes part, so that clients can be compared across rounds."""


@dataclass(frozen=True)
class Traits:
    """What the choices of a method say of themselves."""

    formulation: FormulationTraits
    weighting: WeightingTraits
    adaptation: AdaptationTraits
    distance: DistanceTraits
    local: LocalTraits
    aggregation: AggregationTraits


@dataclass(frozen=True)
class Method:
    """One choice on each tier, how the model is shared, and how many clusters there are at the start."""

    formulation: Formulation
    weighting: Weighting
    adaptation: Adaptation = field(default_factory=Fixed)
    distance: Distance | None = None
    topology: Topology = "full"
    clusters: int | None = 1
    """K at the start; None: one for every client."""
    local: LocalTraining = field(default_factory=ClusterModels)
    """What clients train."""
    aggregation: Average = field(default_factory=Mean)
    """How their models become one."""
    warm_up: int = 0
    """Rounds at the start without changes of clusters: an untrained network cannot tell clients apart."""
    order: Order = "heads-first"
    """The order in which clients train extractors and heads, unless the configuration says another one."""
    name: str = "custom"

    def __post_init__(self) -> None:
        if reasons := conflicts(self):
            raise InputError(f"method {self.name}: {reasons[0]}")

    @property
    def needs(self) -> frozenset[Statistic]:
        """Which statistics tiers 3 and 4 look at."""
        wanted = (self.adaptation.needs, None if self.distance is None else self.distance.needs)
        found = frozenset(need for need in wanted if need is not None)
        return found | {"prototypes"} if "half prototypes" in found else found

    def reports_in(self, round_: int) -> list[Statistic]:
        """Which of `REPORTS` participants send in a round."""
        traits = self.traits.adaptation
        once, every = traits.asked_once, traits.asked_every
        asked = round_ == once if once is not None else (round_ - 1) % every == 0
        return [name for name in REPORTS if asked and name in self.needs]

    @property
    def federated(self) -> bool:
        """Whether clients exchange models: not where every client keeps a cluster of its own."""
        return self.clusters is not None or self.adaptation.adaptive

    @cached_property
    def traits(self) -> Traits:
        """What each choice says of itself, with defaults for what it does not say."""
        return Traits(
            formulation=traits_of(FormulationTraits, self.formulation),
            weighting=traits_of(WeightingTraits, self.weighting),
            adaptation=traits_of(AdaptationTraits, self.adaptation),
            distance=traits_of(DistanceTraits, self.distance),
            local=traits_of(LocalTraits, self.local),
            aggregation=traits_of(AggregationTraits, self.aggregation),
        )

    @property
    def uses_class_shares(self) -> bool:
        """Whether clients must report F, so that the server can send P_k(y)."""
        return self.formulation.uses_class_shares or self.traits.weighting.uses_class_shares

    @property
    def uses_anchor(self) -> bool:
        """Whether clients need the initial model: for their first update, or to embed their inputs."""
        return "first updates" in self.needs or self.formulation.gaussians > 0

    def uniform_components(self, clusters: int) -> Tensor | None:
        """Return the mixing ρ that a client starts with, (1, clusters, Gaussians), where inputs are modelled."""
        number = self.formulation.gaussians
        return torch.full((1, clusters, number), 1 / number) if number else None

    def choices(self) -> dict[str, str]:
        """Return what was chosen on each tier, in words."""
        return {
            "formulation": _shown(self.formulation),
            "weighting": _shown(self.weighting),
            "adaptation": _shown(self.adaptation),
            "distance": "–" if self.distance is None else _shown(self.distance),
            "model": f"{self.topology}, own" if self.local.kept else self.topology,
        }


def words(choice: type) -> str:
    """Return a class name as words: SampleWiseEM → sample wise EM."""
    parts = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z]+", choice.__name__)
    return " ".join(part if part.isupper() else part.lower() for part in parts)


def _shown(choice: object) -> str:
    principle = getattr(choice, "principle", None)
    return " ".join([words(type(choice)).replace(" distance", ""), *([principle] if principle else [])])


def conflicts(method: Method) -> list[str]:
    """Return all reasons why these choices do not make a method."""
    reasons = (
        *_conflicts_of_start(method),
        *_conflicts_of_adaptation(method),
        *_conflicts_of_statistics(method),
        *_conflicts_of_reports(method),
    )
    return [reason for wrong, reason in reasons if wrong]


Reasons = Iterator[tuple[bool, str]]
"""Whether a rule is broken, and the reason for the user."""


def _conflicts_of_start(method: Method) -> Reasons:
    clusters, adaptive = method.clusters, method.adaptation.adaptive
    assigned, single = method.traits.weighting.assigned_by_server, method.traits.weighting.one_cluster
    known = method.topology in ("split", "full")
    yield not known, f"topology = {method.topology!r}, but it is split or full"
    yield (
        not method.federated and not method.traits.aggregation.is_mean,
        "every client keeps a model of its own, so there is nothing to aggregate robustly",
    )
    yield (
        single and adaptive,
        "single weights put every client into one cluster, so there is nothing to split, merge or group",
    )
    yield (
        single and method.distance is not None,
        "single weights put every client into one cluster, so there is nothing to compare by a distance",
    )
    yield single and clusters != 1, f"clusters = {clusters}, but single weights put every client into one cluster"
    yield (
        clusters is None and not assigned,
        "one cluster for every client makes sense only where the server assigns clients to clusters",
    )
    yield clusters is not None and clusters < 1, f"clusters = {clusters}, but at least 1 is needed to start from"
    yield (
        assigned and clusters is not None and clusters > 1,
        f"clusters = {clusters}, but assigned clients start in one cluster, or in one each",
    )
    yield (
        assigned and clusters == 1 and not adaptive and not isinstance(method.weighting, InGivenGroup),
        "assigned clients wait for splits, but the number of clusters is fixed",
    )


def _conflicts_of_adaptation(method: Method) -> Reasons:
    adaptation, traits = method.adaptation, method.traits.adaptation
    yield method.warm_up < 0, f"warm_up = {method.warm_up}, but it is a number of rounds, 0 or more"
    yield (
        method.warm_up > 0 and not adaptation.adaptive,
        f"warm_up = {method.warm_up}, but its clusters never change, so there is nothing to wait for",
    )
    yield adaptation.uses_distance and method.distance is None, "the adaptation needs a distance to decide by"
    yield (
        not adaptation.uses_distance and method.distance is not None,
        "the adaptation never looks at a distance; leave the distance out",
    )
    yield (
        traits.spreads_weights and method.weighting.hard,
        "a split with uniform = true spreads clients over all clusters, but hard weights put each into one",
    )
    yield (
        traits.lost_ids and not method.traits.weighting.assigned_by_server,
        "lost_ids = true puts the wrong clients into the server's lists, but only assigned clients go by them",
    )
    yield (
        traits.splits and method.clusters is None,
        "every client starts in a cluster of its own, so there is nothing to split",
    )
    yield (
        traits.merges and not traits.splits and method.clusters == 1,
        "there is one cluster at the start, so there is nothing to merge",
    )
    yield (
        traits.deals_among_clusters and (method.clusters is None or method.clusters == 1),
        "the adaptation deals clients among a number of clusters, so it starts from two or more",
    )
    yield (
        traits.groups_all_at_once and method.clusters != 1,
        "the adaptation deals all clients into groups at once, so it starts from one cluster",
    )


def _conflicts_of_reports(method: Method) -> Reasons:
    yield (
        "losses" in method.needs and method.traits.weighting.assigned_by_server,
        "clients are compared by their losses on all clusters' models, but assigned clients get their own cluster's",
    )
    yield (
        "training losses" in method.needs and not (method.weighting.hard or method.traits.local.trains_own_model),
        "training losses are of one model for each client, but soft weights train one for every cluster",
    )
    yield (
        "descriptors" in method.needs and method.clusters != 1,
        "descriptors are of one extractor's features, so all clients start in one cluster",
    )


def _conflicts_of_statistics(method: Method) -> Reasons:
    unknown = ", ".join(sorted(method.needs - set(get_args(Statistic))))
    yield bool(unknown), f"needs {unknown}, but clients can send {', '.join(get_args(Statistic))}"
    yield (
        method.topology == "full" and bool({"prototypes", "feature norms"} & method.needs),
        "features are compared in one shared space, but full models have an extractor each",
    )
    yield (
        {"prototypes", "feature norms"} <= method.needs,
        "the adaptation looks at prototypes of features, the distance at those of their norms, and clients send one",
    )
    yield (
        "signatures" in method.needs and not isinstance(method.distance, Signs),
        "signatures are what the distance makes of a client's data, but it has no method signature(inputs, labels)",
    )
    yield (
        method.traits.weighting.needs_own_model and not method.traits.local.trains_own_model,
        "fuzzy c-means are of one local model for each client, so local must be own-model",
    )
    yield (
        method.local.kept and bool({"updates", "whole updates"} & method.needs),
        "a model that its client keeps starts anywhere, so its updates cannot be compared",
    )
