"""Methods are declarations; compositions that make no sense are refused with the reason."""

import pytest

from hcfl.errors import InputError
from hcfl.methods import METHODS, Method, build, settings_of
from hcfl.methods.local_models import ClusterModels, OwnHead, OwnModel
from hcfl.tiers import (
    Assigned,
    AssignedAmongAll,
    Conditional,
    ConflictDistance,
    Correlation,
    DecomposedCosineGroups,
    DensityOnce,
    FeatureNormDistance,
    Fixed,
    ForgettingEM,
    FuzzyCMeans,
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

WHOLE = UpdateCosine(weighted=False, of="whole updates")
CFL = SplitWhenStationary(0.4, 1.6)

TABLE = {
    "local": (Conditional(), Assigned(), Fixed(), None, "full", None),
    "cfl": (Conditional(), Assigned(), CFL, WHOLE, "full", 1),
    "icfl": (Conditional(), Assigned(), SplitBySpectrum(0.85), UpdateCosine(weighted=False), "full", 1),
    "hcfl-prime(fedem)": (Conditional(), SampleWiseEM(0.0), CFL, WHOLE, "split", 1),
    "hcfl-prime(fedrc)": (Correlation(), SampleWiseEM(0.4), CFL, WHOLE, "split", 1),
    "hcfl-prime(fedsoft)": (Conditional(), SampleWiseEM(0.0), CFL, WHOLE, "split", 1, ClusterModels(0.01)),
    "hcfl+(fedsoft)": (
        Conditional(),
        SampleWiseEM(0.0),
        SplitAndRemove(0.3),
        PrototypeDistance("ASCP"),
        "split",
        1,
        ClusterModels(0.01),
    ),
    "hcfl++": (Correlation(), SampleWiseEM(0.4), SplitOnGain(), ConflictDistance(), "split", 1),
    "fedavg": (Conditional(), Single(), Fixed(), None, "full", 1),
    "fedrep": (Conditional(), Single(), Fixed(), None, "split", 1, OwnHead("heads-first")),
    "fedper": (Conditional(), Single(), Fixed(), None, "split", 1, OwnHead("together")),
    "ifca": (Conditional(), HardByLoss(), Fixed(), None, "full", 3),
    "fesem": (Conditional(), HardByParameters(), KMeansOnce(3), None, "full", 1),
    "fedem": (Conditional(), SoftEM(), Fixed(), None, "full", 3),
    "fedrc": (Correlation(), SoftEM(), Fixed(), None, "full", 3),
    "fedgmm": (Joint(3, 32, 1e-3), SoftEM(), Fixed(), None, "full", 3),
    "fedsoft": (Conditional(), SoftCounts(2, 1e-4), Fixed(), None, "full", 3, OwnModel(True, 0.01)),
    "stocfl": (
        Conditional(),
        Assigned(),
        MergeSimilar(0.1),
        UpdateCosine(weighted=False, of="first updates"),
        "full",
        None,
        ClusterModels(0.5, "global"),
    ),
    "fl+hc": (Conditional(), Assigned(), HierarchicalOnce(4.4, 3, "complete"), ParameterDistance(), "full", 1),
    "wecfl": (Conditional(), Assigned(), WeightedKMeans(3), None, "full", 1),
    "fedgroup": (Conditional(), Assigned(), DecomposedCosineGroups(3), None, "full", 1),
    "feddrift": (Conditional(), AssignedAmongAll(), LossJump(1.5), None, "full", 1),
    "feddaa": (Conditional(), Assigned(), RealDriftGroups(3, 9), None, "split", 1),
    "clove": (Conditional(), AssignedAmongAll(), LossVectorGroups("k-means"), None, "full", 3),
    "flux": (Conditional(), Assigned(), DensityOnce(3, 1.5), None, "full", 1),
    "fedgwc": (Conditional(), Assigned(), SplitByInteractions(1e-3, 4.0, 5), None, "full", 1),
    "cfl-gp": (Conditional(), Assigned(), SpectralPartition(3, 3), None, "full", 1),
    "auxo": (Conditional(), Assigned(), GrowingCohorts(0.2, 4), None, "full", 1),
    "pacfl": (Conditional(), Assigned(), HierarchicalOnce(60.0), PrincipalAngles(3), "full", 1),
    "hcfl+(fesem)": (Conditional(), HardByParameters(), SplitAndRemove(0.3), PrototypeDistance("ASCP"), "split", 1),
    "hcfl+(fedem)": (Conditional(), SampleWiseEM(0.0), SplitAndRemove(0.3), PrototypeDistance("ASCP"), "split", 1),
    "hcfl+(fedrc)": (Correlation(), SampleWiseEM(0.4), SplitAndRemove(0.3), PrototypeDistance("CSCP"), "split", 1),
}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_composition_of_the_spec_s_table(name):
    order = "auto" if name == "hcfl++" else "heads-first"
    assert build(name) == Method(*TABLE[name], order=order, name=name)


def test_settings_reach_the_tiers():
    method = build("hcfl+(fedrc)", rho=0.05, mu=0.7, clusters=2)
    assert method.adaptation == SplitAndRemove(0.05)
    assert method.weighting == SampleWiseEM(0.7)
    assert method.clusters == 2
    assert build("hcfl+(fedrc)", rho=None) == build("hcfl+(fedrc)")


def test_hcfl_plus_plus_follows_clients_by_its_tiers():
    method = build("hcfl++", follows=True, false_alarms=0.05)
    assert method.weighting == ForgettingEM(0.4, false_alarms=0.05)
    assert method.adaptation == SplitOnContradiction(0.4, remembers=True)
    assert method.local == ClusterModels(by_weight=True)
    assert method.order == "heads-first"


def test_the_switches_of_public_code_reach_the_tiers():
    apart = Method(Conditional(), HardByParameters(True), Fixed(), None, "full", 4, name="fesem")
    assert build("fesem", clusters=4, zero_empty=True, independent_start=True) == apart
    assert build("fesem", clusters=1).adaptation == Fixed()
    assert build("fesem", clusters=5).adaptation == KMeansOnce(5)
    assert build("icfl", cosine_of="parameters").distance == UpdateCosine(weighted=False, of="models")
    for name in ("fedem", "fedrc", "fedsoft"):
        method = build(f"hcfl+({name})", rho=0.1, uniform_split=True)
        assert method.adaptation == SplitAndRemove(0.1, uniform=True)
        assert method.adaptation.rule == "uniform"
    with pytest.raises(InputError, match=r"method.uniform_split = True: hcfl\+\(fesem\) has no such setting"):
        build("hcfl+(fesem)", uniform_split=True)


def test_names_and_settings_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match=r"'fedrcc'.*did you mean fedrc\?"):
        build("fedrcc")
    with pytest.raises(InputError, match=r"method.rho = 0.1: fedavg has no such setting; it has no settings"):
        build("fedavg", rho=0.1)
    with pytest.raises(InputError, match=r"method.mu = 0.1: fedem has no such setting; its settings are clusters"):
        build("fedem", mu=0.1)
    assert settings_of("hcfl+(fesem)") == {"clusters": 1, "rho": 0.3}


