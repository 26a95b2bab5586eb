"""A client's whole upload with noise, for methods whose server compares single clients (local differential privacy).

Everything that tells something of its data is one vector: changes of models, clipped together; weights ω̃, class counts
F as shares, and prototypes, each of them with a norm of at most 1 by what it is. So the vector has a norm of at most
clip·√kinds, every number of it gets the same noise, and each kind spends the same part of the budget. What the server
computes from it (memberships, splits) costs nothing more.
"""

from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Generator, Tensor
from torch.nn.functional import normalize

from hcfl.config import PrivacyConfig
from hcfl.core.client import placed
from hcfl.core.state import Broadcast, Update
from hcfl.methods import Method
from hcfl.models.ensemble import Ensemble, mix
from hcfl.privacy.noise import multiplier
from hcfl.privacy.sums import MODELS
from hcfl.privacy.vectors import clipped, noised
from hcfl.tiers import Prototypes
from hcfl.tiers.weighting import one_hot

FIRST_UPDATE = "first update"

NOISE_SHARE = 0.05
"""The largest part of a prototype's squared length that may be noise. Noise alone puts two prototypes at a distance
of 1, and clusters are split at a tenth of that: with more noise, all clients would seem to differ."""


@dataclass(frozen=True)
class Report:
    """What a client sends beside its models, with noise in it."""

    parts: dict[str, Tensor]
    """The shares by name, in their own units: weights are near weights again."""
    deviation: float
    """The standard deviation of the noise in them."""


def private_upload(
    method: Method, privacy: PrivacyConfig, broadcast: Broadcast, update: Update, generator: Generator
) -> tuple[Update, float]:
    """Return one client's upload as the server gets it, and the deviation of the noise in its shares.

    It is bounded, and does not tell the number of samples. Where a client has one model, its change is relative to the
    cluster that its *noised* weights name, so that the change does not tell which cluster's model it trained.
    """
    assert privacy.clip is not None
    spread = multiplier(privacy)
    assert spread is not None
    clip, shares = privacy.clip, reported_shares(method, broadcast, update)
    first = dict(zip([FIRST_UPDATE], update.signatures.values(), strict=False))
    kinds = 1 + len(shares) + len(first)
    deviation = spread * 2 * clip * sqrt(kinds)
    report = Report(noised(shares, deviation / clip, generator), deviation / clip)

    weights = _weights(method, broadcast, update, report)
    started = one_hot(weights.argmax(dim=1), weights.shape[1]) if method.weighting.hard else update.started
    base = _mixture(broadcast.ensemble, started)
    changes = noised(clipped(_changes(base, update.models), clip), deviation, generator)
    sent = noised(clipped(first, clip), deviation, generator)
    counts = report.parts.get("counts")
    upload = Update(
        clients=update.clients,
        sizes=torch.ones(1),
        models=_moved(base, changes),
        row_participants=update.row_participants,
        started=started,
        mass=started if method.weighting.hard else update.mass / update.sizes,
        weights=weights,
        counts=None if counts is None else counts.float(),
        prototypes=_prototypes(update.prototypes, report),
        signatures={client: sent[FIRST_UPDATE].float() for client in update.signatures},
        noised=True,
    )
    return upload, report.deviation


def reported_shares(method: Method, broadcast: Broadcast, update: Update) -> dict[str, Tensor]:
    """Return what a client sends beside its models, each kind with a norm of at most 1.

    A client sends no weights where the server has assigned it. Distances look at directions of prototypes only, so the
    client sends directions, each times the root of its class's share: all of them together have norm 1.
    """
    parts: dict[str, Tensor] = {}
    known = placed(method, broadcast.weights[list(update.clients)]).all()
    if len(broadcast.clusters) > 1 and not known:
        parts["weights"] = update.weights.double()
    if update.counts is not None:
        parts["counts"] = update.counts.double() / update.sizes.double()
    if update.prototypes is not None:
        found = update.prototypes
        shares = found.class_counts.double() / found.class_counts.sum()
        directions = normalize(found.class_means.double(), dim=2)
        parts["prototypes"] = directions * shares.sqrt().unsqueeze(2).to(directions)
        if not method.traits.distance.compares_classes_only:
            parts["mean"] = normalize(found.mean.double(), dim=1)
    return parts


def _weights(method: Method, broadcast: Broadcast, update: Update, report: Report) -> Tensor:
    """Return the weights that are nearest to the noised ones."""
    if "weights" not in report.parts:
        return update.weights
    sent = report.parts["weights"]
    if method.weighting.hard:
        return one_hot(sent.argmax(dim=1), sent.shape[1])
    return nearest_weights(sent).float()


def nearest_weights(rows: Tensor) -> Tensor:
    """Return the point of the simplex that is nearest to each row (Duchi et al., 2008)."""
    ordered, _ = rows.sort(dim=1, descending=True)
    excess = ordered.cumsum(dim=1) - 1
    number = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered - excess / number > 0).sum(dim=1, keepdim=True)
    return (rows - excess.gather(1, last - 1) / last).clamp_min(0)


def _prototypes(held: Prototypes | None, report: Report) -> Prototypes | None:
    """Return prototypes as the server uses them: those within the noise have count 0."""
    if held is None:
        return None
    sent = report.parts["prototypes"]
    mean = report.parts.get("mean", sent.sum(dim=1))
    shares, share = (_clear(part, report.deviation) for part in (sent, mean))
    return Prototypes(
        class_means=sent.to(held.class_means),
        class_counts=shares.float(),
        mean=torch.where(share.unsqueeze(1) > 0, mean, 0).to(held.mean),
    )


def _clear(vectors: Tensor, deviation: float) -> Tensor:
    """Estimate the squared length of vectors without their noise; 0 where the noise dominates."""
    noise = vectors.shape[-1] * deviation**2
    squares = vectors.square().sum(dim=-1)
    return torch.where(squares * NOISE_SHARE > noise, squares - noise, 0)


def _mixture(received: Ensemble, started: Tensor) -> Ensemble:
    """Return the models that each row started from, by the weights in `started` (rows, clusters)."""
    return received.map(lambda tensor: mix(started.to(tensor), tensor))


def _changes(base: Ensemble, trained: Ensemble) -> dict[str, Tensor]:
    return {
        prefix + name: getattr(trained, part)[name].double() - before.double()
        for part, prefix in MODELS.items()
        for name, before in getattr(base, part).items()
    }


def _moved(base: Ensemble, changes: dict[str, Tensor]) -> Ensemble:
    extractors, heads = (
        {name: (tensor.double() + changes[prefix + name]).to(tensor) for name, tensor in getattr(base, part).items()}
        for part, prefix in MODELS.items()
    )
    return Ensemble(extractors, heads, base.topology)


def join_uploads(uploads: list[tuple[Update, float]]) -> Update:
    """Join the uploads of all clients into one update.

    Only the sum of class counts is used, so every client gets their mean; means within the noise are raised to it,
    since a count near 0 would make its class all but impossible. Where the mean feature of any client is lost in noise,
    all mean features are set equal, so that they do not separate clients.
    """
    update = Update.join([upload for upload, _ in uploads])
    number, noise = len(uploads), sqrt(sum(deviation**2 for _, deviation in uploads)) / len(uploads)
    if update.counts is not None:
        means = update.counts.mean(dim=0).clamp_min(noise)
        update = replace(update, counts=means.expand(number, -1, -1))
    if update.prototypes is not None and not update.prototypes.mean.any(dim=1).all():
        alike = torch.ones_like(update.prototypes.mean)
        update = replace(update, prototypes=replace(update.prototypes, mean=alike))
    return update
