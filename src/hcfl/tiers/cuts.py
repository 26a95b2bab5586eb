"""Ways to cut clients in two, from their class means: proposals for HCFL++, whose test decides (`head_gain`)."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hcfl.tiers.conflict import Directions, summed_conflicts
from hcfl.tiers.head_gain import PRIOR, ClassMeans, Proposal


def principal_cut(distance: Tensor) -> Tensor:
    """Cut clients by the sign of their principal coordinate (classical scaling), (clients,)."""
    values = distance.double().cpu()
    rows = values.mean(dim=1)
    centred = rows.unsqueeze(0) + rows.unsqueeze(1) - values - values.mean()
    leading: Tensor = torch.linalg.eigh(centred).eigenvectors[:, -1]
    return leading > 0


def by_conflicts(seen: ClassMeans) -> Tensor:
    """Cut by conflicts: a class of one client looks more like another class of the other than like the same."""
    held = seen.counts > 0
    return principal_cut(summed_conflicts(Directions(normalize(seen.means, dim=2) * held.unsqueeze(2), held)))


def by_class_means(seen: ClassMeans) -> Tensor:
    """Cut by how far apart the same classes of two clients are, in the mean over the classes that both hold."""
    total = shared = seen.means.new_zeros(len(seen.means), len(seen.means))
    for means, counts in zip(seen.means.unbind(dim=1), seen.counts.unbind(dim=1), strict=True):
        weights = torch.outer(counts, counts) / (counts.unsqueeze(0) + counts.unsqueeze(1)).clamp_min(1e-9)
        total, shared = total + weights * torch.cdist(means, means).square(), shared + weights
    return principal_cut(_filled(total / shared.clamp_min(1e-9), shared > 0).fill_diagonal_(0))


def by_losses(seen: ClassMeans) -> Tensor:
    """Cut by the clients' losses on each other's heads, each held near the head of all clients."""
    counts = seen.counts.unsqueeze(2)
    usual = (seen.means * counts).sum(dim=0) / counts.sum(dim=0).clamp_min(1e-9)
    heads = (seen.means * counts + PRIOR * usual) / (counts + PRIOR)
    logits = torch.einsum("icd,jkd->ijck", seen.means, heads) - heads.square().sum(dim=2)[None, :, None, :] / 2
    right = logits.log_softmax(dim=3).diagonal(dim1=2, dim2=3)
    losses = -(right * seen.samples.unsqueeze(1)).sum(dim=2) / seen.samples.sum(dim=1).clamp_min(1)[:, None]
    return principal_cut(losses + losses.T)


def _filled(distance: Tensor, known: Tensor) -> Tensor:
    """Let pairs that cannot be compared be as far apart as the others on average."""
    return torch.where(known, distance, distance[known].mean() if known.any() else 0.0)


SOURCES: Mapping[str, Proposal] = {"conflicts": by_conflicts, "class means": by_class_means, "losses": by_losses}
"""Where cuts come from."""
