"""Assigns a new client, which never trained, to clusters: with its labels, by prototypes, or by confidence."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, pad

from hcfl.core.cluster_profiles import described_evidence, expected_log_likelihood, weights_without_labels
from hcfl.core.evaluation import FRESH_STEPS, newcomer_step
from hcfl.core.predictions import log_densities
from hcfl.core.server import shares
from hcfl.data import Newcomer
from hcfl.data.answers import Answers
from hcfl.methods import Method
from hcfl.models.ensemble import embed, rows
from hcfl.models.inputs import Scaled
from hcfl.models.tasks import Task
from hcfl.runs.run import Run
from hcfl.tiers import Weights
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.distance import prototypes
from hcfl.tiers.gaussians import mixture_log_density
from hcfl.tiers.weighting import uniform

Statistic = Literal["labels", "descriptors", "prototypes", "confidence"]
"""What decided: labelled samples under each cluster's model; how near the moments of unlabelled samples' features are
to those of the clusters' members, where these sent theirs; where samples lie among the clusters' prototypes; or, where
there are none to compare with, how sure each cluster is of its predictions."""

FOLDS = 10
"""Folds of the cross-validation: accuracy on each tenth of the samples, with weights from the other nine."""

SURE = 0.8
"""An assignment without labels is doubtful if fewer of the federation's own clients would be right there; by the rule
of succession, (right + 1) / (put there + 2), since a few clients prove little."""


@dataclass(frozen=True)
class ClusterEvidence:
    """How well one cluster fits a new client."""

    cluster: int
    weight: float
    """ω̃: how much of the cluster's model the newcomer should use."""
    evidence: float
    """Mean over samples: log L_k with labels; the log density of the features by prototypes; by confidence, what the
    cluster expects log L_k of its own predictions to be. Only differences between clusters mean something."""
    confidence: float
    """Mean probability of the class that the cluster predicts."""
    prototype_distance: float | None
    """1 − cos of prototypes: with labels the largest over the classes that both hold, without of the mean features."""
    accuracy: float | None
    """Of the cluster's model alone, where there are labels."""


@dataclass(frozen=True)
class Assignment:
    """The clusters of a new client."""

    cluster: int
    """The cluster with the largest weight."""
    clusters: tuple[ClusterEvidence, ...]
    evidence: Statistic
    samples: int
    accuracy: float | None
    """With the weights found, where there are labels to measure it; each tenth with the weights of the other nine."""
    right: int | None
    """Without labels: how many of the run's own clients that this rule assigns to the cluster belong to it, …"""
    put_here: int | None
    """… and how many it assigns to the cluster; None where that was not measured."""
    components: Tensor | None = None
    """How the newcomer mixes the Gaussians of its inputs, where the method models them."""

    @property
    def weights(self) -> dict[int, float]:
        """ω̃ by cluster id."""
        return {each.cluster: each.weight for each in self.clusters}

    @property
    def doubtful(self) -> bool:
        """Whether the evidence cannot tell this cluster from others."""
        if self.evidence == "labels" or len(self.clusters) == 1:
            return False
        return self.right is None or self.put_here is None or self.right + 1 < SURE * (self.put_here + 2)

    @property
    def note(self) -> str:
        """What one should know about it, in a sentence; empty if nothing."""
        if self.evidence == "labels" or len(self.clusters) == 1:
            return ""
        if not self.put_here:
            measured = "how often this is right is not known"
        else:
            measured = f"{self.right} of the {self.put_here} own clients that the same evidence puts here belong here"
        if not self.doubtful:
            return f"Without labels, by {self.evidence}: {measured}."
        return (
            f"A guess, without labels, by {self.evidence}: {measured}. "
            "Clusters that differ only in what labels mean cannot be told apart without labels."
        )


