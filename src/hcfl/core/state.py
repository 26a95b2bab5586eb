"""State is data: what the server and the clients hold between rounds, and what they send each other.

All are frozen dataclasses of tensors and numbers. A round maps them to new ones, so that saving, resuming, sending and
testing need nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hcfl.core.cluster_log import Change
from hcfl.models.ensemble import Ensemble
from hcfl.tiers import Prototypes, Weights
from hcfl.tiers.gaussians import Gaussians, Moments, total


@dataclass(frozen=True)
class ServerState:
    """What the server knows after a round. Of absent clients it keeps only the last report, with its age."""

    round: int
    """Rounds completed."""
    ensemble: Ensemble
    clusters: tuple[int, ...]
    """Stable id of each column."""
    born: int
    """How many clusters ever existed: the next id."""
    weights: Tensor
    """ω̃ as last reported, (clients, clusters); uniform for clients that never reported."""
    members: Tensor
    """(clients,): each client's cluster as a column; −1 for clients that never took part and that no decision of
    the server has placed."""
    counts: Tensor | None
    """F as last reported, (clients, clusters, classes), where the formulation uses it; of the clients in `counted`."""
    sizes: Tensor
    """N_i as last reported, (clients,)."""
    last_seen: Tensor
    """The last round in which each client took part, (clients,); 0 for never."""
    changes: tuple[Change, ...] = ()
    """Every cluster added or removed so far, for clients that missed rounds."""
    anchor: Ensemble | None = None
    """The initial model, where clients are compared by how it changes on their data, or embed their inputs with it; the
    model that clients described their data by, where they did."""
    common: Ensemble | None = None
    """The N_i-weighted mean of all participants' models, where local training is held near it."""
    signatures: Mapping[int, Tensor] = field(default_factory=dict)
    """What each client sent when it first took part, where tiers 3 and 4 compare it."""
    gaussians: Gaussians | None = None
    """The density of the embedded inputs, where the formulation models it, from round 1 on."""
    memory: Mapping[str, Tensor] = field(default_factory=dict)
    """What tier 3 remembers from round to round, by name."""
    evidence: Tensor | None = None
    """(clients, 2): how unlike others each client's uploads were, summed over rounds, and the sum of the rounds'
    weights; where suspicious clients are put into quarantine."""

    counted: Tensor | None = None
    """Ids of the clients that rows of `counts` are of, sorted; None: all clients have a row. Of many clients only those
    have one that reported, because a table of all would be copied in every round."""
    remembered: tuple[int, ...] = ()
    """Ids of the clusters that had clients at the end of some step of time, where the data have steps."""

    def column(self, cluster: int) -> int:
        """Return the column of a cluster id."""
        return self.clusters.index(cluster)


@dataclass(frozen=True)
class ClientState:
    """What a client keeps to itself between rounds."""

    round: int
    """The last round it took part in."""
    clusters: tuple[int, ...]
    """The cluster ids that the columns of its weights stand for."""
    weights: Weights
    own: Ensemble | None = None
    """Its own model, where it keeps one."""
    velocity: Ensemble | None = None
    """The momentum of what it trained, where it keeps it."""
    noted: Mapping[str, Tensor] = field(default_factory=dict)
    """What its candidates for a personal part gained on the samples that it had set aside, by name; nothing before it
    trained on these."""


@dataclass(frozen=True)
class Broadcast:
    """What the server sends to each participant."""

    round: int
    ensemble: Ensemble
    class_shares: Tensor
    """P_k(y), (clusters, classes)."""
    clusters: tuple[int, ...]
    changes: tuple[Change, ...]
    weights: Tensor
    """(clients, clusters): a client that takes part for the first time starts from its row."""
    anchor: Ensemble | None = None
    """The initial model, for clients that take part for the first time; they keep it."""
    common: Ensemble | None = None
    probe: Ensemble | None = None
    """The model of one cluster that all participants show a change of, or describe their data by."""
    gaussians: Gaussians | None = None
    attempt: int = 0
    """The attempt at the round, from 0; those before had no quorum."""


@dataclass(frozen=True)
class Missing:
    """A sampled client whose upload does not count in a round."""

    client: int
    reason: str
    refused: bool = False
    """Whether it sent an upload that was refused; else no upload came."""
    attempt: int = 0
    """The attempt at the round, from 0."""


