"""Every named method as a declaration over the four tiers."""

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from inspect import signature
from typing import Any, Literal

from hcfl.errors import InputError
from hcfl.methods.local_models import ClusterModels, OwnHead, OwnModel
from hcfl.methods.method import Method
from hcfl.tiers import (
    Assigned,
    AssignedAmongAll,
    Conditional,
    ConflictDistance,
    Correlation,
    DecomposedCosineGroups,
    DensityOnce,
    Fixed,
    ForgettingEM,
    GrowingCohorts,
    HardByLoss,
    HardByParameters,
    HierarchicalOnce,
    Joint,
    KMeansOnce,
    LossJump,
    LossVectorGroups,
    MergeSimilar,
    ParameterDistance,
    PrincipalAngles,
    PrototypeDistance,
    RealDriftGroups,
    SampleWiseEM,
    Single,
    SoftCounts,
    SoftEM,
    SpectralPartition,
    SplitAndRemove,
    SplitByInteractions,
    SplitBySpectrum,
    SplitOnContradiction,
    SplitOnGain,
    SplitWhenStationary,
    UpdateCosine,
    WeightedKMeans,
)


def fedavg() -> Method:
    """One global model (McMahan et al., 2017)."""
    return Method(Conditional(), Single(), Fixed(), None, "full", 1, name="fedavg")


def fedrep() -> Method:
    """One extractor for all, an own head for each client, trained first (Collins et al., 2021)."""
    return Method(Conditional(), Single(), Fixed(), None, "split", 1, OwnHead("heads-first"), name="fedrep")


def fedper() -> Method:
    """One extractor for all, an own head for each client, trained together (Arivazhagan et al., 2019)."""
    return Method(Conditional(), Single(), Fixed(), None, "split", 1, OwnHead("together"), name="fedper")


def ifca(clusters: int = 3, zero_empty: bool = False) -> Method:
    """Each client trains the model with the lowest loss on its data (Ghosh et al., 2020)."""
    return Method(Conditional(), HardByLoss(zero_empty), Fixed(), None, "full", clusters, name="ifca")


def fesem(clusters: int = 3, zero_empty: bool = False, independent_start: bool = False) -> Method:
    """Each client joins the model nearest to its trained parameters (Long et al., 2023).

    All start from one model, and k-means of what they trained makes the first clusters; with `independent_start`, there
    are K models from the beginning, drawn apart, and most clients stay with the model that they trained in round 1.
    """
    weighting = HardByParameters(zero_empty)
    if independent_start or clusters == 1:
        return Method(Conditional(), weighting, Fixed(), None, "full", clusters, name="fesem")
    return Method(Conditional(), weighting, KMeansOnce(clusters), None, "full", 1, name="fesem")


def fedem(clusters: int = 3) -> Method:
    """Each client is a mixture of models (Marfoq et al., 2021)."""
    return Method(Conditional(), SoftEM(), Fixed(), None, "full", clusters, name="fedem")


def fedrc(clusters: int = 3) -> Method:
    """Each client is a mixture of models that only concept shift pulls apart (Guo et al., 2024)."""
    return Method(Correlation(), SoftEM(), Fixed(), None, "full", clusters, name="fedrc")


def fedgmm(clusters: int = 3, gaussians: int = 3) -> Method:
    """Each client is a mixture of models and of Gaussians on its inputs (Wu et al., 2023)."""
    return Method(Joint(gaussians), SoftEM(), Fixed(), None, "full", clusters, name="fedgmm")


def fedsoft(clusters: int = 3, period: int = 2, proximal: float = 0.01) -> Method:
    """Each client keeps a model of its own near its mixture of clusters (Ruan & Joe-Wong, 2022)."""
    weighting, local = SoftCounts(period), OwnModel(kept=True, proximal=proximal)
    return Method(Conditional(), weighting, Fixed(), None, "full", clusters, local, name="fedsoft")


def hcfl_plus_fesem(clusters: int = 1, rho: float = 0.3) -> Method:
    """HCFL+ with hard weights by parameter distance of the heads."""
    adaptation, distance = SplitAndRemove(rho), PrototypeDistance("ASCP")
    return Method(Conditional(), HardByParameters(), adaptation, distance, "split", clusters, name="hcfl+(fesem)")


def hcfl_plus_fedem(clusters: int = 1, rho: float = 0.3, mu: float = 0.0, uniform_split: bool = False) -> Method:
    """HCFL+ for personalisation: any shift separates clients."""
    adaptation, distance = SplitAndRemove(rho, uniform=uniform_split), PrototypeDistance("ASCP")
    return Method(Conditional(), SampleWiseEM(mu), adaptation, distance, "split", clusters, name="hcfl+(fedem)")


