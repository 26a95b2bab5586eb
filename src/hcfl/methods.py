"""Every named method as a declaration over the four tiers (spec §6)."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from inspect import signature
from typing import Any

from hcfl.ensemble import Topology
from hcfl.errors import InputError
from hcfl.tiers import (
    Adaptation,
    Assigned,
    Conditional,
    Correlation,
    Distance,
    Fixed,
    Formulation,
    HardByLoss,
    HardByParameters,
    PrototypeDistance,
    SampleWiseEM,
    Single,
    SoftEM,
    SplitAndRemove,
    SplitBySpectrum,
    SplitWhenStationary,
    UpdateCosine,
    Weighting,
)
from hcfl.tiers.distance import Evidence


@dataclass(frozen=True)
class Method:
    """One choice on each tier, how the model is shared, and how many clusters there are at the start."""

    name: str
    formulation: Formulation
    weighting: Weighting
    adaptation: Adaptation
    distance: Distance | None
    topology: Topology
    clusters: int | None
    """K at the start; None: one for every client."""
    proximal: float = 0.0
    """λ of the term λ/2‖θ − received‖² in local training."""

    def __post_init__(self) -> None:
        if reason := conflict(self):
            raise InputError(f"method {self.name}: {reason}")

    @property
    def needs(self) -> frozenset[Evidence]:
        """Which evidence tiers 3 and 4 look at."""
        wanted = (self.adaptation.needs, None if self.distance is None else self.distance.needs)
        return frozenset(need for need in wanted if need is not None)

    def choices(self) -> dict[str, str]:
        """Return what was chosen on each tier, in words."""
        return {
            "formulation": _shown(self.formulation),
            "weighting": _shown(self.weighting),
            "adaptation": _shown(self.adaptation),
            "distance": "–" if self.distance is None else _shown(self.distance),
            "topology": self.topology,
        }


def words(choice: type) -> str:
    """SampleWiseEM → sample wise EM."""
    parts = re.findall("[A-Z]+(?![a-z])|[A-Z][a-z]+", choice.__name__)
    return " ".join(part if part.isupper() else part.lower() for part in parts)


def _shown(choice: object) -> str:
    principle = getattr(choice, "principle", None)
    return " ".join([words(type(choice)).replace(" distance", ""), *([principle] if principle else [])])


def conflict(method: Method) -> str | None:
    """Return why these choices do not make a method, or None if they do."""
    if method.topology not in ("split", "full"):
        return f"topology = {method.topology!r}, but it is split or full"
    assigned = isinstance(method.weighting, Assigned)
    if method.clusters is None and not assigned:
        return "one cluster for every client makes sense only where the server assigns clients to clusters"
    if method.clusters is not None and method.clusters < 1:
        return f"clusters = {method.clusters}, but at least 1 is needed to start from"
    if assigned and method.clusters is not None and method.clusters > 1:
        return f"clusters = {method.clusters}, but assigned clients start in one cluster, or in one each"
    if assigned and method.clusters == 1 and not method.adaptation.adaptive:
        return "assigned clients wait for splits, but the number of clusters is fixed"
    if isinstance(method.weighting, Single) and method.clusters != 1:
        return f"clusters = {method.clusters}, but single weights put every client into one cluster"
    if isinstance(method.weighting, Single) and method.adaptation.adaptive:
        return "single weights put every client into one cluster, so there is nothing to split"
    if method.adaptation.adaptive and method.distance is None:
        return "an adaptive number of clusters needs a distance to decide by"
    if not method.adaptation.adaptive and method.distance is not None:
        return "a fixed number of clusters never looks at a distance; leave the distance out"
    if "prototypes" in method.needs and method.topology == "full":
        return "prototypes are compared in one shared feature space, but full models have an extractor each"
    return None


def fedavg() -> Method:
    """One global model (McMahan et al., 2017)."""
    return Method("fedavg", Conditional(), Single(), Fixed(), None, "full", 1)


def ifca(clusters: int = 3) -> Method:
    """Each client trains the model with the lowest loss on its data (Ghosh et al., 2020)."""
    return Method("ifca", Conditional(), HardByLoss(), Fixed(), None, "full", clusters)


def fesem(clusters: int = 3) -> Method:
    """Each client joins the model nearest to its trained parameters (Long et al., 2023)."""
    return Method("fesem", Conditional(), HardByParameters(), Fixed(), None, "full", clusters)


def fedem(clusters: int = 3) -> Method:
    """Each client is a mixture of models (Marfoq et al., 2021)."""
    return Method("fedem", Conditional(), SoftEM(), Fixed(), None, "full", clusters)


def fedrc(clusters: int = 3) -> Method:
    """Each client is a mixture of models that only concept shift pulls apart (Guo et al., 2024)."""
    return Method("fedrc", Correlation(), SoftEM(), Fixed(), None, "full", clusters)


def hcfl_plus_fesem(clusters: int = 1, rho: float = 0.3) -> Method:
    """HCFL+ with hard weights by parameter distance of the heads."""
    adaptation, distance = SplitAndRemove(rho), PrototypeDistance("ASCP")
    return Method("hcfl+(fesem)", Conditional(), HardByParameters(), adaptation, distance, "split", clusters)


def hcfl_plus_fedem(clusters: int = 1, rho: float = 0.3, mu: float = 0.0) -> Method:
    """HCFL+ for personalisation: any shift separates clients."""
    adaptation, distance = SplitAndRemove(rho), PrototypeDistance("ASCP")
    return Method("hcfl+(fedem)", Conditional(), SampleWiseEM(mu), adaptation, distance, "split", clusters)


def hcfl_plus_fedrc(clusters: int = 1, rho: float = 0.3, mu: float = 0.4) -> Method:
    """HCFL+ for generalisation: only concept shift separates clients."""
    adaptation, distance = SplitAndRemove(rho), PrototypeDistance("CSCP")
    return Method("hcfl+(fedrc)", Correlation(), SampleWiseEM(mu), adaptation, distance, "split", clusters)


def hcfl_plus_fedsoft(clusters: int = 1, rho: float = 0.3, proximal: float = 0.01) -> Method:
    """HCFL+ on FedSoft: the FedEM variant with a proximal term in every loss."""
    return replace(hcfl_plus_fedem(clusters, rho), name="hcfl+(fedsoft)", proximal=proximal)


def local() -> Method:
    """No federation: every client keeps its own model."""
    return Method("local", Conditional(), Assigned(), Fixed(), None, "full", None)


def cfl(tol1: float = 0.4, tol2: float = 1.6, max_coordinate: bool = False, lost_ids: bool = False) -> Method:
    """Split clusters that have converged while their clients still pull (Sattler et al., 2020)."""
    adaptation = SplitWhenStationary(tol1, tol2, max_coordinate, lost_ids)
    distance = UpdateCosine(weighted=False, of="whole updates")
    return Method("cfl", Conditional(), Assigned(), adaptation, distance, "full", 1)


def icfl(alpha0: float = 0.85, from_start: bool = False) -> Method:
    """Split clusters whose updates stop pointing one way, ever more strictly (Yan et al., 2023)."""
    adaptation, distance = SplitBySpectrum(alpha0, from_start=from_start), UpdateCosine(weighted=False)
    return Method("icfl", Conditional(), Assigned(), adaptation, distance, "full", 1)


def hcfl_prime_fedem(tol1: float = 0.4, tol2: float = 1.6, mu: float = 0.0) -> Method:
    """HCFL′ on FedEM: CFL's split in the split topology, without removal."""
    adaptation, distance = SplitWhenStationary(tol1, tol2), UpdateCosine(weighted=False, of="whole updates")
    return Method("hcfl-prime(fedem)", Conditional(), SampleWiseEM(mu), adaptation, distance, "split", 1)


