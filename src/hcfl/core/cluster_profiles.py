"""What clusters' inputs look like, so that a new client without labels can find its cluster.

Made once, at the end of a run, from one more pass over the clients' training data; only sums over all members of a
cluster stay. Clusters that differ only in what labels mean look alike, and no rule can tell them apart without labels.
So the rule is tried on the federation's own clients, and how often it was right stays, too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.core.evaluation import FRESH_STEPS
from hcfl.core.server import shares
from hcfl.core.state import ServerState
from hcfl.data import Federation
from hcfl.methods import Method
from hcfl.models import Network
from hcfl.models.ensemble import embed, outputs_of
from hcfl.models.inputs import Scaled
from hcfl.tiers import EStepInputs, Prototypes
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.descriptors import descriptors, unlabelled
from hcfl.tiers.weighting import one_hot, uniform

VARIANCE_FLOOR = 0.01
"""Of the mean variance: a feature that never moved in the federation must not decide alone."""


@dataclass(frozen=True)
class Profiles:
    """The clusters' prototypes, and how well clusters are told apart without labels."""

    prototypes: Prototypes
    """Of all members' training data, (clusters, …), in the feature space of each cluster's extractor."""
    variance: Tensor | None
    """(features,): how far features lie from their cluster's class mean, where all clusters share the space."""
    confusion: Tensor
    """(clusters, clusters): how many members of each cluster (rows) the rule puts where (columns). Clients are compared
    with prototypes of the others' data; one that is alone in its cluster, with its held-out samples."""

    def log_density(self, features: Tensor) -> Tensor | None:
        """Log p_k(z), (samples, clusters), where all clusters share the feature space."""
        return None if self.variance is None else log_density(self.prototypes, self.variance, features)


def log_density(prototypes: Prototypes, variance: Tensor, features: Tensor) -> Tensor:
    """Log Σ_c P_k(c)·N(z; P_c,k, S), (samples, clusters), without the constant that is the same for all clusters.

    S is diagonal and the same everywhere: clusters differ by where their classes lie, and by how common these are.
    """
    means, counts = prototypes.class_means, prototypes.class_counts
    log_shares = (counts / counts.sum(dim=1, keepdim=True).clamp_min(1)).log()
    scaled, centres = features / variance.sqrt(), (means / variance.sqrt()).flatten(0, 1)
    squares = torch.cdist(scaled, centres).square()
    return torch.logsumexp(log_shares - squares.view(-1, *counts.shape) / 2, dim=2)


def expected_log_likelihood(method: Method, log_probs: Tensor, class_shares: Tensor) -> Tensor:
    """Σ_c p_k(c|x)·log L_k(x, c), (samples, clusters): what each cluster expects of its own prediction.

    The surer a cluster is, the larger; for the correlation formulation, beyond what its class shares say.
    """
    samples, _, classes = log_probs.shape
    parts = [
        log_probs[:, :, label].exp()
        * method.formulation.log_likelihood(
            log_probs[:, :, label], torch.full((samples,), label), class_shares, log_density=None
        )
        for label in range(classes)
    ]
    return torch.stack(parts).sum(dim=0)


def weights_without_labels(method: Method, evidence: Tensor, log_probs: Tensor, class_shares: Tensor) -> Tensor:
    """Return the weights, (clusters,), that a fresh newcomer finds when evidence stands in for log L_k."""
    segments, clusters = Segments((len(evidence),)), evidence.shape[1]
    predicted_mix = log_probs.exp().mean(dim=(0, 1)).unsqueeze(0)
    seen = EStepInputs(evidence, segments, predicted_mix, class_shares)
    weights = uniform(clusters).unsqueeze(0)
    for _ in range(FRESH_STEPS):
        weights = method.weighting.newcomer(weights, seen)
    return weights[0]


def described_evidence(
    network: Network, state: ServerState, inputs: Scaled, without: int | None = None
) -> Tensor | None:
    """−W² of inputs' descriptor and each cluster's mean one, (samples, clusters), where clients described their data.

    All samples have the same evidence; a cluster none of whose members did has −∞. `without` leaves one client out.
    """
    if "unlabelled" not in state.memory or state.anchor is None:
        return None
    members = state.members[state.memory["clients"]].clone()
    members[state.memory["clients"] == (-1 if without is None else without)] = -1
    inside = (torch.arange(len(state.clusters)).unsqueeze(1) == members).float()
    centres = inside @ state.memory["unlabelled"] / inside.sum(dim=1, keepdim=True)
    features = embed(network, state.anchor.extractor(0), inputs).cpu()
    mine = descriptors(features, torch.zeros(len(features), dtype=torch.long), 1, Segments((len(features),)))
    evidence = -(unlabelled(mine) - centres).square().sum(dim=1).nan_to_num(nan=torch.inf)
    return evidence.expand(len(features), -1)


