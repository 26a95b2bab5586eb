"""Tier 2, clustering weights: how much a client, or each of its samples, belongs to each cluster (spec §2, §3)."""

from hcfl.tiers.weighting.hard import Assigned, ByLabelDistribution, HardByLoss, HardByParameters, Single, hellinger
from hcfl.tiers.weighting.soft import FuzzyCMeans, SampleWiseEM, SoftCounts, SoftEM
from hcfl.tiers.weighting.weights import (
    Seen,
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
    "ByLabelDistribution",
    "FuzzyCMeans",
    "HardByLoss",
    "HardByParameters",
    "SampleWiseEM",
    "Seen",
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