CSCP = PrototypeDistance("CSCP")


@pytest.mark.parametrize(
    ("choices", "reason"),
    [
        ((Conditional(), Single(), SplitAndRemove(0.1), CSCP, "split", 1), "nothing to split"),
        ((Conditional(), Single(), Fixed(), None, "full", 2), "one cluster"),
        ((Conditional(), SoftEM(), SplitAndRemove(0.1), None, "split", 1), "needs a distance"),
        ((Conditional(), SoftEM(), Fixed(), CSCP, "split", 3), "never looks at a distance"),
        ((Conditional(), SoftEM(), SplitAndRemove(0.1), CSCP, "full", 1), "one shared space"),
        ((Conditional(), SoftEM(), Fixed(), None, "full", 0), "at least 1"),
        ((Conditional(), SoftEM(), Fixed(), None, "full", None), "only where the server assigns"),
        ((Conditional(), Assigned(), Fixed(), None, "full", 3), "start in one cluster, or in one each"),
        ((Conditional(), Assigned(), Fixed(), None, "full", 1), "wait for splits"),
        ((Conditional(), Assigned(), CFL, WHOLE, "full", None), "cluster of its own, so there is nothing to split"),
        (
            (Conditional(), Assigned(), SplitBySpectrum(), UpdateCosine(), "full", None),
            "cluster of its own, so there is nothing to split",
        ),
        ((Conditional(), SoftEM(), SplitAndRemove(0.1), FeatureNormDistance(), "full", 1), "one shared space"),
        ((Conditional(), SoftEM(), MergeSimilar(), UpdateCosine(), "full", 1), "nothing to merge"),
        ((Conditional(), SoftEM(), WeightedKMeans(), None, "full", 3), "so it starts from one cluster"),
        ((Conditional(), Assigned(), WeightedKMeans(), WHOLE, "full", 1), "never looks at a distance"),
        ((Conditional(), FuzzyCMeans(), Fixed(), None, "full", 3), "local must be own-model"),
        (
            (Conditional(), HardByLoss(), SplitAndRemove(0.1, uniform=True), CSCP, "split", 1),
            "uniform = true spreads clients over all clusters, but hard weights put each into one",
        ),
        (
            (Conditional(), SoftEM(), SplitWhenStationary(lost_ids=True), WHOLE, "full", 1),
            "lost_ids = true puts the wrong clients into the server's lists, but only assigned clients go by them",
        ),
        ((Conditional(), HardByParameters(), KMeansOnce(), None, "full", 3), "so it starts from one cluster"),
        ((Conditional(), Assigned(), CFL, WHOLE, "full", 1, OwnModel()), "its updates cannot be compared"),
    ],
)
def test_invalid_compositions_are_refused_with_the_reason(choices, reason):
    with pytest.raises(InputError, match=f"method mine: .*{reason}"):
        Method(*choices, name="mine")


@pytest.mark.parametrize("topology", ["split", "full"])
@pytest.mark.parametrize("weighting", [HardByLoss(), HardByParameters(), SoftEM(), SampleWiseEM(0.4)])
@pytest.mark.parametrize("formulation", [Conditional(), Correlation()])
def test_every_other_composition_is_a_method(formulation, weighting, topology):
    Method(formulation, weighting, Fixed(), None, topology, 3, name="mine")
    Method(formulation, weighting, SplitAndRemove(0.3), UpdateCosine(), topology, 1, name="mine")


def test_a_method_needs_what_its_distance_and_its_adaptation_look_at():
    assert build("fedem").needs == frozenset()
    assert build("wecfl").needs == {"models"}
    assert build("fedgroup").needs == {"first updates"}
    both = Method(Conditional(), SoftEM(), CFL, PrincipalAngles(), "full", 1, name="mine")
    assert both.needs == {"whole updates", "signatures"}


def test_the_initial_model_is_needed_for_first_updates_and_for_embedding():
    needing = {name for name in METHODS if build(name).uses_anchor}
    assert needing == {"stocfl", "fedgroup", "fedgmm"}
