"""What clients send for tiers 3 and 4 beside their models: prototypes, reports, and signatures, which are sent once."""

from dataclasses import replace

import torch
from torch import Tensor

from hcfl import rng
from hcfl.core.local_plan import Job, Trainer
from hcfl.core.setting import RoundTask
from hcfl.core.sgd import shuffle
from hcfl.data.local_data import LocalData
from hcfl.methods import Method
from hcfl.methods.local_models import Plan
from hcfl.models.ensemble import Ensemble, copies, embed, flatten
from hcfl.tiers import Prototypes, Signs
from hcfl.tiers.descriptors import descriptors
from hcfl.tiers.distance import half_prototypes, prototypes


def compared_features(method: Method, features: Tensor | None, data: LocalData) -> Prototypes | None:
    """Prototypes of the shared features, or of their norms."""
    if features is not None and "prototypes" in method.needs:
        return prototypes(features, data.labels, data.classes, data.segments)
    if features is not None and "feature norms" in method.needs:
        norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
        return prototypes(norms, data.labels, data.classes, data.segments)
    return None


def halved_features(method: Method, features: Tensor | None, data: LocalData) -> Prototypes | None:
    """Prototypes of the first half of each class's samples, where they are asked for."""
    if features is None or "half prototypes" not in method.needs:
        return None
    return half_prototypes(features, data.labels, data.classes, data.segments)


def reports(
    task: RoundTask,
    data: LocalData,
    features: Tensor | None,
    log_prob: Tensor,
    training_losses: Tensor | None,
    trainer: Trainer,
) -> dict[str, Tensor]:
    """Return those of `REPORTS` that are asked for in this round.

    `features` are those of a shared extractor, `log_prob` is log p_k(y|x), (samples, clusters).
    """
    asked, sent = task.setting.method.reports_in(task.broadcast.round), dict[str, Tensor]()
    if "losses" in asked:
        sent["losses"] = -data.segments.mean(log_prob)
    if "training losses" in asked and training_losses is not None:
        sent["training losses"] = training_losses
    if "probes" in asked and task.broadcast.probe is not None:
        sent["probes"] = torch.stack(_updates(task, data, trainer, task.broadcast.probe, "probe", task.broadcast.round))
    if "descriptors" in asked:
        model = task.broadcast.ensemble if task.broadcast.probe is None else task.broadcast.probe
        if features is None:
            features = embed(task.setting.network, model.extractor(0), data.inputs)
        sent["descriptors"] = descriptors(features, data.labels, data.classes, data.segments)
    return sent


def first_signatures(task: RoundTask, data: LocalData, new: Tensor, trainer: Trainer) -> dict[int, Tensor]:
    """Return what clients send once: their update of the initial model, or what the distance makes of their data.

    `new` (participants,) says which of them take part for the first time.
    """
    method = task.setting.method
    signs = method.distance if "signatures" in method.needs and isinstance(method.distance, Signs) else None
    if not new.any() or not (signs or "first updates" in method.needs):
        return {}
    newcomers = [client for client, is_new in zip(task.participants, new.tolist(), strict=True) if is_new]
    theirs = data.only(new)
    if signs is None:
        assert task.broadcast.anchor is not None
        updates = _updates(task.only(newcomers), theirs, trainer, task.broadcast.anchor, "signature")
        return dict(zip(newcomers, updates, strict=True))
    parts = zip(theirs.segments.split(theirs.inputs[:].float()), theirs.segments.split(theirs.labels), strict=True)
    return {client: signs.signature(*part) for client, part in zip(newcomers, parts, strict=True)}


def _updates(task: RoundTask, data: LocalData, trainer: Trainer, model: Ensemble, *purpose: str | int) -> list[Tensor]:
    """How one local epoch changes one model on each participant's data."""
    clients, network = task.participants, task.setting.network
    start = copies(model, torch.zeros(len(clients), 1, dtype=torch.long))
    plan = Plan(start, torch.ones(len(clients), 1, 1), torch.ones(len(data), 1), start)
    features = embed(network, model.extractor(0), data.inputs) if model.topology == "split" else None
    sgd = replace(task.setting.sgd.ordered(1), epochs=1, proximal=0.0, decay=None)
    purposes = [(task.setting.seed, *purpose, client) for client in clients]
    orders = [rng.torch_generator(task.setting.seed, *purpose, client) for client in clients]
    batches = shuffle(data.segments, sgd, orders, singles=not network.buffers)
    trained = trainer(network, Job(plan, features, data, batches, sgd, purposes)).models.rows()
    before, after = (flatten(model.heads, model.extractors, network.buffers) for model in (model, trained))
    return [part.clone() for part in (after - before).unbind()]
