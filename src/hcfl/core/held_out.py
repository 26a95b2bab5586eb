"""What the models say of the clients' held-out samples: accuracy by client and by class, and their likelihood."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite

import torch
from torch import Tensor

from hcfl.core.state import ClientScores

LIKELIHOOD = "held-out likelihood"
"""The report of clients that measure by themselves, where a run may stop early: the log-likelihood of the received
models on every second held-out sample, summed, and how many these are."""

LEAST_LOG_LIKELIHOOD = -1e6
"""What a sample counts for at least in the report: a model may give an answer the probability 0."""


@dataclass(frozen=True)
class HeldOut:
    """Predictions of the held-out samples of all clients, one client's after another's; on the CPU."""

    clients: Tensor
    """(samples,): the client of each."""
    labels: Tensor
    """(samples,)."""
    predicted: Tensor
    """(samples,): the most probable class."""
    log_likelihood: Tensor
    """(samples,): log of the probability of the label."""
    classes: int
    scores: Tensor | None = None
    """(samples,): how good each prediction is, where it is not only right or wrong; labels are then bins."""
    mixed: Tensor | None = None
    """(samples, values): the predictions, in the form of the task."""

    @staticmethod
    def of(clients: Tensor, labels: Tensor, log_probs: Tensor) -> "HeldOut":
        """Read the predictions from the log-probabilities of all classes, (samples, classes)."""
        log_likelihood = log_probs.gather(1, labels.to(log_probs.device).unsqueeze(1))[:, 0]
        return HeldOut(clients, labels, log_probs.argmax(dim=1).cpu(), log_likelihood.cpu(), log_probs.shape[1])

    @cached_property
    def right(self) -> Tensor:
        """(samples,): whether each is predicted correctly."""
        return self.predicted == self.labels

    @property
    def each(self) -> Tensor:
        """(samples,): the score of each; of classes, 1 where it is right."""
        return self.right.double() if self.scores is None else self.scores

    @property
    def accuracy(self) -> float:
        """Val: the mean score; of classes, the share of the samples that are predicted correctly."""
        return float(self.each.mean())

    def accuracy_without(self, clients: frozenset[int]) -> float | None:
        """Val without the samples of some clients; None where there are no others."""
        others = self.each[~torch.isin(self.clients, torch.tensor(sorted(clients)))]
        return float(others.double().mean()) if len(others) else None

    @property
    def choosing(self) -> Tensor:
        """(samples,): whether each is among those that choose the round to serve: every second one."""
        return torch.arange(len(self.labels)) % 2 == 0

    @property
    def choosing_log_likelihood(self) -> float | None:
        """The mean over the samples that choose the round to serve; None where models are so wrong that it has none."""
        mean = float(self.log_likelihood[self.choosing].double().mean())
        return mean if isfinite(mean) else None

    @property
    def reporting_accuracy(self) -> float | None:
        """The accuracy on the samples that do not choose the round to serve; None where there are none."""
        others = self.each[~self.choosing]
        return float(others.mean()) if len(others) else None

    @cached_property
    def by_client(self) -> ClientScores:
        """What is measured of each client that holds out samples; of classes, how many are right."""
        ids, place = torch.unique_consecutive(self.clients, return_inverse=True)
        return ClientScores(torch.bincount(place).float(), torch.bincount(place, self.each).float(), clients=ids)

    def scores_of(self, clients: int | None) -> ClientScores:
        """Return what is measured of all clients, (clients,), or, with None, of those that were measured."""
        if clients is None:
            return self.by_client
        right, samples = self.by_client.table(clients)
        return ClientScores(samples, right)

    @property
    def worst_client(self) -> float:
        """The lowest accuracy of a client that holds out samples."""
        return float((self.by_client.right.double() / self.by_client.samples.double()).min())

    def standard_error(self, clients: int) -> float | None:
        """Return the standard error of Val where these are the samples of clients drawn from `clients` clients.

        Clients are drawn, not samples, and Val is a ratio of sums over them: with e_i = right_i − Val·samples_i of m
        clients, √((1 − m/M)·Σe_i²/(m·(m − 1))) / mean samples. None for a single client.
        """
        found = self.by_client
        drawn = len(found.samples)
        if drawn < 2:
            return 0.0 if drawn == clients else None
        off = found.right.double() - self.accuracy * found.samples
        variance = (1 - drawn / clients) * float(off.square().sum()) / (drawn * (drawn - 1))
        return float(max(variance, 0.0) ** 0.5 / float(found.samples.double().mean()))

    def confusion(self) -> Tensor:
        """Count samples by label (rows) and predicted class (columns)."""
        pairs = torch.bincount(self.labels * self.classes + self.predicted, minlength=self.classes**2)
        return pairs.view(self.classes, self.classes)

    def tally(self) -> "Tally":
        """Count samples by client, label and predicted class."""
        counts = Counter(zip(self.clients.tolist(), self.labels.tolist(), self.predicted.tolist(), strict=True))
        cells = torch.tensor(sorted(counts), dtype=torch.long).view(-1, 3)
        return Tally(cells, torch.tensor([counts[key] for key in sorted(counts)], dtype=torch.long), self.classes)


def likelihood_report(log_likelihood: Tensor) -> Tensor:
    """Return the report of a client's held-out samples, (2,), from the log-likelihood of each, (samples,)."""
    chosen = log_likelihood[::2].double().clamp_min(LEAST_LOG_LIKELIHOOD)
    return torch.stack([chosen.sum(), torch.tensor(float(len(chosen)), dtype=torch.float64)]).float()