def assign(run: Run, x: Tensor, given: Answers | None, unlabelled: bool = False) -> Assignment:
    """Find a newcomer's clusters from raw inputs and, unless `unlabelled`, from their labels."""
    server, method, profiles, task = run.served.server, run.method, run.profiles, run.network.task
    features, outputs = _look(run, x)
    distribution = task.distribution(outputs)
    log_probs = task.bin_log_probs(distribution)
    scaling = run.federation.scaling
    densities = log_densities(run.network, server, Scaled(x.to(scaling.mean.device), scaling))
    class_shares = shares(method, server, run.federation.classes)
    labels = answers = None
    if given is not None:
        labels = torch.from_numpy(given.bins)
        answers = labels if given.targets is None else torch.from_numpy(given.targets)
    seen = _Samples(task, outputs, densities, class_shares, torch.arange(len(x)), labels, answers)
    kind: Statistic = "labels"
    if labels is not None and not unlabelled:
        weights, accuracy = seen.find(method), seen.cross_fitted(method)
        evidence = seen.log_likelihood(method, weights)
    else:
        kind, evidence = _unlabelled_evidence(run, x, features[0], log_probs, class_shares)
        found = weights_without_labels(method, evidence, log_probs, class_shares)
        weights = Weights(found.unsqueeze(0), components=method.uniform_components(len(server.clusters)))
        accuracy = None if answers is None else float(seen.scores(weights).mean())
    distances = _prototype_distances(run, features, labels if kind == "labels" else None)
    alone = None if answers is None else _alone(task, distribution, answers)
    column = int(weights.client[0].argmax())
    here = None if profiles is None or kind == "labels" else profiles.confusion[:, column]
    return Assignment(
        cluster=server.clusters[column],
        clusters=tuple(
            ClusterEvidence(
                cluster=cluster,
                weight=float(weights.client[0, k]),
                evidence=float(evidence[:, k].mean()),
                confidence=float(log_probs[:, k].exp().amax(dim=1).mean()),
                prototype_distance=distances[k],
                accuracy=None if alone is None else alone[k],
            )
            for k, cluster in enumerate(server.clusters)
        ),
        evidence=kind,
        samples=len(x),
        accuracy=accuracy,
        right=None if here is None else int(here[column]),
        put_here=None if here is None else int(here.sum()),
        components=weights.components,
    )


def _unlabelled_evidence(
    run: Run, x: Tensor, features: Tensor, log_probs: Tensor, class_shares: Tensor
) -> tuple[Statistic, Tensor]:
    """Return what decides without labels, and how well each cluster fits each sample, (samples, clusters)."""
    scaling = run.federation.scaling
    described = described_evidence(run.network, run.served.server, Scaled(x.to(scaling.mean.device), scaling))
    if described is not None:
        return "descriptors", described
    density = None if run.profiles is None else run.profiles.log_density(features)
    if density is not None:
        return "prototypes", density
    return "confidence", expected_log_likelihood(run.method, log_probs, class_shares)


def _alone(task: Task, distribution: Tensor, answers: Tensor) -> list[float]:
    """Return the score of each cluster's model alone."""
    certain = distribution.new_ones(len(distribution), 1)
    each = (task.mix(distribution[:, [k]], certain) for k in range(distribution.shape[1]))
    return [float(task.score(mixed, answers).mean()) for mixed in each]


