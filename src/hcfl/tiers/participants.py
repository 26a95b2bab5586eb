"""What the server knows of the participants of a round: the input of tiers 3 and 4."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Prototypes:
    """Mean features of a client's training data; with a leading axis of clients, those of several."""

    class_means: Tensor
    """P_c, (…, classes, features); rows of classes without samples are not to be used."""
    class_counts: Tensor
    """(…, classes): how many samples each class mean is over; 0 masks the class."""
    mean: Tensor
    """P_lf, (…, features): the mean over all samples, of all classes."""

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
    """(participants,): the column of the cluster that each client belongs to."""
    weights: Tensor
    """(participants,): each client's weight ω̃ for its own cluster."""
    prototypes: Prototypes | None = None
    """Of features, or, where a distance asks for them, of features' norms."""
    halves: Prototypes | None = None
    """Of the first half of the samples of each class."""
    updates: Tensor | None = None
    """(participants, parameters): how local training changed the parameters of each client's own cluster: its
    head in the split topology, its whole model in the full one."""
    whole_updates: Tensor | None = None
    """(participants, parameters): the same with the extractor, also where it is shared."""
    models: Tensor | None = None
    """(participants, parameters): the trained parameters themselves, where `updates` has their change."""
    signatures: Tensor | None = None
    """(participants, …): what each client sent when it first took part. Where a method needs nothing else, all clients
    with a known signature are listed, also those that are absent from this round."""
    sizes: Tensor | None = None
    """N_i, (participants,)."""
    unplaced: Tensor | None = None
    """(participants,): true for clients that no decision of tier 3 has named so far."""
    undecided: bool = False
    """Whether tier 3 has decided nothing so far: then several clusters are the groups that the user gave."""
    listed: Tensor | None = None
    """(participants, clusters): in which clusters each client counts, where that can be several (`lost_ids` of CFL)."""
    round: int = 0
    seed: int = 0
    """The run's seed, for decisions that draw random numbers."""


Statistic = Literal[
    "prototypes",
    "half prototypes",
    "feature norms",
    "updates",
    "whole updates",
    "models",
    "first updates",
    "signatures",
]
"""What tiers 3 and 4 can ask clients for. Half prototypes are prototypes, and also those of the first half of each
class's samples. A client sends the last two only when it first takes part, and the server keeps them: how one local
epoch changed the initial model, or what the distance itself computes from the client's data (see `Signs`)."""