def hcfl_prime_fedrc(tol1: float = 0.4, tol2: float = 1.6, mu: float = 0.4) -> Method:
    """HCFL′ on FedRC: the same with FedRC's formulation."""
    return replace(hcfl_prime_fedem(tol1, tol2, mu), name="hcfl-prime(fedrc)", formulation=Correlation())


def hcfl_prime_fedsoft(tol1: float = 0.4, tol2: float = 1.6, proximal: float = 0.01) -> Method:
    """HCFL′ on FedSoft: the FedEM variant with a proximal term in every loss."""
    return replace(hcfl_prime_fedem(tol1, tol2), name="hcfl-prime(fedsoft)", proximal=proximal)


METHODS: dict[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "ifca": ifca,
    "fesem": fesem,
    "fedem": fedem,
    "fedrc": fedrc,
    "cfl": cfl,
    "icfl": icfl,
    "hcfl-prime(fedem)": hcfl_prime_fedem,
    "hcfl-prime(fedrc)": hcfl_prime_fedrc,
    "hcfl-prime(fedsoft)": hcfl_prime_fedsoft,
    "hcfl+(fesem)": hcfl_plus_fesem,
    "hcfl+(fedem)": hcfl_plus_fedem,
    "hcfl+(fedrc)": hcfl_plus_fedrc,
    "hcfl+(fedsoft)": hcfl_plus_fedsoft,
}
"""Declarations by the name that people type."""


def settings_of(name: str) -> dict[str, Any]:
    """Return the settings a named method has, with their defaults."""
    return {key: parameter.default for key, parameter in signature(_declaration(name)).parameters.items()}


def build(name: str, **settings: Any) -> Method:
    """Build a named method; settings it does not have are refused, those left at None keep their default."""
    known = settings_of(name)
    given = {key: value for key, value in settings.items() if value is not None}
    for key, value in given.items():
        if key not in known:
            has = f"its settings are {', '.join(known)}" if known else "it has no settings"
            raise InputError(f"method.{key} = {value}: {name} has no such setting; {has}")
    return _declaration(name)(**given)


def _declaration(name: str) -> Callable[..., Method]:
    if name not in METHODS:
        close = get_close_matches(name.lower(), METHODS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"method.name = {name!r}: is not one of {', '.join(METHODS)}{hint}")
    return METHODS[name]
