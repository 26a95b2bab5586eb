"""Would two groups of clients be better served by two heads? Measured by held-out likelihood (our own, HCFL++).

Every client sends its class means twice: of all its samples, and of the first half of them. So the server has two
independent measurements of every class of every client, and their differences tell how samples spread within a class.

- **Own ways of a client.** A camera, or a sensor, shifts and scales all of a client's features. This calls for no other
  head, so each client's class means are first shifted and scaled to the mean and the spread that all clients' have in
  the same classes (`canonical`). What is left is how its classes lie to each other.
- **Head of a group**: linear discriminant analysis. Class c is a Gaussian around the mean of its members' class means,
  with the spread of samples within classes. A class that a group hardly holds has the mean of all clients. With any
  head, classes are as likely as they are with the client, so a group whose clients merely hold other classes gains
  nothing, and a head that favours a common class by chance does not, either.
- **Gain of a client**: E log p_group(y|x) − E log p_all(y|x) per sample. Both heads come from other clients, the
  grouping comes from one half of everyone's samples, and the likelihood is that of the client's other half; the mean of
  both ways counts. Where nothing differs, a group's head is only the noisier one, and the gain is negative on average.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hcfl.tiers.participants import Prototypes

DIMENSIONS = 32
"""How many principal axes of the class means are looked at, or twice the number of classes, if that is more."""

SPARE, ITERATIONS = 4, 8
"""Of features more than `SPARE` times as wide as the axes that are wanted, these are found in so many iterations."""

PRIOR = 5.0
"""For how many samples the mean of all clients counts in a group's class mean."""

CLIENT = 20.0
"""A client's class mean counts for at most so many samples: more of its samples do not tell more of other clients."""

DRAWS = 8
"""How many samples stand for the samples around a class mean."""

STEPS = 6
"""How often clients choose the better of two heads, at most, before a proposed cut is looked at."""

CHUNK = 1 << 24
"""How many likelihoods are computed at a time."""


@dataclass(frozen=True)
class ClassMeans:
    """Class means of clients, in coordinates in which samples spread by 1 around them in every direction."""

    means: Tensor
    """(clients, classes, dimensions)."""
    counts: Tensor
    """(clients, classes): for how many samples each counts; 0 where the client holds none."""
    samples: Tensor
    """(clients, classes): how many there are."""

    def of(self, rows: Tensor) -> "ClassMeans":
        """Return some clients' class means."""
        return ClassMeans(self.means[rows], self.counts[rows], self.samples[rows])


@dataclass(frozen=True)
class Measured:
    """What the server knows of clients' classes: from each half of their samples, and from all of them."""

    halves: tuple[ClassMeans, ClassMeans]
    all: ClassMeans

    def of(self, rows: Tensor) -> "Measured":
        """Return what is known of some clients."""
        return Measured((self.halves[0].of(rows), self.halves[1].of(rows)), self.all.of(rows))


def measured(whole: Prototypes, first: Prototypes) -> Measured:
    """Bring clients' class means, of all their samples and of the first halves, into common coordinates."""
    raw, counts = halves_of(whole, first)
    means = canonical(raw, counts)
    axes = principal_axes(means, counts)
    spread = within_classes(means @ axes, counts)
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(spread), axes.T, upper=False).T
    means, counts = (means @ white).cpu(), counts.cpu()
    total = counts.sum(dim=0)
    mixed = (means * counts.unsqueeze(3)).sum(dim=0) / total.clamp_min(1).unsqueeze(2)
    one, other = (ClassMeans(m, _counted(n), n) for m, n in zip(means, counts, strict=True))
    return Measured((one, other), ClassMeans(mixed, _counted(total), total))


def halves_of(whole: Prototypes, first: Prototypes) -> tuple[Tensor, Tensor]:
    """Return the class means and class counts of both halves, each (halves, clients, …); means of no samples are 0."""
    counts = torch.stack([first.class_counts, whole.class_counts - first.class_counts]).double()
    sums = whole.class_means.double() * whole.class_counts.double().unsqueeze(2)
    early = first.class_means.double()
    late = (sums - early * counts[0].unsqueeze(2)) / counts[1].clamp_min(1).unsqueeze(2)
    return torch.stack([early, late]) * (counts > 0).unsqueeze(3), counts


def canonical(means: Tensor, counts: Tensor) -> Tensor:
    """Shift and scale each client's class means (…, clients, classes, features) to the mean and spread of all clients'.

    Mean and spread are over the classes that the client holds, weighted by its counts (…, clients, classes).
    """
    weights, found = counts.unsqueeze(-1), means
    across = tuple(range(means.ndim - 2))
    share = weights / weights.sum(dim=-2, keepdim=True).clamp_min(1)
    for _ in range(3):  # what all clients have changes with them, but little
        usual = (found * weights).sum(dim=across) / weights.sum(dim=across).clamp_min(1)
        target = (usual * share).sum(dim=-2, keepdim=True)
        centred, away = means - (means * share).sum(dim=-2, keepdim=True), usual - target
        lengths = [(part.square() * share).sum(dim=(-2, -1), keepdim=True).sqrt() for part in (away, centred)]
        scale = (lengths[0] / lengths[1].clamp_min(torch.finfo(means.dtype).tiny)).clamp(0.2, 5.0)
        found = (target + centred * scale) * (weights > 0)
    return found


