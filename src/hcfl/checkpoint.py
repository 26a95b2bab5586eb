"""Save and load a run's state: tensors as safetensors, the rest as JSON. Nothing that is read can run code."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hcfl.clusters import Change, Merge, Move, Removal, Split
from hcfl.ensemble import Ensemble, Topology
from hcfl.errors import InputError
from hcfl.inputs import Scaling
from hcfl.models import Params
from hcfl.state import ClientState, RunState, ServerState
from hcfl.tiers import Weights
from hcfl.tiers.gaussians import Gaussians

FORMAT = 3
"""Version of the layout; another one is refused."""

TENSORS, VALUES = "state.safetensors", "state.json"


def save(folder: Path, state: RunState, scaling: Scaling) -> None:
    """Write everything needed to go on, and to predict: models, tables, every client's state, newcomers, scaling."""
    server = state.server
    tensors: Params = {
        "server.weights": server.weights,
        "server.members": server.members,
        "server.sizes": server.sizes,
        "server.last_seen": server.last_seen,
        "scaling.mean": scaling.mean,
        "scaling.std": scaling.std,
    }
    if server.counts is not None:
        tensors["server.counts"] = server.counts
    for name, ensemble in {"": server.ensemble, "anchor.": server.anchor, "common.": server.common}.items():
        tensors |= _ensemble_tensors(name, ensemble)
    if server.gaussians is not None:
        tensors |= {f"gaussians.{field.name}": getattr(server.gaussians, field.name) for field in fields(Gaussians)}
    tensors |= {f"signature.{client}": signature for client, signature in server.signatures.items()}
    for client, known in state.clients.items():
        tensors |= _weights_tensors(f"client.{client}.", known.weights)
        tensors |= _ensemble_tensors(f"client.{client}.own.", known.own)
    for number, weights in enumerate(state.newcomers):
        tensors |= _weights_tensors(f"newcomer.{number}.", weights)
    values = {
        "format": FORMAT,
        "round": server.round,
        "topology": server.ensemble.topology,
        "clusters": server.clusters,
        "born": server.born,
        "changes": [{"kind": type(change).__name__, **asdict(change)} for change in server.changes],
        "clients": {c: {"round": known.round, "clusters": known.clusters} for c, known in state.clients.items()},
        "signatures": list(server.signatures),
        "newcomers": len(state.newcomers),
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}, folder / TENSORS)
    (folder / VALUES).write_text(json.dumps(values, indent=1), encoding="utf-8")


def load(folder: Path) -> tuple[RunState, Scaling]:
    """Read what `save` wrote."""
    try:
        values: dict[str, Any] = json.loads((folder / VALUES).read_text(encoding="utf-8"))
        tensors: Params = load_file(folder / TENSORS)
        if values["format"] != FORMAT:
            raise InputError(f"checkpoint {folder}: has format {values['format']}, this version reads {FORMAT}")
        return _state(values, tensors), Scaling(tensors["scaling.mean"], tensors["scaling.std"])
    except OSError as error:
        raise InputError(f"checkpoint {folder}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"checkpoint {folder}: is damaged ({type(error).__name__}: {error})") from None


def _state(values: dict[str, Any], tensors: Params) -> RunState:
    topology: Topology = values["topology"]
    ensemble = _ensemble("", tensors, topology)
    assert ensemble is not None
    gaussians = _named("gaussians", tensors)
    server = ServerState(
        round=values["round"],
        ensemble=ensemble,
        clusters=tuple(values["clusters"]),
        born=values["born"],
        weights=tensors["server.weights"],
        members=tensors["server.members"],
        counts=tensors.get("server.counts"),
        sizes=tensors["server.sizes"],
        last_seen=tensors["server.last_seen"],
        changes=tuple(_change(change) for change in values["changes"]),
        anchor=_ensemble("anchor.", tensors, topology),
        common=_ensemble("common.", tensors, topology),
        signatures={client: tensors[f"signature.{client}"] for client in values["signatures"]},
        gaussians=Gaussians(**gaussians) if gaussians else None,
    )
    clients = {
        int(client): ClientState(
            round=known["round"],
            clusters=tuple(known["clusters"]),
            weights=_weights(f"client.{client}.", tensors),
            own=_ensemble(f"client.{client}.own.", tensors, topology),
        )
        for client, known in values["clients"].items()
    }
    newcomers = tuple(_weights(f"newcomer.{number}.", tensors) for number in range(values["newcomers"]))
    return RunState(server, clients, newcomers)


def _ensemble_tensors(name: str, ensemble: Ensemble | None) -> Params:
    if ensemble is None:
        return {}
    return _prefixed(f"{name}extractor", ensemble.extractors) | _prefixed(f"{name}head", ensemble.heads)


def _ensemble(name: str, tensors: Params, topology: Topology) -> Ensemble | None:
    heads = _named(f"{name}head", tensors)
    return Ensemble(_named(f"{name}extractor", tensors), heads, topology) if heads else None


def _weights_tensors(name: str, weights: Weights) -> Params:
    parts = {"weights": weights.client, "sample_weights": weights.sample, "components": weights.components}
    return {f"{name}{part}": tensor for part, tensor in parts.items() if tensor is not None}


def _weights(name: str, tensors: Params) -> Weights:
    return Weights(tensors[f"{name}weights"], tensors.get(f"{name}sample_weights"), tensors.get(f"{name}components"))


def _prefixed(prefix: str, params: Params) -> Params:
    return {f"{prefix}.{name}": tensor for name, tensor in params.items()}


def _named(prefix: str, tensors: dict[str, Tensor]) -> Params:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _change(values: dict[str, Any]) -> Change:
    parts: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    kind = parts.pop("kind")
    return {change.__name__: change for change in (Split, Removal, Merge, Move)}[kind](**parts)
