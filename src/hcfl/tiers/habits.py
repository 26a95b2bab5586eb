"""Do clients have habits, which are other answers to much the same inputs? Our own, HCFL++.

A class can be more common with one client than with another for two reasons.

- *Label shift*: its inputs are others, and the classes with them. A model that sees the inputs sees the classes, and
  groups by class frequencies would only take classes away from heads. This is why FedRC divides by P_k(y).
- *Habits*: people answer the same questions in their own way, households buy their own brands. The inputs do not say
  who answers. Only the group tells it, and to divide by P_k(y) would hide the groups.

The two are told apart by what tells more of a label, in log-likelihood per sample.

- **Group** (`gain_by_frequencies`): what the class frequencies of two groups tell beyond those of all.
- **Inputs** (`told_by_inputs`): what the inputs tell beyond the class frequencies of the client's cluster, by linear
  discriminant analysis.

Both come from other clients than the one that is looked at. The grouping comes from one half of everyone's samples, and
the likelihood is that of the other half; both ways count. The halves that clients send will not do here: each has half
of the samples of every class, so that one is as common in both, and what is chance in one half repeats in the other.
The server deals the counted samples anew, at random.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hcfl.tiers.cuts import principal_cut
from hcfl.tiers.head_gain import (
    CHUNK,
    CLIENT,
    PRIOR,
    STEPS,
    Gain,
    draws,
    halved,
    halves_of,
    principal_axes,
    within_classes,
)
from hcfl.tiers.participants import Prototypes

HABITS = "habits"
"""By this name the server remembers that habits keep clusters apart."""

INPUTS = "told by inputs"
"""By this name the server remembers what inputs told of a label."""


@dataclass(frozen=True)
class Habits:
    """What the server knows of clients' answers: how often they give each, and how much inputs tell of them."""

    halves: Tensor
    """The class counts of both halves of their samples (`random_halves`), (2, clients, classes)."""
    inputs: float
    """What inputs tell of a label (`told_by_inputs`), the most that was seen so far."""
    known: bool
    """Whether habits keep two clusters apart already."""

    @classmethod
    def of(cls, whole: Prototypes, first: Prototypes, members: Tensor, memory: Mapping[str, Tensor]) -> "Habits":
        """Look at all participants.

        What inputs once told counts in later rounds: where clients hold few classes each, local training can spoil the
        features of a young φ for some rounds, and label shift would look like habits.
        """
        told = float(memory[INPUTS]) if INPUTS in memory else 0.0
        return cls(
            random_halves(whole.class_counts), max(told, told_by_inputs(whole, first, members)), HABITS in memory
        )

    def remembered(self, apart: bool) -> Mapping[str, Tensor]:
        """Return the server's memory: what inputs told, and whether habits keep two clusters apart."""
        told = {INPUTS: torch.tensor(self.inputs)}
        return {**told, HABITS: torch.tensor(1.0)} if apart else told

    def cut(self, rows: Tensor) -> Tensor:
        """Cut some clients in two by how common classes are, (clients,)."""
        return by_frequencies(self.halves[:, rows].sum(dim=0))

    def gain(self, rows: Tensor, propose: Callable[[Tensor], Tensor] | None = None) -> Gain:
        """Return what some clients gain by the class frequencies of two groups."""
        return gain_by_frequencies(self.halves[:, rows], propose or by_frequencies)

    def tell_more(self, gain: Gain) -> bool:
        """Whether two groups tell more of a label than inputs do."""
        return float(gain.each.mean()) > self.inputs