def _counted(samples: Tensor) -> Tensor:
    return samples / (1 + samples / CLIENT)


def principal_axes(means: Tensor, counts: Tensor) -> Tensor:
    """Return the leading principal axes of all class means, (features, dimensions)."""
    weights = counts.unsqueeze(-1)
    centre = (means * weights).sum(dim=(0, 1, 2)) / weights.sum().clamp_min(1)
    rows = ((means - centre) * weights.sqrt()).flatten(0, 2)
    wanted = max(DIMENSIONS, 2 * means.shape[2])
    values, vectors = leading_axes(rows.T @ rows, wanted)
    return vectors[:, values > values[-1] * 1e-8] if values[-1] > 0 else vectors[:, -1:]


def leading_axes(scatter: Tensor, wanted: int) -> tuple[Tensor, Tensor]:
    """Return the largest eigenvalues of a symmetric matrix, ascending, and their eigenvectors in columns.

    Of a wide matrix, all of them take several times as long as the few that are wanted. These are then found by the
    subspace iteration of Halko, Martinsson & Tropp (2011, algorithm 4.4), from a start that is the same in all runs.
    """
    size = len(scatter)
    if size <= SPARE * wanted:
        values, vectors = torch.linalg.eigh(scatter)
        return values[-wanted:], vectors[:, -wanted:]
    start = torch.Generator().manual_seed(0)
    basis = torch.randn(size, 2 * wanted, generator=start, dtype=scatter.dtype).to(scatter.device)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(scatter @ basis).Q
    values, inside = torch.linalg.eigh(basis.T @ scatter @ basis)
    return values[-wanted:], (basis @ inside)[:, -wanted:]


def within_classes(means: Tensor, counts: Tensor) -> Tensor:
    """Return the covariance of samples within classes, from the differences between clients' halves, shrunk (OAS)."""
    both = (counts > 0).all(dim=0)
    weights = (counts[0] * counts[1] / counts.sum(dim=0).clamp_min(1))[both]
    differences = (means[0] - means[1])[both] * weights.sqrt().unsqueeze(1)
    number, size = len(differences), means.shape[-1]
    identity = torch.eye(size, dtype=means.dtype, device=means.device)
    if number == 0:
        return identity
    covariance = differences.T @ differences / number
    trace, squares = covariance.trace(), covariance.square().sum()
    spread = (number + 1 - 2 / size) * (squares - trace**2 / size)
    kept = 1.0 if spread <= 0 else min(1.0, float(((1 - 2 / size) * squares + trace**2) / spread))
    shrunk = (1 - kept) * covariance + kept * trace / size * identity
    return shrunk + torch.finfo(means.dtype).eps * (trace + 1) * identity


