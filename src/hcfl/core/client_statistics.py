"""What clients send for tiers 3 and 4 beside their models: prototypes, and signatures, which are sent once."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from hcfl.core.local_plan import Trainer, job
from hcfl.core.sgd import LocalSGD
from hcfl.core.state import Broadcast
from hcfl.data.local_data import LocalData
from hcfl.methods import Method
from hcfl.methods.local_models import Plan
from hcfl.models import Network
from hcfl.models.ensemble import copies, embed, flatten
from hcfl.models.inputs import some
from hcfl.tiers import Prototypes, Signs
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.distance import prototypes


def compared_features(method: Method, features: Tensor | None, data: LocalData) -> Prototypes | None:
    """Prototypes of the shared features, or of their norms."""
    if features is not None and "prototypes" in method.needs:
        return prototypes(features, data.labels, data.classes, data.segments)
    if features is not None and "feature norms" in method.needs:
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        return prototypes(norms, data.labels, data.classes, data.segments)
    return None


def first_signatures(
    method: Method,
    network: Network,
    sgd: LocalSGD,
    data: LocalData,
    broadcast: Broadcast,
    clients: Sequence[int],
    new: Tensor,
    seed: int,
    trainer: Trainer,
) -> dict[int, Tensor]:
    """Return what clients send once: their update of the initial model, or what the distance makes of their data."""
    signs = method.distance if "signatures" in method.needs and isinstance(method.distance, Signs) else None
    if not new.any() or not (signs or "first updates" in method.needs):
        return {}
    chosen = torch.nonzero(data.segments.each(new.unsqueeze(1))[:, 0]).flatten()
    who = [client for client, is_new in zip(clients, new.tolist(), strict=True) if is_new]
    segments = Segments(tuple(size for size, is_new in zip(data.segments.sizes, new.tolist(), strict=True) if is_new))
    theirs = LocalData(some(data.inputs, chosen.to(data.inputs.device)), data.labels[chosen], data.classes, segments)
    if signs is None:
        return dict(zip(who, _first_updates(network, sgd, theirs, broadcast, who, seed, trainer), strict=True))
    parts = zip(segments.split(theirs.inputs[:]), segments.split(theirs.labels), strict=True)
    return {client: signs.signature(*part) for client, part in zip(who, parts, strict=True)}


def _first_updates(
    network: Network,
    sgd: LocalSGD,
    data: LocalData,
    broadcast: Broadcast,
    clients: Sequence[int],
    seed: int,
    trainer: Trainer,
) -> list[Tensor]:
    """How one local epoch changes the initial model on each client's data."""
    assert broadcast.anchor is not None
    anchor, nothing = broadcast.anchor, torch.zeros(len(clients), 1, dtype=torch.long)
    start = copies(anchor, nothing)
    plan = Plan(start, torch.ones(len(clients), 1, 1), torch.ones(len(data), 1), start)
    features = embed(network, anchor.extractor(0), data.inputs) if anchor.topology == "split" else None
    once = replace(sgd, epochs=1, proximal=0.0)
    names = [("signature", client) for client in clients]
    trained = trainer(
        network, job(network, once, data, plan, features, seed, names, [(seed, *name) for name in names])
    ).models.rows()
    before, after = (flatten(model.heads, model.extractors, network.buffers) for model in (anchor, trained))
    return [part.clone() for part in (after - before).unbind()]