def measure(federation: Federation, network: Network, method: Method, state: ServerState) -> Profiles | None:
    """Profile the clusters of a run that ended; nothing where the data are elsewhere."""
    if not len(federation.x):
        return None
    clients = [client for client, column in enumerate(state.members.tolist()) if column >= 0]
    features = {client: _own_features(federation, network, state, client) for client in clients}
    sums, counts, variance = _sums(federation, state, features)
    shared, class_shares = state.ensemble.topology == "split", shares(method, state, federation.classes)
    confusion = torch.zeros(len(state.clusters), len(state.clusters), dtype=torch.long)
    for client in clients:
        column = int(state.members[client])
        alone = int((state.members == column).sum()) < 2
        held_out = _held_out(federation, client)
        if not len(held_out) and (alone or not shared):
            continue
        described = described_evidence(network, state, held_out, None if alone else client) if len(held_out) else None
        if described is not None or not shared:
            log_probs = _bin_log_probs(network, outputs_of(network, state.ensemble, held_out))
            evidence = expected_log_likelihood(method, log_probs, class_shares) if described is None else described
        else:
            seen = embed(network, state.ensemble.extractor(0), held_out).cpu() if alone else features[client]
            compared = _prototypes(sums, counts)
            if not alone:
                mine, number = _of_client(federation, features[client], client)
                own = one_hot(column, len(state.clusters))
                compared = _prototypes(sums - own.view(-1, 1, 1) * mine, counts - own.unsqueeze(1) * number)
            log_probs, evidence = _log_probs(network, state, seen), log_density(compared, variance, seen)
        confusion[column, weights_without_labels(method, evidence, log_probs, class_shares).argmax()] += 1
    return Profiles(_prototypes(sums, counts), variance if shared else None, confusion)


def _log_probs(network: Network, state: ServerState, features: Tensor) -> Tensor:
    """Return log p_k(·|x), (samples, clusters, classes), from shared features that are known already."""
    heads = state.ensemble.heads
    with torch.no_grad():
        logits = network.logits(heads, features.to(next(iter(heads.values())).device))
    return _bin_log_probs(network, logits)


def _bin_log_probs(network: Network, outputs: Tensor) -> Tensor:
    return network.task.bin_log_probs(network.task.distribution(outputs)).cpu()


def _held_out(federation: Federation, client: int) -> Scaled:
    """Return a client's held-out inputs."""
    return federation.inputs(federation.val[client])


def _own_features(federation: Federation, network: Network, state: ServerState, client: int) -> Tensor:
    """Return a client's training data as its own cluster's extractor sees them."""
    data = federation.local_data([client])
    return embed(network, state.ensemble.extractor(int(state.members[client])), data.inputs).cpu()


def _of_client(federation: Federation, features: Tensor, client: int) -> tuple[Tensor, Tensor]:
    labels = federation.y[federation.train[client]]
    sums, counts = Segments((len(labels),)).sums_by_class(features, labels, federation.classes)
    return sums[0], counts[0]


def _sums(federation: Federation, state: ServerState, features: dict[int, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Sum features by cluster and class, (clusters, classes, features), with counts and the variance within."""
    width = next(iter(features.values())).shape[1]
    sums = torch.zeros(len(state.clusters), federation.classes, width)
    counts, squares = torch.zeros(sums.shape[:2]), torch.zeros(width, dtype=torch.float64)
    for client, mine in features.items():
        column = int(state.members[client])
        added, number = _of_client(federation, mine, client)
        sums[column] += added
        counts[column] += number
        squares += mine.double().square().sum(dim=0)
    means = _prototypes(sums, counts).class_means.double()
    within = squares - (counts.double().unsqueeze(2) * means.square()).sum(dim=(0, 1))
    variance = (within / (counts.sum() - (counts > 0).sum()).clamp_min(1)).clamp_min(0)
    floor = max(VARIANCE_FLOOR * float(variance.mean()), torch.finfo(torch.float32).tiny)
    return sums, counts, variance.clamp_min(floor).float()


def _prototypes(sums: Tensor, counts: Tensor) -> Prototypes:
    return Prototypes(
        class_means=sums / counts.clamp_min(1).unsqueeze(2),
        class_counts=counts,
        mean=sums.sum(dim=1) / counts.sum(dim=1, keepdim=True).clamp_min(1),
    )