@dataclass(frozen=True)
class Heads:
    """For each client a head of each group, estimated from the group's other clients."""

    means: Tensor
    """(clients, groups, classes, dimensions)."""
    sizes: Tensor
    """(clients, groups, classes): for how many samples each mean counts; 0: no other client holds the class."""

    @classmethod
    def of(cls, seen: ClassMeans, groups: Tensor) -> "Heads":
        """Estimate them from boolean memberships (groups, clients)."""
        sums, inside = seen.means * seen.counts.unsqueeze(2), groups.to(seen.means)
        mine = inside.T.unsqueeze(2)
        others = sums.sum(dim=0) - sums, seen.counts.sum(dim=0) - seen.counts
        theirs = torch.einsum("gi,icd->gcd", inside, sums) - mine.unsqueeze(3) * sums.unsqueeze(1)
        sizes = (inside @ seen.counts - mine * seen.counts.unsqueeze(1)).clamp_min(0)
        prior = others[1].clamp(0, PRIOR).unsqueeze(1)
        usual = (others[0] / others[1].clamp_min(1e-9).unsqueeze(2)).unsqueeze(1)
        sizes = torch.where(prior > 1e-6, sizes + prior, 0)
        return cls((theirs + prior.unsqueeze(3) * usual) / sizes.clamp_min(1e-9).unsqueeze(3), sizes)

    def log_likelihood(self, seen: ClassMeans) -> Tensor:
        """E log p(y|x) of each client's samples under each of its heads, per sample, (clients, groups)."""
        clients, groups, classes, dimensions = self.means.shape
        noise = draws(dimensions).to(seen.means)
        log_shares = own_frequencies(seen.samples).log()
        size = max(1, CHUNK // (groups * classes**2 * len(noise)))
        parts = [slice(start, start + size) for start in range(0, clients, size)]
        return torch.cat([self._part(part, seen, noise, log_shares) for part in parts])

    def _part(self, rows: slice, seen: ClassMeans, noise: Tensor, log_shares: Tensor) -> Tensor:
        points = seen.means[rows].unsqueeze(2) + noise  # (clients, classes, draws, dimensions)
        means, sizes = self.means[rows], self.sizes[rows].unsqueeze(2).unsqueeze(2)
        squares = points.square().sum(dim=3)[:, None, :, :, None] + means.square().sum(dim=3)[:, :, None, None, :]
        squares = squares - 2 * torch.einsum("icsd,ighd->igcsh", points, means)
        variance = 1 + 1 / sizes.clamp_min(1e-9)  # the mean itself is uncertain
        density = -(squares / variance + points.shape[3] * variance.log()) / 2
        logs = (density + log_shares[rows, None, None, None]).masked_fill(sizes == 0, -torch.inf).log_softmax(dim=4)
        right = logs.mean(dim=3).diagonal(dim1=2, dim2=3).nan_to_num(neginf=0.0)  # (clients, groups, classes)
        counts = (seen.counts[rows] * (self.sizes[rows, 0] > 0)).unsqueeze(1)
        return (right * counts).sum(dim=2) / counts.sum(dim=2).clamp_min(1)


def own_frequencies(samples: Tensor) -> Tensor:
    """How common classes are with each client, from its samples (clients, classes); one more is dealt as all are.

    >>> own_frequencies(torch.tensor([[3.0, 0.0], [0.0, 3.0]])).tolist()
    [[0.875, 0.125], [0.125, 0.875]]
    """
    usual = samples.sum(dim=0) + 1 / samples.shape[1]  # no class is impossible
    return (samples + usual / usual.sum()) / (samples.sum(dim=1, keepdim=True) + 1)


def draws(dimensions: int) -> Tensor:
    """Return samples around a mean, the same in all runs; the second half mirrors the first."""
    half = torch.randn(DRAWS // 2, dimensions, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([half, -half])


def halved(second: Tensor) -> Tensor:
    """Return a cut (clients,) as memberships of its two parts, (2, clients)."""
    return torch.stack([~second, second])


def better_cut(seen: ClassMeans, second: Tensor) -> Tensor:
    """Let clients choose the better head of the two parts, until no client changes or a part would be one client."""
    for _ in range(STEPS):
        scores = Heads.of(seen, halved(second)).log_likelihood(seen)
        chosen = scores[:, 1] > scores[:, 0]
        if min(int(chosen.sum()), int((~chosen).sum())) < 2 or bool((chosen == second).all()):
            break
        second = chosen
    return second


Proposal = Callable[[ClassMeans], Tensor]
"""A way to cut clients in two, (clients,), from their class means."""


@dataclass(frozen=True)
class Gain:
    """What clients would gain by two heads instead of one, in held-out log-likelihood per sample."""

    each: Tensor
    """(clients,)."""
    loss: float
    """The clients' mean loss with one head."""
    repeated: float
    """How much likelier the groups that one half of the samples proposes make all of the other half: the logarithm, and
    the mean of both ways. Where nothing differs, it is above log(1/p) with a probability of about p at most, since a
    likelihood ratio of samples that chose neither head is 1 on average (Wasserman, Ramdas & Balakrishnan, 2020)."""

    @property
    def share(self) -> float:
        """How much of the loss two heads take away."""
        return float(self.each.mean()) / max(self.loss, 1e-12)


def cross_fitted(known: Measured, propose: Proposal) -> Gain:
    """Return the gain by a proposal's cuts, each from one half of all clients' samples, and tested on the other."""
    return gain_by(known, *(better_cut(half, propose(half)) for half in known.halves))


def gain_by(known: Measured, first: Tensor, second: Tensor) -> Gain:
    """Return the gain by two cuts (clients,): `first` on the second half of the samples, `second` on the first half."""
    everyone = torch.ones(1, len(known.all.means), dtype=torch.bool)
    found, losses, sums = [], [], []
    for cut, unseen in zip((first, second), known.halves[::-1], strict=True):
        scores = Heads.of(known.all, torch.cat([halved(cut), everyone])).log_likelihood(unseen)
        found.append(scores.gather(1, cut.long().unsqueeze(1))[:, 0] - scores[:, 2])
        losses.append(-float(scores[:, 2].mean()))
        sums.append(float(found[-1] @ unseen.samples.sum(dim=1)))
    return Gain(torch.stack(found).mean(dim=0), sum(losses) / 2, sum(sums) / 2)


def chance(gain: Tensor) -> float:
    """Return the probability of gains like these, (clients,), or better ones, if they are about 0 on average.

    Wilcoxon's signed-rank test, one-sided. Clients are the units, and one with a huge gain counts little more than one
    with a large gain. Clients whose gain is exactly 0 tell nothing.
    """
    from scipy.stats import wilcoxon  # takes a second: not for clients

    some = gain[gain != 0].numpy()
    return float(wilcoxon(some, alternative="greater").pvalue) if len(some) else 1.0


def serves_both(gain: Tensor, second: Tensor) -> bool:
    """Whether more clients gain than lose, by Wilcoxon's ranks, in each of the two parts, of at least two clients."""
    return all(len(part) > 1 and chance(part) < 0.5 for part in (gain[~second], gain[second]))
