"""Tier 2, clustering weights: how much a client, or each of its samples, belongs to each cluster (eqs. (3)-(5))."""

from hcfl.tiers.weighting.drifting import ForgettingEM
from hcfl.tiers.weighting.hard import (
    Assigned,
    AssignedAmongAll,
    ByLabelDistribution,
    HardByLoss,
    HardByParameters,
    InGivenGroup,
    Single,
    hellinger,
)
from hcfl.tiers.weighting.soft import FuzzyCMeans, SampleWiseEM, SoftCounts, SoftEM
from hcfl.tiers.weighting.weights import (
    EStepInputs,
    FollowsChanges,
    SettlesAfterTraining,
    Weighting,
    Weights,
    best_cluster,
    one_hot,
    responsibilities,
    uniform,
)

__all__ = [
    "Assigned",
    "AssignedAmongAll",
    "ByLabelDistribution",
    "EStepInputs",
    "FollowsChanges",
    "ForgettingEM",
    "FuzzyCMeans",
    "HardByLoss",
    "HardByParameters",
    "InGivenGroup",
    "SampleWiseEM",
    "SettlesAfterTraining",
    "Single",
    "SoftCounts",
    "SoftEM",
    "Weighting",
    "Weights",
    "best_cluster",
    "hellinger",
    "one_hot",
    "responsibilities",
    "uniform",
]