@dataclass(frozen=True)
class Update:
    """What participants send back, one row for each; one client's message is an update of one."""

    clients: tuple[int, ...]
    sizes: Tensor
    """N_i, (participants,)."""
    models: Ensemble
    """What they trained: heads by row; extractors by row in the full topology, by participant in the split one."""
    row_participants: Tensor
    """(rows,): position of the participant whose model it is. With soft weights, each has a model for every cluster;
    with hard ones, one."""
    started: Tensor
    """(rows, clusters): each model was trained from this mixture of the clusters' models."""
    mass: Tensor
    """(rows, clusters): how much each model counts in each cluster's average: N_i, times the participant's weight
    where it is one model that counts in several."""
    weights: Tensor
    """ω̃, (participants, clusters)."""
    objective: Tensor | None = None
    """Σ_j log Σ_k ω̃_k L_k after the E-step, (participants,); None where some did not have to look at their data."""
    counts: Tensor | None = None
    """F, (participants, clusters, classes)."""
    prototypes: Prototypes | None = None
    halves: Prototypes | None = None
    """Prototypes of the first half of the samples of each class."""
    signatures: Mapping[int, Tensor] = field(default_factory=dict)
    """By client, of the participants that take part for the first time."""
    reports: Mapping[str, Tensor] = field(default_factory=dict)
    """(participants, …), by statistic: those of `REPORTS` that were asked for."""
    moments: Moments | None = None
    """The participants' sum."""
    held_out: Tensor | None = None
    """How many of its held-out samples the received models get right, and how many there are, (participants, 2), where
    participants measure by themselves."""
    by_class: Tensor | None = None
    """Of the same samples, by class: how many are right, have this label, and get it predicted, (participants, 3,
    classes), where the task is to predict a class."""
    sealed: int | None = None
    """Bytes of all uploads where only their sum was opened: then rows are means, and no client's weights are known."""
    missing: tuple[Missing, ...] = ()
    """The sampled clients that are not among the participants."""
    noised: bool = False
    """Whether participants have put noise into all of it: then they know their weights better than the server."""

    @staticmethod
    def empty(broadcast: Broadcast) -> "Update":
        """Return an update without participants: no client answered."""
        sent, clusters = broadcast.ensemble, len(broadcast.clusters)
        extractors, heads = (
            {name: tensor[:0] for name, tensor in part.items()} for part in (sent.extractors, sent.heads)
        )
        nothing = torch.zeros(0, clusters)
        return Update(
            clients=(),
            sizes=torch.zeros(0),
            models=Ensemble(extractors, heads, sent.topology),
            row_participants=torch.zeros(0, dtype=torch.long),
            started=nothing,
            mass=nothing,
            weights=nothing,
        )

    @staticmethod
    def join(updates: Sequence["Update"]) -> "Update":
        """Put the messages of several participants together."""
        if len(updates) == 1:
            return updates[0]
        before = [0, *accumulate(len(update.clients) for update in updates)]
        objectives = [update.objective for update in updates if update.objective is not None]
        counts = [update.counts for update in updates if update.counts is not None]
        prototypes = [update.prototypes for update in updates if update.prototypes is not None]
        halves = [update.halves for update in updates if update.halves is not None]
        moments = [update.moments for update in updates if update.moments is not None]
        held_out = [update.held_out for update in updates if update.held_out is not None]
        by_class = [update.by_class for update in updates if update.by_class is not None]
        return Update(
            clients=tuple(client for update in updates for client in update.clients),
            sizes=torch.cat([update.sizes for update in updates]),
            models=Ensemble.join([update.models for update in updates]),
            row_participants=torch.cat(
                [update.row_participants + start for update, start in zip(updates, before, strict=False)]
            ),
            started=torch.cat([update.started for update in updates]),
            mass=torch.cat([update.mass for update in updates]),
            weights=torch.cat([update.weights for update in updates]),
            objective=torch.cat(objectives) if len(objectives) == len(updates) else None,
            counts=torch.cat(counts) if counts else None,
            prototypes=Prototypes.join(prototypes) if prototypes else None,
            halves=Prototypes.join(halves) if halves else None,
            signatures={client: mine for update in updates for client, mine in update.signatures.items()},
            reports={name: torch.cat([update.reports[name] for update in updates]) for name in updates[0].reports},
            moments=total(moments) if moments else None,
            held_out=torch.cat(held_out) if held_out else None,
            by_class=torch.cat(by_class) if by_class else None,
            missing=tuple(one for update in updates for one in update.missing),
            noised=all(update.noised for update in updates),
        )

    @property
    def finite(self) -> Tensor:
        """Whether a participant sent no NaN and no Inf, (participants,)."""
        shared = self.models.topology == "split"
        rows = self.weights.isfinite().all(dim=1)
        if self.objective is not None:
            rows = rows & self.objective.isfinite()
        tensors = (*self.models.extractors.values(), *self.models.heads.values())
        if get_total_norm([tensor for tensor in tensors if tensor.is_floating_point()]).isfinite():
            return rows  # nearly always so, and one number tells it
        for part, by_participant in ((self.models.extractors, shared), (self.models.heads, False)):
            # A sum is finite only if all its terms are.
            fine = [tensor.reshape(len(tensor), -1).sum(dim=1).isfinite() for tensor in part.values()]
            if fine:
                each = torch.stack(fine).all(dim=0).cpu()
                row_participants = torch.arange(len(self.clients)) if by_participant else self.row_participants
                rows = rows & ~torch.zeros_like(rows).index_put_((row_participants[~each],), torch.tensor(True))
        return rows