def reported_likelihood(reports: Tensor | None) -> float | None:
    """Return the mean over all clients' reports, (clients, 2); None where no sample was measured."""
    if reports is None or not float(reports[:, 1].sum()):
        return None
    total, samples = reports.double().sum(dim=0).tolist()
    return float(total / samples)


@dataclass(frozen=True)
class Tally:
    """How many held-out samples each client has of each label that get each class predicted: those that occur."""

    cells: Tensor
    """(cells, 3): client, label and predicted class."""
    samples: Tensor
    """(cells,): how many."""
    classes: int

    @staticmethod
    def of(confusions: Mapping[int, Tensor], classes: int) -> "Tally":
        """Read it from confusion matrices (classes, classes) by client."""
        cells, samples = [torch.zeros(0, 3, dtype=torch.long)], [torch.zeros(0, dtype=torch.long)]
        for client, confusion in sorted(confusions.items()):
            where = confusion.nonzero()
            cells.append(torch.cat([torch.full((len(where), 1), client), where], dim=1))
            samples.append(confusion[tuple(where.T)])
        return Tally(torch.cat(cells), torch.cat(samples), classes)

    def confusion(self) -> Tensor:
        """Count samples by label (rows) and predicted class (columns)."""
        pairs = self.cells[:, 1] * self.classes + self.cells[:, 2]
        flat = torch.zeros(self.classes**2, dtype=torch.long).index_add(0, pairs, self.samples)
        return flat.view(self.classes, self.classes)

    @property
    def accuracy(self) -> float:
        """The share of all samples that are predicted correctly."""
        right = self.cells[:, 1] == self.cells[:, 2]
        return float(self.samples[right].sum() / self.samples.sum())

    def by_group(self, group: Tensor) -> list[tuple[int, int, int, int]]:
        """Count samples by the group of their client, label and predicted class; `group` is (clients,)."""
        counts = Counter[tuple[int, int, int]]()
        groups = group[self.cells[:, 0]].tolist()
        for number, (_, label, predicted), samples in zip(
            groups, self.cells.tolist(), self.samples.tolist(), strict=True
        ):
            counts[number, label, predicted] += samples
        return [(*key, number) for key, number in sorted(counts.items())]


@dataclass(frozen=True)
class ByClass:
    """What a confusion matrix says when every class counts the same, however many samples it has."""

    balanced_accuracy: float
    """The mean over the classes that occur of the share of their samples that are predicted correctly."""
    macro_f1: float
    """The mean of 2·precision·recall / (precision + recall) over the classes that occur or are predicted."""

    @staticmethod
    def of(confusion: Tensor) -> "ByClass":
        """Compute both from counts by label (rows) and predicted class (columns).

        >>> ByClass.of(torch.tensor([[9, 0], [1, 0]])).balanced_accuracy
        0.5
        """
        return ByClass.of_counts(class_counts(confusion))

    @staticmethod
    def of_counts(counts: Tensor) -> "ByClass":
        """Compute both from what `class_counts` returns."""
        right, labels, predicted = counts.double().unbind()
        occurs, named = labels > 0, labels + predicted > 0
        return ByClass(
            balanced_accuracy=float((right[occurs] / labels[occurs]).mean()),
            macro_f1=float((2 * right[named] / (labels + predicted)[named]).mean()),
        )


def class_counts(confusion: Tensor) -> Tensor:
    """Return how many samples of each class are right, have its label, and get it predicted, (3, classes)."""
    return torch.stack([confusion.diag(), confusion.sum(1), confusion.sum(0)])


def single_predictions(counts: Sequence[tuple[int, int, int, int]]) -> dict[int, int]:
    """Return the groups whose samples have several labels and all get the same class predicted, with this class.

    >>> single_predictions([(0, 0, 0, 27), (0, 1, 0, 1), (1, 0, 0, 5), (1, 1, 1, 5)])
    {0: 0}
    """
    labels, predicted = dict[int, set[int]](), dict[int, set[int]]()
    for group, label, guess, _ in counts:
        labels.setdefault(group, set()).add(label)
        predicted.setdefault(group, set()).add(guess)
    return {group: min(found) for group, found in predicted.items() if len(found) == 1 and len(labels[group]) > 1}
