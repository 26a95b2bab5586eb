"""Conflicts between class prototypes: class c of one client looks like another class of another one (our own, HCFL++).

The distance of HCFL+ asks how far apart two clients' prototypes of a class are. Noise in a class of few samples, and
another camera, move prototypes apart, too, and its maximum over classes picks out just these. A conflict asks for more:
a class of one client must be *nearer to another class* of the other client than to the same one. Noise shortens both
cosines alike, and a camera changes both alike.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hcfl.tiers.participants import Prototypes

CHUNK = 1 << 24
"""How many cosines are computed at a time: pairs of clients × pairs of classes would not fit into memory."""


@dataclass(frozen=True)
class Directions:
    """Directions of class prototypes from the mean of all reported features."""

    units: Tensor
    """(clients or groups, classes, features), unit vectors; 0 where the client holds no sample of the class."""
    held: Tensor
    """(clients or groups, classes): whether the client holds samples of the class."""

    @classmethod
    def of(cls, prototypes: Prototypes) -> "Directions":
        """Centre prototypes: features behind a ReLU all point the same way otherwise."""
        counts, means = prototypes.class_counts.to(prototypes.class_means), prototypes.class_means
        some = counts.sum().clamp_min(torch.finfo(counts.dtype).tiny)  # with noise, no class may be left
        centre = torch.einsum("ic,icf->f", counts, means) / some
        held = prototypes.class_counts > 0
        return cls(normalize(means - centre, dim=2) * held.unsqueeze(2), held)

    def pooled(self, groups: Tensor) -> "Directions":
        """Return the mean directions of groups of clients, from boolean memberships (groups, clients).

        All clients of a group have the same weight, so that the camera of a large client does not dominate.
        """
        groups = groups.to(self.units)
        held = groups @ self.held.to(groups) > 0
        return Directions(normalize(torch.einsum("gi,icf->gcf", groups, self.units), dim=2), held)

    def conflicts(self, others: "Directions") -> Tensor:
        """Return cos to the most similar *other* class minus cos to the same class of `others`, for each class.

        (rows of self, rows of others, classes); −∞ where one of the two does not hold the class, or `others` holds no
        other class.
        """
        cosines = torch.einsum("icf,jdf->ijcd", self.units, others.units)
        return _nearer_to_another(cosines, self.held.unsqueeze(1), others.held.unsqueeze(0))

    def part(self, rows: slice) -> "Directions":
        """Return the directions of some clients."""
        return Directions(self.units[rows], self.held[rows])


def summed_conflicts(directions: Directions) -> Tensor:
    """Return how much two clients contradict each other, (clients, clients): the sum of their conflicts over classes.

    Symmetric, the mean of both clients' views; 0 where two clients have no conflict, and on the diagonal.
    """
    clients, classes = directions.held.shape
    size = max(1, CHUNK // (clients * classes**2))
    parts = [directions.part(slice(start, start + size)) for start in range(0, clients, size)]
    views = torch.cat([part.conflicts(directions).clamp_min(0).sum(dim=2) for part in parts])
    return ((views + views.T) / 2).fill_diagonal_(0)


def contradictions(directions: Directions, groups: Tensor) -> Tensor:
    """Return how much groups of clients contradict each other, (groups, groups), from memberships (groups, clients).

    For each class the smaller of the two groups' views counts; over classes the second largest, because a client that
    swaps labels swaps at least two. −∞ where two groups share fewer than two classes, and where a group is one client.
    """
    pooled = directions.pooled(groups)
    several = (groups.sum(dim=1) > 1).to(pooled.held.device)
    seen = torch.where((several.unsqueeze(1) & several).unsqueeze(2), pooled.conflicts(pooled), -torch.inf)
    mutual = torch.minimum(seen, seen.transpose(0, 1))
    if mutual.shape[2] < 2:
        return mutual.new_full(mutual.shape[:2], -torch.inf)
    return mutual.topk(2, dim=2).values[:, :, 1]


def dissents(directions: Directions, groups: Tensor) -> Tensor:
    """Return how much each client contradicts each group without that client, (clients, groups).

    The same sum over classes as in `summed_conflicts`, with the group's mean directions as the second client.
    """
    groups = groups.to(directions.units)
    sums = torch.einsum("gi,icf->gcf", groups, directions.units)
    holders = groups @ directions.held.to(groups)
    clients, classes, features = directions.units.shape
    size = max(1, CHUNK // (len(groups) * classes * max(classes, features)))
    found = []
    for start in range(0, clients, size):
        mine, inside = directions.part(slice(start, start + size)), groups.T[start : start + size]
        others = sums - inside[:, :, None, None] * mine.units.unsqueeze(1)
        theirs = holders - inside.unsqueeze(2) * mine.held.to(groups).unsqueeze(1) > 0.5  # counts, but as floats
        cosines = torch.einsum("icf,igdf->igcd", mine.units, normalize(others, dim=3))
        held = mine.held.unsqueeze(1)
        seen = _nearer_to_another(cosines, held, theirs).clamp_min(0)
        seen_by_them = _nearer_to_another(cosines.mT, theirs, held).clamp_min(0)
        found.append((seen + seen_by_them).sum(dim=2) / 2)
    return torch.cat(found)


def _nearer_to_another(cosines: Tensor, mine: Tensor, theirs: Tensor) -> Tensor:
    """Return how much nearer each class of the first client is to another class of the second than to the same.

    `cosines` is (…, classes of the first, classes of the second); `mine` and `theirs`, (…, classes), say which classes
    the first and the second hold. Return (…, classes); −∞ where one of the two does not hold the class, or the second
    holds no other class.
    """
    same = cosines.diagonal(dim1=-2, dim2=-1)
    excluded = ~theirs.unsqueeze(-2) | torch.eye(cosines.shape[-1], dtype=torch.bool, device=cosines.device)
    other = cosines.masked_fill(excluded, -torch.inf).amax(dim=-1)
    return torch.where(mine & theirs, other - same, -torch.inf)
