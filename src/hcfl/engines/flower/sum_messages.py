"""What travels where the server sees sums only: uploads of summands, and the four steps of SecAgg+."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hcfl.config import PrivacyConfig
from hcfl.engines.flower.exchange import brief
from hcfl.engines.flower.messages import Task
from hcfl.engines.flower.secagg import PublicKeys
from hcfl.privacy.noise import bound, deviation
from hcfl.privacy.sums import MODELS, Parts, is_model
from hcfl.privacy.vectors import length

ROUNDING = 1e-4
"""The relative rounding error of norms: uploads are in single precision."""

FAILED = "could not do its part; its own log says why"
DIVERGED = "training diverged"
"""All that a client says of its problems where the run is private."""


@dataclass(frozen=True)
class Upload:
    """What a client answers: its summands, noised or masked, or why there are none."""

    experiment: str
    round: int
    client: int
    parts: Mapping[str, Tensor]
    problem: str = ""
    lost: bool = False
    """Whether the client no longer has the state that the server knows of: it can only start anew."""
    diverged: bool = False
    """Whether the client's training diverged."""
    unreadable: tuple[int, ...] = ()
    """With SecAgg+: the neighbours whose shares the client cannot read; then it sends no summands."""


@dataclass(frozen=True)
class AskKeys:
    """Make keys for a new sum."""

    session: str
    client: int


@dataclass(frozen=True)
class AskShares:
    """Give the neighbours shares of your secrets."""

    session: str
    peers: Mapping[int, PublicKeys]


@dataclass(frozen=True)
class Shares:
    """Encrypted shares, by the neighbour that can read them."""

    ciphertexts: Mapping[int, str]
    commitment: str = ""
    """What the client says of the seed of its own mask (`secagg.commitment`)."""


@dataclass(frozen=True)
class SealedTask:
    """A client's part of a round, whose summands come back masked; and the shares of its neighbours."""

    session: str
    task: Task
    ciphertexts: Mapping[int, str]
    clients: int
    """In the sum, at most."""


@dataclass(frozen=True)
class AskReveal:
    """Return shares, so that the sum can be opened."""

    session: str
    alive: tuple[int, ...]
    dropped: tuple[int, ...]


def joined(parts: Parts) -> NDArray[np.float64]:
    """Return summands as one vector, in the order of their names."""
    return torch.cat([parts[name].double().reshape(-1) for name in sorted(parts)]).numpy()


def whole_numbers(parts: Parts) -> NDArray[np.uint64]:
    """Return masked summands as one vector."""
    return torch.cat([parts[name].reshape(-1) for name in sorted(parts)]).numpy().view(np.uint64)


def separated(vector: Tensor, like: Parts) -> dict[str, Tensor]:
    """Return a vector as summands with these names and shapes."""
    names = sorted(like)
    pieces = torch.split(vector, [like[name].numel() for name in names])
    return {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}


UNLIKELY = 1e-9
"""The chance that the noise of an honest client is longer than what is let in."""


def longest_upload(privacy: PrivacyConfig, parts: Parts) -> float:
    """Return the largest norm that an upload with noise can have.

    Without noise it is `bound`: changes of models have at most `clip`, and so has each kind of shares. A client's own
    noise z (local-dp) has d numbers of deviation σ, and P(‖z‖ > σ·(√d + t)) ≤ exp(−t²/2): t is chosen so that this is
    `UNLIKELY`.
    """
    assert privacy.clip is not None
    largest = bound(parts, privacy.clip) * (1 + ROUNDING)
    if privacy.mode != "local-dp":
        return largest
    numbers = sum(part.numel() for part in parts.values())
    return largest + deviation(privacy, parts, 1) * (sqrt(numbers) + sqrt(-2 * log(UNLIKELY)))


def problem_with_bounds(parts: Parts, task: Task, privacy: PrivacyConfig) -> str | None:
    """Return what is wrong with summands that should be clipped, in a run with noise."""
    assert privacy.clip is not None
    clusters, shares = len(task.clusters), {name: part for name, part in parts.items() if not is_model(name)}
    forms = {"mass": (clusters,), "counts": (clusters, len(task.common.class_names))}
    for name, part in shares.items():
        if tuple(part.shape) != forms.get(name):
            return f"sent {name} of shape {tuple(part.shape)}, but {forms.get(name, 'nothing')} is needed"
    models = {name: part for name, part in parts.items() if is_model(name)}
    kinds: list[Parts] = [models, *({name: part} for name, part in shares.items())]
    longest = longest_upload(privacy, parts)
    if privacy.mode == "central-dp":  # without noise, each kind shows whether it was clipped
        longest = privacy.clip * (1 + ROUNDING)
    else:
        kinds = [parts]
    found = max(length(kind) for kind in kinds)
    return None if found <= longest else f"sent an upload of norm {found:.3g}, but at most {longest:.3g} is possible"


def problem_with_upload(
    upload: Upload, task: Task, dtype: torch.dtype, privacy: PrivacyConfig | None = None
) -> str | None:
    """Return what is wrong with an upload, if something is: then it does not count.

    `privacy` says how uploads were to be clipped, where the server can see it.
    """
    if upload.problem:
        return brief(upload.problem)
    if (upload.experiment, upload.round, upload.client) != (task.common.experiment, task.round, task.client):
        return f"answered as client {upload.client} in round {upload.round} of {upload.experiment}"
    asked = {
        prefix + name: tensor.shape
        for part, prefix in MODELS.items()
        for name, tensor in getattr(task.ensemble, part).items()
        if tensor.is_floating_point()
    }
    if {name: part.shape for name, part in upload.parts.items() if is_model(name)} != asked:
        return "sent changes that are not those of the model"
    if any(part.dtype != dtype or not part.isfinite().all() for part in upload.parts.values()):
        return "sent numbers that are not finite"
    return None if privacy is None else problem_with_bounds(upload.parts, task, privacy)


def unlike(uploads: Mapping[int, Upload]) -> list[int]:
    """Return the clients whose summands are of other kinds or shapes than those of most: they cannot be added."""
    kinds = {
        client: tuple((name, upload.parts[name].shape) for name in sorted(upload.parts))
        for client, upload in uploads.items()
    }
    usual = Counter(kinds.values()).most_common(1)
    return [client for client, kind in kinds.items() if kind != usual[0][0]]
