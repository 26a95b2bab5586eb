"""What participants send, as tiers 3 and 4 see it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prototypes:
    """Mean features of a client's training data; with a leading axis, of several clients."""

    class_means: Tensor
    """P_c, (…, classes, features); rows of classes without samples mean nothing."""
    class_counts: Tensor
    """(…, classes): how many samples each class mean stands on; 0 masks the class."""
    mean: Tensor
    """P_lf, (…, features): over all samples, whatever their label."""

    @staticmethod
    def join(several: Sequence["Prototypes"]) -> "Prototypes":
        """Return the prototypes of several groups of clients as one."""
        return Prototypes(
            torch.cat([one.class_means for one in several]),
            torch.cat([one.class_counts for one in several]),
            torch.cat([one.mean for one in several]),
        )


@dataclass(frozen=True)
class Participants:
    """What tiers 3 and 4 may look at after aggregation; rows are this round's participants."""

    clients: tuple[int, ...]
    """Client ids: decisions name these, never positions in a sub-matrix."""
    members: Tensor
    """(participants,): the cluster (column) each one belongs to."""
    weights: Tensor
    """(participants,): ω̃ of each one for its own cluster."""
    prototypes: Prototypes | None = None
    """Of features, or, where a distance asks for them, of features' norms."""
    updates: Tensor | None = None
    """(participants, parameters): how local training changed the parameters that are each one's own cluster's: the
    head, or the whole model where every cluster has one."""
    whole_updates: Tensor | None = None
    """(participants, parameters): the same with the extractor, also where it is shared."""
    models: Tensor | None = None
    """(participants, parameters): the trained parameters themselves, where `updates` has their change."""
    signatures: Tensor | None = None
    """(participants, …): what each one sent when it first took part. A method that looks at nothing else sees all
    clients whose signature is known, absent or not."""
    sizes: Tensor | None = None
    """N_i, (participants,)."""
    unplaced: Tensor | None = None
    """(participants,): whom no decision has named so far."""
    listed: Tensor | None = None
    """(participants, clusters): who counts in which cluster, where that can be several, as in public code of CFL."""
    round: int = 0
    seed: int = 0
    """The run's, for decisions that draw."""


Statistic = Literal["prototypes", "feature norms", "updates", "whole updates", "models", "first updates", "signatures"]
"""What tiers 3 and 4 can ask for. The last two are sent once and kept: how one local epoch changed the initial model,
or what the distance itself makes of a client's data (see `Signs`)."""
