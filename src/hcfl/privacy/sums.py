"""A client's part of the sums that the server needs, and averages from the sums: the server needs no single update.

Cluster k's new model is θ_k + Σ_i m_ik·(θ_i − θ_k) / Σ_i m_ik, so clients give m_ik·(θ_i − θ_k) and m_ik; a shared
extractor likewise with N_i. With all participants' summands, the averages are those of `hcfl.core.aggregation`.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.core.state import Update
from hcfl.models import Params
from hcfl.models.ensemble import Ensemble, mix
from hcfl.tiers.gaussians import Moments

Parts = Mapping[str, Tensor]
"""Summands, or sums, by name."""

MODELS = {"extractors": "extractor.", "heads": "head."}
"""Prefixes of the names of a model's tensors in a summand."""

SHARES = ("mass", "counts")
"""What a client sends beside models where every client counts once: shares of its samples, of norm at most 1."""

MOMENTS = ("mass", "first", "second")


def summands(received: Ensemble, update: Update) -> dict[str, Tensor]:
    """Return what some participants add to the sums, by name, in double precision; integer tensors are left out."""
    shared, mass, sizes = received.topology == "split", update.mass, update.sizes.unsqueeze(1)
    parts: dict[str, Tensor] = {
        **_changes(MODELS["extractors"], received.extractors, update.models.extractors, sizes if shared else mass),
        **_changes(MODELS["heads"], received.heads, update.models.heads, mass),
        "mass": mass.sum(dim=0).double(),
        "size": sizes.sum(dim=0).double(),
    }
    if update.counts is not None:
        parts["counts"] = update.counts.sum(dim=0).double()
    if update.objective is not None:
        parts["objective"] = update.objective.sum(dim=0, keepdim=True).double()
    if update.held_out is not None:
        parts["held_out"] = update.held_out.sum(dim=0).double()
    if update.moments is not None:
        parts |= {f"moments.{name}": getattr(update.moments, name).double() for name in MOMENTS}
    return parts


def _changes(prefix: str, received: Params, trained: Params, mass: Tensor) -> dict[str, Tensor]:
    """Σ_r m_rk·(θ_r − θ_k) for every tensor of a model."""
    weights, total = mass.T.double(), mass.sum(dim=0).double()
    return {
        prefix + name: mix(weights, trained[name]) - old.double() * total.view(-1, *(1,) * (old.ndim - 1))
        for name, old in received.items()
        if old.is_floating_point()
    }


def one_vote_each(update: Update) -> Update:
    """Let every client count once, whatever its number of samples: then its upload does not tell its size."""
    sizes = update.sizes
    return replace(
        update,
        sizes=torch.ones_like(sizes),
        mass=update.mass / sizes[update.row_participants].unsqueeze(1),
        counts=None if update.counts is None else update.counts / sizes.view(-1, 1, 1),
    )


def in_units(sums: Parts, clip: float | None) -> dict[str, Tensor]:
    """Return sums with shares as shares, where they were scaled to be as large as models."""
    return {name: part / clip if clip and name in SHARES else part for name, part in sums.items()}


def is_model(name: str) -> bool:
    """Whether a summand is a change of a model."""
    return name.startswith(tuple(MODELS.values()))


def averaged(
    received: Ensemble, sums: Parts, clients: tuple[int, ...], weights: Tensor, sealed: int, noise: float = 0.0
) -> Update:
    """Return one update of all participants from their sums: each participant has the mean.

    `weights` (clients, clusters) are what the server has of them already, `sealed` the number of bytes that they sent,
    `noise` its standard deviation in masses and counts: masses within the noise are 0, counts within it are equal.
    """
    number, clusters = len(clients), received.clusters
    equal = torch.full((clusters,), float(number)).double()
    size, mass = sums.get("size", equal[:1]), equal
    if "mass" in sums:
        mass = torch.where(sums["mass"] > noise, sums["mass"], 0)
    shared = received.topology == "split"
    extractors = _moved(MODELS["extractors"], received.extractors, sums, size if shared else mass)
    if shared:
        extractors = {name: tensor.expand(number, *tensor.shape[1:]) for name, tensor in extractors.items()}
    counts, objective, held_out = sums.get("counts"), sums.get("objective"), sums.get("held_out", torch.zeros(2))
    moments = [sums[f"moments.{name}"] for name in MOMENTS if f"moments.{name}" in sums]
    return Update(
        clients=clients,
        sizes=(size / number).float().expand(number),
        models=Ensemble(extractors, _moved(MODELS["heads"], received.heads, sums, mass), received.topology),
        row_participants=torch.zeros(clusters, dtype=torch.long),
        started=torch.eye(clusters),
        mass=torch.diag(mass).float(),
        weights=weights,
        objective=None if objective is None else (objective / number).float().expand(number),
        counts=None if counts is None else (counts.clamp_min(noise) / number).float().expand(number, -1, -1),
        moments=Moments(*moments) if moments else None,
        held_out=(held_out / number).expand(number, 2),
        sealed=sealed,
    )


def _moved(prefix: str, received: Params, sums: Parts, mass: Tensor) -> Params:
    """θ_k + Σ m·(θ − θ_k) / Σ m; without mass, and where nothing was summed, it stays."""
    models: Params = {}
    for name, old in received.items():
        models[name] = old
        if prefix + name in sums:
            total = mass.view(-1, *(1,) * (old.ndim - 1))
            step = torch.where(total > 0, sums[prefix + name] / total.clamp_min(torch.finfo(total.dtype).tiny), 0)
            models[name] = (old.double() + step).to(old.dtype)
    return models
