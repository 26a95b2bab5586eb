"""Save and load a run's state: tensors as safetensors, the rest as JSON. Nothing that is read can run code."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from hcfl.clusters import Change, Removal, Split
from hcfl.data import Scaling
from hcfl.ensemble import Ensemble
from hcfl.errors import InputError
from hcfl.models import Params
from hcfl.state import ClientState, RunState, ServerState
from hcfl.tiers import Weights

FORMAT = 1
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
        "newcomers": state.newcomers,
        "scaling.mean": scaling.mean,
        "scaling.std": scaling.std,
    }
    if server.counts is not None:
        tensors["server.counts"] = server.counts
    tensors |= _prefixed("extractor", server.ensemble.extractors) | _prefixed("head", server.ensemble.heads)
    for client, own in state.clients.items():
        tensors[f"client.{client}.weights"] = own.weights.client
        if own.weights.sample is not None:
            tensors[f"client.{client}.sample_weights"] = own.weights.sample
    values = {
        "format": FORMAT,
        "round": server.round,
        "topology": server.ensemble.topology,
        "clusters": server.clusters,
        "born": server.born,
        "changes": [{"kind": type(change).__name__, **asdict(change)} for change in server.changes],
        "clients": {client: {"round": own.round, "clusters": own.clusters} for client, own in state.clients.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, folder / TENSORS)
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
    server = ServerState(
        round=values["round"],
        ensemble=Ensemble(_named("extractor", tensors), _named("head", tensors), values["topology"]),
        clusters=tuple(values["clusters"]),
        born=values["born"],
        weights=tensors["server.weights"],
        members=tensors["server.members"],
        counts=tensors.get("server.counts"),
        sizes=tensors["server.sizes"],
        last_seen=tensors["server.last_seen"],
        changes=tuple(_change(change) for change in values["changes"]),
    )
    clients = {
        int(client): ClientState(
            round=own["round"],
            clusters=tuple(own["clusters"]),
            weights=Weights(tensors[f"client.{client}.weights"], tensors.get(f"client.{client}.sample_weights")),
        )
        for client, own in values["clients"].items()
    }
    return RunState(server, clients, tensors["newcomers"])


def _prefixed(prefix: str, params: Params) -> Params:
    return {f"{prefix}.{name}": tensor for name, tensor in params.items()}


def _named(prefix: str, tensors: dict[str, Tensor]) -> Params:
    start = f"{prefix}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def _change(values: dict[str, Any]) -> Change:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    kind = fields.pop("kind")
    return Split(**fields) if kind == Split.__name__ else Removal(**fields)
