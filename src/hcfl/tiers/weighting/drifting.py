"""Weights of clients that change over time: they forget, and a change of the client's data reopens them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.weighting.soft import SampleWiseEM
from hcfl.tiers.weighting.weights import EStepInputs, Weights

FLOOR = 1e-6
"""Evidence against a cluster counts up to this weight: a weight of 0 could never grow again."""


@dataclass(frozen=True)
class ForgettingEM:
    """Sample-wise EM (eqs. (3)-(5)) whose evidence fades when new data come, and is dropped when they are different.

    E-steps multiply likelihoods, so log ω̃ is the evidence so far. At the beginning of a step it counts `1 − forget`
    times: ω̃ becomes ω̃^(1−forget), normalised. A client whose losses on its new samples are larger than on the samples
    it held out in the step before, by a test at the level `false_alarms`, starts from uniform weights. Within a step,
    and in runs without steps, this is SampleWiseEM.
    """

    mu: float
    forget: float = 0.5
    false_alarms: float = 0.01
    hard: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _ = self.within_step  # checks mu
        if not 0 <= self.forget <= 1:
            raise InputError(f"forget = {self.forget}: must lie between 0 and 1")
        if not 0 <= self.false_alarms < 1:
            raise InputError(f"false_alarms = {self.false_alarms}: must be at least 0 and below 1")

    @property
    def within_step(self) -> SampleWiseEM:
        """The weights as long as the data stay the same."""
        return SampleWiseEM(self.mu)

    def start(self, client: Tensor, segments: Segments) -> Weights:
        """Take the server's row for a client and for each of its samples."""
        return self.within_step.start(client, segments)

    def e_step(self, weights: Weights, inputs: EStepInputs) -> tuple[Weights, Tensor]:
        """One EM step, all terms from the weights at the start of the round."""
        return self.within_step.e_step(weights, inputs)

    def newcomer(self, weights: Tensor, inputs: EStepInputs) -> Tensor:
        """One client-wise EM step."""
        return self.within_step.newcomer(weights, inputs)

    def renewed(self, client: Tensor, p_values: Tensor) -> Tensor:
        """Return ω̃ (clients, clusters) for new data, from the p-values of a change (clients,)."""
        kept = client.clamp_min(FLOOR) ** (1 - self.forget)
        kept = kept / kept.sum(dim=1, keepdim=True)
        changed = (p_values < self.false_alarms).unsqueeze(1)
        return torch.where(changed, 1 / client.shape[1], kept)
