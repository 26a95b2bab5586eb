"""What the server knows of the participants of a round: the input of tiers 3 and 4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad


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

    def some(self, rows: Tensor) -> "Prototypes":
        """Return those of some clients, by their positions."""
        at = rows.to(self.mean.device)
        return Prototypes(self.class_means[at], self.class_counts[at], self.mean[at])

    def with_constant(self) -> "Prototypes":
        """Return the prototypes of (features, 1)."""
        return Prototypes(
            pad(self.class_means, (0, 1), value=1.0), self.class_counts, pad(self.mean, (0, 1), value=1.0)
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
    constant: bool = False
    """Whether cosines of prototypes are those of (features, 1), as the task says (`Task.constant`)."""
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
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    """(participants, …), by statistic, those of `REPORTS` that clients were asked for in this round."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """What the adaptation's last decision said that it wants to remember (`Decision.memory`)."""
    everyone: Tensor | None = None
    """(clients,): the column of each client's cluster, also of those that are absent; −1: it has none yet."""
    step: int = 0
    """The step of time, from 0."""
    round: int = 0
    seed: int = 0
    """The run's seed, for decisions that draw random numbers."""

    def some(self, rows: Tensor) -> "Participants":
        """Return some of the participants, by their positions."""

        def picked(part: Tensor | None) -> Tensor | None:
            return None if part is None else part[rows.to(part.device)]

        return replace(
            self,
            clients=tuple(self.clients[row] for row in rows.tolist()),
            members=self.members[rows],
            weights=self.weights[rows.to(self.weights.device)],
            prototypes=None if self.prototypes is None else self.prototypes.some(rows),
            halves=None if self.halves is None else self.halves.some(rows),
            updates=picked(self.updates),
            whole_updates=picked(self.whole_updates),
            models=picked(self.models),
            signatures=picked(self.signatures),
            sizes=picked(self.sizes),
            unplaced=picked(self.unplaced),
            listed=picked(self.listed),
            reports={name: sent[rows.to(sent.device)] for name, sent in self.reports.items()},
        )


Statistic = Literal[
    "prototypes",
    "half prototypes",
    "feature norms",
    "updates",
    "whole updates",
    "models",
    "first updates",
    "signatures",
    "losses",
    "training losses",
    "probes",
    "descriptors",
]
"""What tiers 3 and 4 can ask clients for. Half prototypes are prototypes, and also those of the first half of each
class's samples. First updates and signatures are sent only when a client first takes part, and the server keeps them:
how one local epoch changed the initial model, or what the distance itself computes from the client's data (see
`Signs`). The last four are `REPORTS`."""

REPORTS: tuple[Statistic, ...] = ("losses", "training losses", "probes", "descriptors")
"""Statistics that are one tensor for each participant: its mean loss on every cluster's model; the mean loss of each
epoch of its local training; how one local epoch changes the model of one cluster, the same for all participants; means
and standard deviations of its features, of all samples and of each class."""


def probed(round_: int, every: int, clusters: int) -> int:
    """Return the column of the cluster whose model is probed in a round, where one is every so many rounds."""
    return (round_ - 1) // every % clusters
