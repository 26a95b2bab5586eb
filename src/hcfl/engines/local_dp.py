"""Differential privacy in a simulation: another engine's work, as the server of a private run would see it.

Noise comes from the run's seed, so that a run can be repeated. That protects no client: it shows what privacy costs.
Where clients are real, `hcfl.flower` draws noise from the operating system.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl import rng
from hcfl.config import PrivacyConfig
from hcfl.core.admission import only
from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.privacy.noise import deviation
from hcfl.privacy.rules import scaled_shares
from hcfl.privacy.sums import averaged, in_units, is_model, one_vote_each, summands
from hcfl.privacy.uploads import join_uploads, private_upload
from hcfl.privacy.vectors import clipped, noised
from hcfl.tiers import Prototypes

PURPOSE = "privacy"
"""What the noise of a run is drawn for."""


@dataclass(frozen=True)
class Private:
    """Let another engine do the work; what leaves it is clipped, and has noise."""

    engine: Engine
    privacy: PrivacyConfig

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the server learns, and each participant's new state, which stays with it."""
        update, kept = self.engine.execute(task)
        if not update.finite.all():  # training diverged: nothing else is told, so the run ends here, and says so
            broken = ~update.finite
            return only(update, broken), [state for state, bad in zip(kept, broken.tolist(), strict=True) if bad]
        sent, cpu = task.broadcast.ensemble, torch.device("cpu")
        device = next(iter(sent.heads.values())).device
        update, task = _on(update, cpu), replace(task, broadcast=replace(task.broadcast, ensemble=sent.to(cpu)))
        each = [only(update, mine) for mine in torch.eye(len(update.clients), dtype=torch.bool)]
        told = self._told if task.setting.method.adaptation.adaptive else self._summed
        return _on(told(task, each), device), kept

    def _told(self, task: RoundTask, each: Sequence[Update]) -> Update:
        """Return every client's upload, each with its own noise."""
        method, broadcast = task.setting.method, task.broadcast
        return join_uploads(
            [private_upload(method, self.privacy, broadcast, one, self._generator(task, *one.clients)) for one in each]
        )

    def _summed(self, task: RoundTask, each: Sequence[Update]) -> Update:
        """Return what the sums of all uploads tell, as on Flower."""
        privacy, clients = self.privacy, tuple(client for one in each for client in one.clients)
        assert privacy.clip is not None
        sums: dict[str, Tensor] = {}
        for one in each:
            parts = self._bounded(task, one)
            if privacy.mode == "local-dp":
                spread = deviation(privacy, parts, 1)
                parts = noised(parts, spread, self._generator(task, *one.clients))
            sums = {name: sums.get(name, 0) + part for name, part in parts.items()}
        spread = deviation(privacy, sums, len(clients))
        if privacy.mode == "central-dp":
            sums = noised(sums, spread, self._generator(task))
        size = len(clients) * sum(part.numel() for part in sums.values()) * torch.float32.itemsize
        weights = task.broadcast.weights[list(clients)]
        update = averaged(
            task.broadcast.ensemble, in_units(sums, privacy.clip), clients, weights, size, spread / privacy.clip
        )
        return replace(update, held_out=None)  # the simulation measures Val itself

    def _bounded(self, task: RoundTask, one: Update) -> dict[str, Tensor]:
        """Return a client's summands: models clipped, shares of samples scaled to be as large, all else left out."""
        assert self.privacy.clip is not None
        parts = summands(task.broadcast.ensemble, one_vote_each(one))
        models = clipped({name: part for name, part in parts.items() if is_model(name)}, self.privacy.clip)
        return models | scaled_shares(task.setting.method, parts, self.privacy.clip)

    @staticmethod
    def _generator(task: RoundTask, *client: int) -> torch.Generator:
        return rng.torch_generator(task.setting.seed, PURPOSE, task.broadcast.round, *client)


def _on(update: Update, device: torch.device) -> Update:
    """Move what lies where the models are: noise is drawn and added on the CPU."""
    prototypes = update.prototypes
    if prototypes is not None:
        parts = (prototypes.class_means, prototypes.class_counts, prototypes.mean)
        prototypes = Prototypes(*(part.to(device) for part in parts))
    signatures = {client: signature.to(device) for client, signature in update.signatures.items()}
    return replace(update, models=update.models.to(device), prototypes=prototypes, signatures=signatures)
