"""The four independent choices of which every clustered-FL method is made.

| tier | file | question |
|---|---|---|
| 1 formulation | `formulation.py` | what is the likelihood L_k of a sample under cluster k? |
| 2 weighting | `weighting.py` | how much does a client (or a sample) belong to each cluster? |
| 3 adaptation | `adaptation.py` | when and how does the number of clusters change? |
| 4 distance | `distance.py` | how far apart are two clients? |

A tier knows nothing of the other three, of files, of engines or of networks: it maps tensors to tensors.
"""

from hcfl.tiers.adaptation import (
    Adaptation,
    Decision,
    Fixed,
    SplitAndRemove,
    SplitBySpectrum,
    SplitDecision,
    SplitWhenStationary,
)
from hcfl.tiers.distance import Distance, Participants, PrototypeDistance, Prototypes, UpdateCosine
from hcfl.tiers.formulation import Conditional, Correlation, Formulation
from hcfl.tiers.weighting import (
    Assigned,
    HardByLoss,
    HardByParameters,
    SampleWiseEM,
    SettlesAfterTraining,
    Single,
    SoftEM,
    Weighting,
    Weights,
)

__all__ = [
    "Adaptation",
    "Assigned",
    "Conditional",
    "Correlation",
    "Decision",
    "Distance",
    "Fixed",
    "Formulation",
    "HardByLoss",
    "HardByParameters",
    "Participants",
    "PrototypeDistance",
    "Prototypes",
    "SampleWiseEM",
    "SettlesAfterTraining",
    "Single",
    "SoftEM",
    "SplitAndRemove",
    "SplitBySpectrum",
    "SplitDecision",
    "SplitWhenStationary",
    "UpdateCosine",
    "Weighting",
    "Weights",
]