@dataclass(frozen=True)
class _Samples:
    """Some of a newcomer's samples as the clusters see them."""

    task: Task
    outputs: Tensor
    """(all samples, clusters, values)."""
    densities: Tensor | None
    """log N_a(z), (all samples, Gaussians), where inputs are modelled."""
    class_shares: Tensor
    rows: Tensor
    """Which samples."""
    labels: Tensor | None = None
    """Classes or bins of all samples."""
    answers: Tensor | None = None

    def log_prob(self) -> Tensor:
        """Return log p_k(y|x), (samples, clusters)."""
        assert self.answers is not None
        return self.task.log_likelihood(self.outputs[self.rows], self.answers[self.rows])

    def find(self, method: Method) -> Weights:
        """Return the weights of these samples with their labels: 20 E-steps from uniform, or the lowest loss."""
        assert self.labels is not None
        labels, clusters, log_prob = self.labels[self.rows], self.outputs.shape[1], self.log_prob()
        newcomer = Newcomer("newcomer", self.rows, labels, self.rows[:0], labels[:0])
        weights = Weights(uniform(clusters).unsqueeze(0), components=method.uniform_components(clusters))
        for _ in range(FRESH_STEPS):
            weights = newcomer_step(method, newcomer, log_prob, self.densities, self.class_shares, weights)
        return weights

    def log_likelihood(self, method: Method, weights: Weights) -> Tensor:
        """Return log L_k, (samples, clusters)."""
        assert self.labels is not None
        density, labels = self._log_density(weights), self.labels[self.rows]
        return method.formulation.log_likelihood(self.log_prob(), labels, self.class_shares, density)

    def scores(self, weights: Weights) -> Tensor:
        """Return how good the prediction of each sample is; of classes, whether it is right."""
        assert self.answers is not None
        each, density = weights.client.log().expand(len(self.rows), -1), self._log_density(weights)
        each = torch.softmax(each if density is None else each + density, dim=1)
        mixed = self.task.mix(self.task.distribution(self.outputs[self.rows]), each)
        return self.task.score(mixed, self.answers[self.rows])

    def cross_fitted(self, method: Method) -> float | None:
        """Return the score on each tenth of the samples with the weights that the others find."""
        if len(self.rows) < 2:
            return None
        fold, scores = torch.arange(len(self.rows)) % FOLDS, torch.zeros(len(self.rows), dtype=torch.float64)
        for number in range(min(FOLDS, len(self.rows))):
            others, held_out = fold != number, fold == number
            weights = replace(self, rows=self.rows[others]).find(method)
            scores[held_out] = replace(self, rows=self.rows[held_out]).scores(weights)
        return float(scores.mean())

    def _log_density(self, weights: Weights) -> Tensor | None:
        if self.densities is None or weights.components is None:
            return None
        return mixture_log_density(weights.components, self.densities[self.rows], Segments((len(self.rows),)))


def _look(run: Run, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return features as each cluster's extractor sees them, and outputs, (samples, clusters, values)."""
    ensemble, scaling = run.served.server.ensemble, run.federation.scaling
    scaled = Scaled(x.to(scaling.mean.device), scaling)
    extractors = 1 if ensemble.topology == "split" else ensemble.clusters
    features = [embed(run.network, ensemble.extractor(k), scaled) for k in range(extractors)]
    with torch.no_grad():
        if extractors == 1:
            logits = run.network.logits(ensemble.heads, features[0])
        else:
            heads = (rows(ensemble.heads, [k]) for k in range(extractors))
            logits = torch.cat([run.network.logits(*each) for each in zip(heads, features, strict=True)], dim=1)
    each_cluster = features * ensemble.clusters if extractors == 1 else features
    return [part.cpu() for part in each_cluster], logits.cpu()


def _prototype_distances(run: Run, features: list[Tensor], labels: Tensor | None) -> list[float | None]:
    """1 − cos to each cluster's prototypes; None where there is nothing to compare."""
    if run.profiles is None:
        return [None] * len(features)
    theirs, classes = run.profiles.prototypes, run.federation.classes
    if run.network.task.constant:
        theirs, features = theirs.with_constant(), [pad(seen, (0, 1), value=1.0) for seen in features]
    distances: list[float | None] = []
    for k, seen in enumerate(features):
        if labels is None:
            shared, pair = theirs.class_counts[k].sum() > 0, (seen.mean(dim=0), theirs.mean[k])
        else:
            mine = prototypes(seen, labels, classes, Segments((len(labels),)))
            held = (mine.class_counts[0] > 0) & (theirs.class_counts[k] > 0)
            shared, pair = held.any(), (mine.class_means[0, held], theirs.class_means[k, held])
        distances.append(float((1 - cosine_similarity(*pair, dim=-1)).max()) if shared else None)
    return distances
