"""How unlike its cluster an upload is, how suspicious its client has become, and what of it still counts.

Each upload gets four scores, larger where it is more unlike the others, and each score is compared with the median of
the round, in units of the deviation from it. A client's suspicion is the mean, over its rounds, of the largest of the
four; rounds long ago count less. Above a threshold the client is in quarantine: its models count in no average that
reaches trusted clients, until its suspicion has fallen again. It still gets models, and is still put into clusters.

Medians are over all participants, also those in quarantine: less than half of a cluster cannot move them far, and a
group of honest clients that was taken for attackers would otherwise look more unlike in every round.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, log_softmax

from hcfl.core.aggregation import belongs, within
from hcfl.core.changes import Part, extractor_parts, head_parts, lengths
from hcfl.core.state import Update
from hcfl.models import Network
from hcfl.models.ensemble import Ensemble, rows
from hcfl.tiers import Prototypes

MEMORY = 0.8
"""How much the rounds before count in a client's suspicion, against one round."""

MOST = 20.0
"""The largest deviation of one round: it must not decide for long."""

NORMAL = 1.4826
"""The deviation of normal numbers, in units of their median distance to the median."""

SMALLEST = {"direction": 0.05, "norm": 0.1, "prototypes": 0.02, "gain": 0.1}
"""The deviation that each score has at least: clients that are nearly alike must not look unlike."""


@dataclass(frozen=True)
class Anomalies:
    """How unlike the others each upload of a round was, for people."""

    clients: tuple[int, ...]
    scores: Mapping[str, tuple[float, ...]]
    """Each score of each client, as a deviation from the median."""
    suspicion: tuple[float, ...]
    """Of each client, after the round."""
    quarantined: tuple[int, ...]
    """The clients whose quarantine began with this round."""
    released: tuple[int, ...]
    """The clients whose quarantine ended with this round."""

    def reason(self, client: int) -> str:
        """Return the sentence for the user, which begins with a verb: the client is its subject."""
        at = self.clients.index(client)
        each = ", ".join(f"{name} {values[at]:.3g}" for name, values in self.scores.items())
        return f"sent uploads that are on average {self.suspicion[at]:.3g} deviations unlike others' (now {each})"


@dataclass(frozen=True)
class Scores:
    """How unlike the others each upload is, (participants,); 0 where a score cannot be taken."""

    direction: Tensor
    """1 − cos between its change and the median change: of a shared extractor, or of its cluster's model."""
    norm: Tensor
    """|log| of the length of its change over the median length."""
    prototypes: Tensor
    """The largest 1 − cos between its class means and its cluster's median class means."""
    gain: Tensor
    """How much less its head lowers the loss on its cluster's median class means than others' heads do."""

    def deviations(self) -> "Scores":
        """Return the scores as distances to their median, in units of the deviation from it."""
        found = {}
        for field in fields(self):
            apart = getattr(self, field.name) - getattr(self, field.name).median()
            found[field.name] = apart / (NORMAL * apart.abs().median()).clamp_min(SMALLEST[field.name])
        return Scores(**found)

    @property
    def worst(self) -> Tensor:
        """The largest of the four, (participants,), between 0 and `MOST`."""
        return torch.stack([getattr(self, field.name) for field in fields(self)]).amax(dim=0).clamp(0, MOST)


def quarantined(update: Update, trusted: Tensor) -> Update:
    """Let the models of participants that are not trusted count nowhere, except in clusters without trusted ones."""
    update = within(update)
    inside = trusted[update.row_participants].unsqueeze(1)
    reached = (update.mass * inside).sum(dim=0) > 0
    return replace(update, sizes=update.sizes * trusted, mass=torch.where(inside | ~reached, update.mass, 0))


def scores(network: Network, received: Ensemble, update: Update, features: bool) -> Scores:
    """Score the uploads of a round; `features` says whether prototypes are of the features that heads get."""
    length = lengths(received, update, network.buffers)
    nothing, means = torch.zeros(len(length)), update.prototypes if features else None
    return Scores(
        direction=_directions(network, received, update),
        norm=(length / length.median().clamp_min(1e-12)).clamp_min(1e-6).log().abs().float(),
        prototypes=nothing if means is None else _unlike_prototypes(update, means),
        gain=nothing if means is None else _lost(network, update, means),
    )


