"""Tier 3, adaptation: when and how the number of clusters changes."""

from hcfl.tiers.adaptation.cohorts import GrowingCohorts
from hcfl.tiers.adaptation.contradiction import SplitOnContradiction, principal_halves
from hcfl.tiers.adaptation.decision import (
    Adaptation,
    Block,
    Decision,
    Fixed,
    MergeDecision,
    MoveDecision,
    SplitDecision,
    cluster_blocks,
)
from hcfl.tiers.adaptation.density import DensityOnce
from hcfl.tiers.adaptation.gain import SplitOnGain
from hcfl.tiers.adaptation.group import DecomposedCosineGroups, HierarchicalOnce, KMeansOnce, WeightedKMeans
from hcfl.tiers.adaptation.interactions import SplitByInteractions
from hcfl.tiers.adaptation.loss_jump import LossJump
from hcfl.tiers.adaptation.loss_vectors import LossVectorGroups
from hcfl.tiers.adaptation.merge import MergeSimilar
from hcfl.tiers.adaptation.partition import SpectralPartition
from hcfl.tiers.adaptation.real_drift import RealDriftGroups
from hcfl.tiers.adaptation.split import (
    SplitAndRemove,
    SplitBySpectrum,
    SplitWhenStationary,
    complete_linkage_halves,
    two_means_halves,
)

__all__ = [
    "Adaptation",
    "Block",
    "Decision",
    "DecomposedCosineGroups",
    "DensityOnce",
    "Fixed",
    "GrowingCohorts",
    "HierarchicalOnce",
    "KMeansOnce",
    "LossJump",
    "LossVectorGroups",
    "MergeDecision",
    "MergeSimilar",
    "MoveDecision",
    "RealDriftGroups",
    "SpectralPartition",
    "SplitAndRemove",
    "SplitByInteractions",
    "SplitBySpectrum",
    "SplitDecision",
    "SplitOnContradiction",
    "SplitOnGain",
    "SplitWhenStationary",
    "WeightedKMeans",
    "cluster_blocks",
    "complete_linkage_halves",
    "principal_halves",
    "two_means_halves",
]
