"""What a choice says of itself; a user's own class says it like ours, and has defaults for the rest."""

from dataclasses import dataclass, fields

import pytest

from hcfl import InputError, Method
from hcfl.methods.choices import CHOICES
from hcfl.methods.compositions import EXAMPLES
from hcfl.methods.local_models import ClusterModels, OwnModel
from hcfl.methods.robust_means import Mean, Median
from hcfl.tiers import (
    Assigned,
    Conditional,
    Correlation,
    Decision,
    Fixed,
    FuzzyCMeans,
    Joint,
    PrototypeDistance,
    SampleWiseEM,
    Single,
    SoftEM,
    SplitAndRemove,
    UpdateCosine,
)
from hcfl.tiers.traits import (
    AdaptationTraits,
    AggregationTraits,
    DistanceTraits,
    FormulationTraits,
    LocalTraits,
    WeightingTraits,
    traits_of,
)

KINDS = {
    "formulation": FormulationTraits,
    "weighting": WeightingTraits,
    "adaptation": AdaptationTraits,
    "distance": DistanceTraits,
    "local": LocalTraits,
    "aggregation": AggregationTraits,
}


@dataclass(frozen=True)
class OwnAdaptation:
    """As short as docs/invent.md allows."""

    adaptive: bool = True
    uses_distance: bool = False
    needs: None = None

    def decide(self, participants, distance, occupied):
        return Decision()


class OwnSplitter(OwnAdaptation):
    splits = True


class OwnMerger(OwnAdaptation):
    merges = True


class OwnGrouping(OwnAdaptation):
    groups_all_at_once = True
    groups = 4


def test_an_own_splitter_is_recognised():
    with pytest.raises(InputError, match="a cluster of its own, so there is nothing to split"):
        Method(Conditional(), Assigned(), OwnSplitter(), clusters=None)
    assert Method(Conditional(), Assigned(), OwnSplitter(), clusters=1).traits.adaptation.splits


def test_own_merging_and_grouping_are_recognised():
    with pytest.raises(InputError, match="nothing to merge"):
        Method(Conditional(), Assigned(), OwnMerger(), clusters=1)
    with pytest.raises(InputError, match="starts from one cluster"):
        Method(Conditional(), SoftEM(), OwnGrouping(), clusters=3)


def test_an_own_choice_that_says_nothing_has_the_defaults():
    assert traits_of(AdaptationTraits, OwnAdaptation()) == AdaptationTraits()
    assert Method(Conditional(), Assigned(), OwnAdaptation(), clusters=None).traits.adaptation == AdaptationTraits()


def test_an_own_weighting_for_one_cluster_is_recognised():
    class OwnSingle(Single):
        pass

    with pytest.raises(InputError, match="single weights put every client into one cluster"):
        Method(Conditional(), OwnSingle(), Fixed(), clusters=2)


def test_settings_decide_traits():
    assert traits_of(FormulationTraits, Correlation(floor=0.1)).share_floor == 0.1
    assert traits_of(FormulationTraits, Joint(dimensions=5, floor=0.2)) == FormulationTraits(1e-8, 5, 0.2)
    assert traits_of(WeightingTraits, FuzzyCMeans(3.0)).mass_power == 3
    assert traits_of(WeightingTraits, SampleWiseEM(0.4)) == WeightingTraits()
    assert traits_of(AdaptationTraits, SplitAndRemove(0.3, uniform=True)).spreads_weights
    assert traits_of(DistanceTraits, PrototypeDistance("CSCP")).compares_classes_only
    assert traits_of(DistanceTraits, PrototypeDistance("ASCP")) == traits_of(DistanceTraits, UpdateCosine())
    assert traits_of(DistanceTraits, None) == DistanceTraits()
    assert traits_of(LocalTraits, ClusterModels()) == LocalTraits(trains_cluster_models=True)
    assert traits_of(LocalTraits, OwnModel()) == LocalTraits(trains_own_model=True)
    assert traits_of(AggregationTraits, Mean()) != traits_of(AggregationTraits, Median())


@pytest.mark.parametrize("tier", CHOICES)
def test_every_trait_is_declared_by_some_choice(tier):
    """A trait whose name is misspelt in a choice would be its default everywhere."""
    kind = KINDS[tier]
    for trait in fields(kind):
        assert any(hasattr(EXAMPLES.get(choice) or choice(), trait.name) for choice in CHOICES[tier]), trait.name