@dataclass(frozen=True)
class PersonalPart:
    """What one client adds to the model of its group; it stays with the client.

    The client predicts with Σ_m w_m·p_m. p_0 is the group's prediction. Then come own heads, which add
    bias + φ(x)·weight to it on the scale of the task (log-probabilities of classes, the mean of a number, the logit of
    each label), and then whole models of the client's own.
    """

    kind: str
    """none, or what has the largest weight beside the group's model: prior, head, fine-tune, proximal or alone."""
    weights: Tensor = field(default_factory=lambda: torch.ones(1))
    """(1 + heads + models,): sums to 1."""
    bias: Tensor | None = None
    """(heads, values): one value for each class or label, or one."""
    weight: Tensor | None = None
    """(heads, features, values): on the features of the client's main cluster."""
    own: Ensemble | None = None
    """Whole models."""
    variance: float | None = None
    """Of a number around the prediction, standardised, as what was set aside shows it; None: the models say it."""


@dataclass(frozen=True)
class ClientScores:
    """How many of its held-out samples each client predicts correctly, (clients,).

    Where Val is of a sample of the clients, these are the clients of the sample.
    """

    samples: Tensor
    right: Tensor
    """With the model of its group."""
    personal: Tensor | None = None
    """With its personal part."""
    kinds: tuple[str, ...] = ()
    """The kind of each client's personal part; nothing where clients do not say."""
    clients: Tensor | None = None
    """Ids of these clients; None: all of the federation's."""

    def table(self, clients: int) -> tuple[Tensor, Tensor]:
        """Return `right` and `samples` of all clients, (clients,) each; 0 where nothing was measured."""
        if self.clients is None:
            return self.right, self.samples
        empty = self.right.new_zeros(clients)
        return empty.index_copy(0, self.clients, self.right), empty.index_copy(0, self.clients, self.samples)

    @property
    def val(self) -> float | None:
        """The share of all held-out samples that the groups' models predict correctly."""
        return _share(self.right, self.samples)

    @property
    def val_personal(self) -> float | None:
        """The same with personal parts, where there are some."""
        return None if self.personal is None else _share(self.personal, self.samples)


def _share(right: Tensor, samples: Tensor) -> float | None:
    total = float(samples.sum())
    return float(right.sum()) / total if total else None


@dataclass(frozen=True)
class RunState:
    """Everything a run is between two rounds."""

    server: ServerState
    clients: Mapping[int, ClientState]
    """By id, of the clients that took part so far."""
    newcomers: tuple[Weights, ...]
    """The weights of each virtual newcomer."""
    scores: ClientScores | None = None
    """What clients measured after this round, where all of them did."""
    personal: Mapping[int, PersonalPart] = field(default_factory=dict)
    """Clients' personal parts, where they were made after this round; on Flower they stay with the clients."""

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(iter(self.server.ensemble.heads.values())).device

    def to(self, device: torch.device) -> "RunState":
        """Move models, momentum and signatures to where training needs them; weights stay on the CPU."""
        server = replace(
            self.server,
            ensemble=self.server.ensemble.to(device),
            anchor=_moved(self.server.anchor, device),
            common=_moved(self.server.common, device),
            signatures={client: sent.to(device) for client, sent in self.server.signatures.items()},
        )
        from hcfl.core.client_table import Block, ClientTable  # client_table.py imports this module

        def moved(block: Block) -> Block:
            own, velocity = (tuple(_moved(one, device) for one in each) for each in (block.own, block.velocity))
            return replace(block, own=own, velocity=velocity) if own or velocity else block

        return replace(self, server=server, clients=ClientTable.of(self.clients).map(moved))


def _moved(models: Ensemble | None, device: torch.device) -> Ensemble | None:
    return None if models is None else models.to(device)