def _clusters(update: Update) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield, for each cluster, the rows of the models of its clients, and the participants whose they are."""
    counts = (update.mass > 0) & belongs(update.weights)[update.row_participants]
    for column in range(counts.shape[1]):
        chosen = torch.nonzero(counts[:, column]).flatten()
        if len(chosen):
            yield chosen, update.row_participants[chosen]


def _directions(network: Network, received: Ensemble, update: Update) -> Tensor:
    extractors, heads = extractor_parts(received, update, network.buffers), head_parts(received, update)
    clients = torch.arange(len(update.clients))
    if received.topology == "split" and (shared := list(extractors)):
        return _from_median(shared, clients)
    own, worst = [*extractors, *heads], torch.zeros(len(clients))
    for chosen, owners in _clusters(update):
        worst[owners] = torch.maximum(worst[owners], _from_median(own, chosen))
    return worst


def _from_median(parts: Sequence[Part], chosen: Tensor) -> Tensor:
    """1 − cos of some models' changes with the median of these changes; tensor by tensor, to save memory."""
    product, mine, middle = torch.zeros(3, len(chosen), dtype=torch.float64)
    for part in parts:
        change = part.change[chosen.to(part.trained.device)]
        median = change.median(dim=0).values
        product += (change @ median).double().cpu()
        mine += change.square().sum(dim=1).double().cpu()
        middle += median.square().sum().double().cpu()
    cosine: Tensor = product / (mine * middle).sqrt().clamp_min(1e-30)
    return (1 - cosine).float()


def _median_means(means: Prototypes, members: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median class means of some participants, (classes, features), and the samples of each class."""
    counts, values = means.class_counts[members], means.class_means[members]
    held = values.masked_fill((counts == 0).unsqueeze(2), torch.nan)
    return held.nanmedian(dim=0).values.nan_to_num(), counts.sum(dim=0)


def _unlike_prototypes(update: Update, means: Prototypes) -> Tensor:
    worst = torch.zeros(len(update.clients))
    for _, owners in _clusters(update):
        median, _ = _median_means(means, owners)
        apart = 1 - cosine_similarity(means.class_means[owners], median.unsqueeze(0), dim=2)
        apart = (apart * (means.class_counts[owners] > 0)).amax(dim=1).cpu()
        worst[owners] = torch.maximum(worst[owners], apart)
    return worst


def _lost(network: Network, update: Update, means: Prototypes) -> Tensor:
    """How much less than the median of its cluster each head gains on the cluster's class means, in nats.

    A class mean is the mean of other clients' features, so it is held out, but for the client's own small part.
    """
    worst = torch.full((len(update.clients),), -torch.inf)
    for chosen, owners in _clusters(update):
        features, counts = _median_means(means, owners)
        logits = network.logits(rows(update.models.heads, chosen.tolist()), features)
        right = log_softmax(logits, dim=2).diagonal(dim1=0, dim2=2)  # (heads, classes): each class its own mean
        loss = (-(right * counts).sum(dim=1) / counts.sum()).cpu()
        worst[owners] = torch.maximum(worst[owners], loss - loss.median())
    return worst.nan_to_num(neginf=0)


@dataclass(frozen=True)
class Judged:
    """What the server makes of a round's uploads."""

    update: Update
    """The uploads as they count in averages."""
    evidence: Tensor
    """(clients, 2): what `suspicion` is made of, after the round."""
    anomalies: Anomalies


def suspicion(evidence: Tensor) -> Tensor:
    """Return the mean deviation of each client over its rounds, (clients,); 0 for clients that never took part."""
    return evidence[:, 0] / evidence[:, 1].clamp_min(1e-12)


def judge(
    network: Network, received: Ensemble, update: Update, evidence: Tensor, threshold: float, features: bool
) -> Judged:
    """Score a round's uploads, and leave out those of clients whose suspicion is above the threshold."""
    ids, before = list(update.clients), suspicion(evidence) > threshold
    deviations = scores(network, received, update, features).deviations()
    evidence = evidence.clone()
    evidence[ids] = MEMORY * evidence[ids] + torch.stack([deviations.worst, torch.ones(len(ids))], dim=1)
    suspicious = suspicion(evidence) > threshold
    return Judged(
        quarantined(update, ~suspicious[ids]),
        evidence,
        Anomalies(
            clients=update.clients,
            scores={field.name: tuple(getattr(deviations, field.name).tolist()) for field in fields(Scores)},
            suspicion=tuple(suspicion(evidence)[ids].tolist()),
            quarantined=tuple(torch.nonzero(suspicious & ~before).flatten().tolist()),
            released=tuple(torch.nonzero(before & ~suspicious).flatten().tolist()),
        ),
    )