def hcfl_plus_fedrc(clusters: int = 1, rho: float = 0.3, mu: float = 0.4, uniform_split: bool = False) -> Method:
    """HCFL+ for generalisation: only concept shift separates clients."""
    adaptation, distance = SplitAndRemove(rho, uniform=uniform_split), PrototypeDistance("CSCP")
    return Method(Correlation(), SampleWiseEM(mu), adaptation, distance, "split", clusters, name="hcfl+(fedrc)")


def hcfl_plus_plus(
    clusters: int = 1, rho: float = 0.4, mu: float = 0.4, follows: bool = False, false_alarms: float = 0.01
) -> Method:
    """HCFL+ (FedRC) that splits where two heads serve better, or where two groups contradict each other: our own.

    While there is one cluster, its head and the extractor train together, which is FedAvg. With `follows`, clients may
    change: weights forget, a test of each client's losses reopens them, clusters that a concept has left are
    remembered, and small clusters learn as fast as large ones; there contradictions alone split.
    """
    method = Method(Correlation(), SampleWiseEM(mu), SplitOnGain(rho=rho), ConflictDistance(), "split", clusters)
    method = replace(method, order="auto", name="hcfl++")
    if not follows:
        return method
    forgetting = ForgettingEM(mu, false_alarms=false_alarms)
    adaptation, local = SplitOnContradiction(rho, remembers=True), ClusterModels(by_weight=True)
    return replace(method, weighting=forgetting, adaptation=adaptation, local=local, order="heads-first")


def hcfl_plus_fedsoft(
    clusters: int = 1, rho: float = 0.3, proximal: float = 0.01, uniform_split: bool = False
) -> Method:
    """HCFL+ on FedSoft: the FedEM variant with a proximal term in every loss."""
    backbone = hcfl_plus_fedem(clusters, rho, uniform_split=uniform_split)
    return replace(backbone, name="hcfl+(fedsoft)", local=ClusterModels(proximal))


def local() -> Method:
    """No federation: every client keeps its own model."""
    return Method(Conditional(), Assigned(), Fixed(), None, "full", None, name="local")


def cfl(tol1: float = 0.4, tol2: float = 1.6, max_coordinate: bool = False, lost_ids: bool = False) -> Method:
    """Split clusters that have converged while their clients still pull (Sattler et al., 2020)."""
    adaptation = SplitWhenStationary(tol1, tol2, max_coordinate, lost_ids)
    distance = UpdateCosine(weighted=False, of="whole updates")
    return Method(Conditional(), Assigned(), adaptation, distance, "full", 1, name="cfl")


def icfl(
    alpha0: float = 0.85, from_start: bool = False, cosine_of: Literal["updates", "parameters"] = "updates"
) -> Method:
    """Split clusters whose updates stop pointing one way, ever more strictly (Yan et al., 2023)."""
    adaptation = SplitBySpectrum(alpha0, from_start=from_start)
    distance = UpdateCosine(weighted=False, of="updates" if cosine_of == "updates" else "models")
    return Method(Conditional(), Assigned(), adaptation, distance, "full", 1, name="icfl")


def stocfl(tau: float = 0.1, proximal: float = 0.5) -> Method:
    """Every client starts alone; clusters whose clients first moved the same way merge (Zeng et al., 2023)."""
    distance, local = UpdateCosine(weighted=False, of="first updates"), ClusterModels(proximal, towards="global")
    return Method(Conditional(), Assigned(), MergeSimilar(tau), distance, "full", None, local, name="stocfl")


def fl_hc(threshold: float = 4.4, after: int = 3) -> Method:
    """Group clients once, by hierarchical clustering of their trained parameters (Briggs et al., 2020)."""
    adaptation = HierarchicalOnce(threshold, after, "complete")
    return Method(Conditional(), Assigned(), adaptation, ParameterDistance(), "full", 1, name="fl+hc")


def wecfl(clusters: int = 3) -> Method:
    """Group clients in every round, by weighted k-means of their trained parameters (Ma et al., 2022)."""
    return Method(Conditional(), Assigned(), WeightedKMeans(clusters), None, "full", 1, name="wecfl")


def fedgroup(clusters: int = 3) -> Method:
    """Group clients once, by the decomposed cosine of their first updates (Duan et al., 2021)."""
    return Method(Conditional(), Assigned(), DecomposedCosineGroups(clusters), None, "full", 1, name="fedgroup")


def pacfl(threshold: float = 60.0, directions: int = 3) -> Method:
    """Group clients once, by principal angles between their data's subspaces (Vahidian et al., 2023)."""
    adaptation, distance = HierarchicalOnce(threshold), PrincipalAngles(directions)
    return Method(Conditional(), Assigned(), adaptation, distance, "full", 1, name="pacfl")


