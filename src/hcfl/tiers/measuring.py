"""Distances as tier 3 gets them: measured, and checked, since tier 4 may be a user's own."""

import torch
from torch import Tensor

from hcfl.errors import InputError
from hcfl.tiers.distance import Distance, Participants


def measured(distance: Distance, participants: Participants) -> Tensor:
    """Return D (participants, participants) on the CPU; what is no matrix of numbers is refused."""
    found = distance.between(participants)
    count = len(participants.clients)
    name = f"method.distance = {type(distance).__name__}"
    if not isinstance(found, Tensor) or found.shape != (count, count):
        what = f"a tensor of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise InputError(f"{name}: between() returned {what}, but {count} participants need one of {(count, count)}")
    if not torch.isfinite(found).all():
        raise InputError(f"{name}: between() returned NaN or infinity")
    return found.cpu()
