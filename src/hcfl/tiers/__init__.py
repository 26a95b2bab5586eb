"""The four independent choices of which every clustered-FL method is made.

| tier | file | question |
|---|---|---|
| 1 formulation | `formulation.py`, `gaussians.py` | what is the likelihood L_k of a sample under cluster k? |
| 2 weighting | `weighting/` | how much does a client (or a sample) belong to each cluster? |
| 3 adaptation | `adaptation/` | when and how does the number of clusters change? |
| 4 distance | `distance.py` | how far apart are two clients? |

A tier maps tensors to tensors. It does not import the other tiers, and it does not know files, engines or networks.
What a choice says of itself beyond its Protocol is in `traits.py`; what tiers 3 and 4 look at is in `participants.py`.
"""

from hcfl.tiers.adaptation import (
    Adaptation,
    Decision,
    DecomposedCosineGroups,
    DensityOnce,
    Fixed,
    GrowingCohorts,
    HierarchicalOnce,
    KMeansOnce,
    LossJump,
    LossVectorGroups,
    MergeDecision,
    MergeSimilar,
    MoveDecision,
    RealDriftGroups,
    SpectralPartition,
    SplitAndRemove,
    SplitByInteractions,
    SplitBySpectrum,
    SplitDecision,
    SplitOnContradiction,
    SplitOnGain,
    SplitWhenStationary,
    WeightedKMeans,
)
from hcfl.tiers.distance import (
    ConflictDistance,
    Distance,
    FeatureNormDistance,
    ParameterDistance,
    PrincipalAngles,
    PrototypeDistance,
    Signs,
    UpdateCosine,
)
from hcfl.tiers.formulation import Conditional, Correlation, Formulation, Joint
from hcfl.tiers.participants import Participants, Prototypes
from hcfl.tiers.traits import AdaptationTraits, DistanceTraits, FormulationTraits, WeightingTraits
from hcfl.tiers.weighting import (
    Assigned,
    AssignedAmongAll,
    ByLabelDistribution,
    EStepInputs,
    FollowsChanges,
    ForgettingEM,
    FuzzyCMeans,
    HardByLoss,
    HardByParameters,
    SampleWiseEM,
    SettlesAfterTraining,
    Single,
    SoftCounts,
    SoftEM,
    Weighting,
    Weights,
)

__all__ = [
    "Adaptation",
    "AdaptationTraits",
    "Assigned",
    "AssignedAmongAll",
    "ByLabelDistribution",
    "Conditional",
    "ConflictDistance",
    "Correlation",
    "Decision",
    "DecomposedCosineGroups",
    "DensityOnce",
    "Distance",
    "DistanceTraits",
    "EStepInputs",
    "FeatureNormDistance",
    "Fixed",
    "FollowsChanges",
    "ForgettingEM",
    "Formulation",
    "FormulationTraits",
    "FuzzyCMeans",
    "GrowingCohorts",
    "HardByLoss",
    "HardByParameters",
    "HierarchicalOnce",
    "Joint",
    "KMeansOnce",
    "LossJump",
    "LossVectorGroups",
    "MergeDecision",
    "MergeSimilar",
    "MoveDecision",
    "ParameterDistance",
    "Participants",
    "PrincipalAngles",
    "PrototypeDistance",
    "Prototypes",
    "RealDriftGroups",
    "SampleWiseEM",
    "SettlesAfterTraining",
    "Signs",
    "Single",
    "SoftCounts",
    "SoftEM",
    "SpectralPartition",
    "SplitAndRemove",
    "SplitByInteractions",
    "SplitBySpectrum",
    "SplitDecision",
    "SplitOnContradiction",
    "SplitOnGain",
    "SplitWhenStationary",
    "UpdateCosine",
    "WeightedKMeans",
    "Weighting",
    "WeightingTraits",
    "Weights",
]