def clove(clusters: int = 3, clustering: Literal["k-means", "agglomerative"] = "k-means") -> Method:
    """Group clients in every round, by their vectors of losses on all models (Bhatia et al., 2026)."""
    adaptation = LossVectorGroups(clustering)
    return Method(Conditional(), AssignedAmongAll(), adaptation, None, "full", clusters, name="clove")


def feddrift(jump: float = 1.5) -> Method:
    """Found clusters for clients whose loss jumps, merge clusters by cross-losses (Jothimurugesan et al., 2023)."""
    return Method(Conditional(), AssignedAmongAll(), LossJump(jump), None, "full", 1, name="feddrift")


def feddaa(after: int = 3, most: int = 9) -> Method:
    """Group clients by class prototypes; real drift moves a client, virtual drift does not (Peng & Tang, 2025)."""
    return Method(Conditional(), Assigned(), RealDriftGroups(after, most), None, "split", 1, name="feddaa")


def flux(after: int = 3, reach: float = 1.5) -> Method:
    """Group clients once, by density of descriptors of P(x) and P(y|x) (Fenoglio et al., 2025)."""
    return Method(Conditional(), Assigned(), DensityOnce(after, reach), None, "full", 1, name="flux")


def fedgwc(most: int = 5) -> Method:
    """Split clusters by how typical clients' losses are, beside which others (Licciardi et al., 2025)."""
    return Method(Conditional(), Assigned(), SplitByInteractions(most=most), None, "full", 1, name="fedgwc")


def cfl_gp(clusters: int = 3, period: int = 3) -> Method:
    """Group clients by accumulated gradients of the clusters' models, again and again (Kim et al., 2024)."""
    return Method(Conditional(), Assigned(), SpectralPartition(clusters, period), None, "full", 1, name="cfl-gp")


def auxo(gain: float = 0.2, smallest: int = 4) -> Method:
    """Cohorts that split as their clients become known, few of them in a round (Liu et al., 2023)."""
    return Method(Conditional(), Assigned(), GrowingCohorts(gain, smallest), None, "full", 1, name="auxo")


def hcfl_prime_fedem(tol1: float = 0.4, tol2: float = 1.6, mu: float = 0.0) -> Method:
    """HCFL′ on FedEM: CFL's split in the split topology, without removal."""
    adaptation, distance = SplitWhenStationary(tol1, tol2), UpdateCosine(weighted=False, of="whole updates")
    return Method(Conditional(), SampleWiseEM(mu), adaptation, distance, "split", 1, name="hcfl-prime(fedem)")


def hcfl_prime_fedrc(tol1: float = 0.4, tol2: float = 1.6, mu: float = 0.4) -> Method:
    """HCFL′ on FedRC: the same with FedRC's formulation."""
    return replace(hcfl_prime_fedem(tol1, tol2, mu), name="hcfl-prime(fedrc)", formulation=Correlation())


def hcfl_prime_fedsoft(tol1: float = 0.4, tol2: float = 1.6, proximal: float = 0.01) -> Method:
    """HCFL′ on FedSoft: the FedEM variant with a proximal term in every loss."""
    return replace(hcfl_prime_fedem(tol1, tol2), name="hcfl-prime(fedsoft)", local=ClusterModels(proximal))


METHODS: dict[str, Callable[..., Method]] = {
    "local": local,
    "fedavg": fedavg,
    "fedrep": fedrep,
    "fedper": fedper,
    "ifca": ifca,
    "fesem": fesem,
    "fedem": fedem,
    "fedgmm": fedgmm,
    "fedrc": fedrc,
    "fedsoft": fedsoft,
    "cfl": cfl,
    "icfl": icfl,
    "stocfl": stocfl,
    "fl+hc": fl_hc,
    "wecfl": wecfl,
    "fedgroup": fedgroup,
    "pacfl": pacfl,
    "feddrift": feddrift,
    "feddaa": feddaa,
    "clove": clove,
    "flux": flux,
    "fedgwc": fedgwc,
    "cfl-gp": cfl_gp,
    "auxo": auxo,
    "hcfl-prime(fedem)": hcfl_prime_fedem,
    "hcfl-prime(fedrc)": hcfl_prime_fedrc,
    "hcfl-prime(fedsoft)": hcfl_prime_fedsoft,
    "hcfl+(fesem)": hcfl_plus_fesem,
    "hcfl+(fedem)": hcfl_plus_fedem,
    "hcfl+(fedrc)": hcfl_plus_fedrc,
    "hcfl+(fedsoft)": hcfl_plus_fedsoft,
    "hcfl++": hcfl_plus_plus,
}
"""Declarations by the name that users type."""


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
        family = [known for known in METHODS if known.startswith(f"{name.lower()}(")]
        close = family or get_close_matches(name.lower(), METHODS, n=1)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise InputError(f"method.name = {name!r}: is not one of {', '.join(METHODS)}{hint}")
    return METHODS[name]
