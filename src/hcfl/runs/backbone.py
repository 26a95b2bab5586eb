"""The frozen part of a network: the same in every round, so it is one file of a run, beside the checkpoints."""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import torch

from hcfl.errors import InputError
from hcfl.models import Network, Params
from hcfl.runs import state_file

FORMAT = 1
"""Version of the layout of `backbone.safetensors`."""

FILE = "backbone.safetensors"


@dataclass(frozen=True)
class Backbone:
    """What no client trains."""

    tensors: Params


def keep(folder: Path, network: Network) -> None:
    """Write the frozen tensors into the checkpoint's folder, where there are some; refuse others than it has."""
    if not network.frozen:
        return
    if not (folder / FILE).exists():
        state_file.write(folder / FILE, Backbone(network.frozen_part()), FORMAT)
    elif fingerprint(_read(folder)) != fingerprint(network.frozen_part()):
        raise InputError(f"checkpoint {folder / FILE}: is another backbone than the model has now; begin a new run")


def read(folder: Path, network: Network) -> Network:
    """Return a network with the frozen tensors of a run."""
    if not network.frozen:
        return network
    found, mine = _read(folder), network.frozen_part()
    for name in sorted(mine.keys() | found.keys()):
        if name not in mine or name not in found or mine[name].shape != found[name].shape:
            raise InputError(f"checkpoint {folder / FILE}: its weights do not fit the model, first at {name}")
    network.extractor.load_state_dict(found, strict=False)
    return network


def _read(folder: Path) -> Params:
    return state_file.read(Backbone, folder / FILE, FORMAT, f"checkpoint {folder / FILE}").tensors


def fingerprint(frozen: Params) -> str:
    """Return a hash of frozen tensors; empty where there are none. Clients that train together have the same."""
    found = sha256()
    for name, tensor in sorted(frozen.items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest() if frozen else ""