def random_halves(counts: Tensor) -> Tensor:
    """Deal each client's samples to two halves at random, the same in all runs: class counts (2, clients, classes).

    From class counts (clients, classes). Of an odd number of samples, the second half has one more.

    >>> random_halves(torch.tensor([[0.0, 5.0, 0.0], [2.0, 0.0, 0.0]])).tolist()
    [[[0.0, 2.0, 0.0], [1.0, 0.0, 0.0]], [[0.0, 3.0, 0.0], [1.0, 0.0, 0.0]]]
    """
    generator, whole = np.random.default_rng(0), counts.long().cpu().numpy()
    first = [generator.multivariate_hypergeometric(mine, mine.sum() // 2, method="marginals") for mine in whole]
    return torch.from_numpy(np.stack([first, whole - first])).double()


def frequencies(counts: Tensor, groups: Tensor) -> Tensor:
    """How common classes are with the other clients of each group, (clients, groups, classes).

    From class counts (clients, classes) and memberships (groups, clients). A client counts for at most `CLIENT`
    samples. The frequencies among all other clients count for `PRIOR` samples in each group.
    """
    counted, inside = counts / (1 + counts.sum(dim=1, keepdim=True) / CLIENT), groups.to(counts)
    theirs = inside @ counted - inside.T.unsqueeze(2) * counted.unsqueeze(1)
    others = counted.sum(dim=0) - counted + 1 / counts.shape[1]  # no class is impossible
    found = theirs.clamp_min(0) + PRIOR * (others / others.sum(dim=1, keepdim=True)).unsqueeze(1)
    return found / found.sum(dim=2, keepdim=True)


def by_frequencies(counts: Tensor) -> Tensor:
    """Cut clients in two by how common classes are, (clients,), and let them choose the better of both parts."""
    usual = (counts.sum(dim=0) + 1) / (counts.sum() + counts.shape[1])
    roots = ((counts + usual) / (counts.sum(dim=1, keepdim=True) + 1)).sqrt()
    second = principal_cut(torch.cdist(roots, roots))  # Hellinger
    for _ in range(STEPS):
        scores = _log_likelihood(frequencies(counts, halved(second)), counts)
        chosen = scores[:, 1] > scores[:, 0]
        if min(int(chosen.sum()), int((~chosen).sum())) < 2 or bool((chosen == second).all()):
            break
        second = chosen
    return second


def gain_by_frequencies(halves: Tensor, propose: Callable[[Tensor], Tensor]) -> Gain:
    """Return what clients gain by the class frequencies of two groups, with no inputs.

    From the class counts of both halves of their samples, (2, clients, classes), and a way to cut clients in two.
    """
    found, losses, sums = [], [], []
    for half, unseen in zip(halves, halves.flip(0), strict=True):
        cut = propose(half)
        groups = torch.cat([halved(cut), torch.ones_like(cut).unsqueeze(0)])
        scores = _log_likelihood(frequencies(halves.sum(dim=0), groups), unseen)
        found.append(scores.gather(1, cut.long().unsqueeze(1))[:, 0] - scores[:, 2])
        losses.append(-float(scores[:, 2].mean()))
        sums.append(float(found[-1] @ unseen.sum(dim=1)))
    return Gain(torch.stack(found).mean(dim=0), sum(losses) / 2, sum(sums) / 2)


def _log_likelihood(shares: Tensor, counts: Tensor) -> Tensor:
    """E log p(y) of each client's samples by the class frequencies of each group, (clients, groups)."""
    return (shares.log() * counts.unsqueeze(1)).sum(dim=2) / counts.sum(dim=1, keepdim=True).clamp_min(1)


def told_by_inputs(whole: Prototypes, first: Prototypes, members: Tensor) -> float:
    """E log p(y|x) − E log p(y): what inputs tell of the label, per sample, with one head for each cluster.

    A head is linear discriminant analysis. Class c is a Gaussian around the class mean of the cluster's other clients,
    and its spread is that of samples within clients and that of class means between clients. Where the heads tell less
    than class frequencies do, inputs tell nothing.
    """
    means, counts = halves_of(whole, first)
    axes, total = principal_axes(means, counts), counts.sum(dim=0)
    mine = (means * counts.unsqueeze(3)).sum(dim=0) @ axes / total.clamp_min(1).unsqueeze(2)
    within = within_classes(means @ axes, counts)
    groups = (torch.tensor(sorted(set(members.tolist()))).unsqueeze(1) == members).to(mine)
    own = groups.argmax(dim=0)
    usual, heads, theirs = _class_means_of_clusters(mine, total, groups)
    between = _spread_between_clients(mine, usual, total, within)
    white = torch.linalg.inv(torch.linalg.cholesky(within + between)).mT
    noise = draws(len(within)).to(mine) @ (white.mT @ torch.linalg.cholesky(within)).mT
    log_shares = frequencies(total, groups)[torch.arange(len(own)), own].log()
    logits = log_shares.masked_fill(theirs == 0, -torch.inf)
    right = _log_likelihood_by_inputs(mine @ white, heads @ white, noise, logits)
    held = (total > 0) & (theirs > 0)
    told = ((right - log_shares) * total)[held].sum() / total[held].sum().clamp_min(1)
    return max(0.0, float(told))


def _class_means_of_clusters(means: Tensor, counts: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the class means of each client's cluster, the same of its others alone, and the others' class counts.

    From class means (clients, classes, dimensions), counts (clients, classes) and memberships (groups, clients).
    """
    own = groups.argmax(dim=0)
    mine = means * counts.unsqueeze(2)
    sums, sizes = torch.einsum("gi,icd->gcd", groups, mine)[own], (groups @ counts)[own]
    others = sizes - counts
    usual, without = sums / sizes.clamp_min(1).unsqueeze(2), (sums - mine) / others.clamp_min(1).unsqueeze(2)
    return usual, without, others


def _log_likelihood_by_inputs(points: Tensor, heads: Tensor, noise: Tensor, log_shares: Tensor) -> Tensor:
    """E log p(y|x) of each client's samples of each class by its head, (clients, classes).

    Samples are `noise` around the client's class means in `points`; both and `heads` are in coordinates in which
    classes spread by 1. `log_shares` (clients, classes) is log p(y), −∞ for classes without a head.
    """
    classes = points.shape[1]
    found = []
    for rows in torch.split(torch.arange(len(points)), max(1, CHUNK // (classes**2 * len(noise)))):
        samples = (points[rows].unsqueeze(2) + noise).flatten(1, 2)
        distances = torch.cdist(samples, heads[rows]).square().view(len(rows), classes, len(noise), classes)
        logits = log_shares[rows, None, None] - distances / 2
        found.append(logits.log_softmax(dim=3).mean(dim=2).diagonal(dim1=1, dim2=2))
    return torch.cat(found)


def _spread_between_clients(means: Tensor, usual: Tensor, counts: Tensor, within: Tensor) -> Tensor:
    """Return the covariance of class means between clients beyond that of their samples, weighted by samples."""
    some = counts > 0
    away = ((means - usual) * counts.sqrt().unsqueeze(2))[some]
    values, vectors = torch.linalg.eigh((away.mT @ away - some.sum() * within) / counts.sum().clamp_min(1))
    found: Tensor = (vectors * values.clamp_min(0)) @ vectors.mT
    return found
