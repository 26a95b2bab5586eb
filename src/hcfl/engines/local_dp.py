"""Differential privacy in a simulation: another engine's work, as the server of a private run would see it.

Noise comes from the run's seed, so that a run can be repeated. That protects nobody: it shows what privacy costs. Where
clients are real, `hcfl.flower` draws noise from the operating system.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl import rng
from hcfl.config import PrivacyConfig
from hcfl.core.admission import only
from hcfl.core.setting import Engine, Setting
from hcfl.core.state import Broadcast, ClientState, Update
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

    def execute(
        self,
        setting: Setting,
        broadcast: Broadcast,
        participants: Sequence[int],
        states: Mapping[int, ClientState],
    ) -> tuple[Update, list[ClientState]]:
        """Return what the server learns, and each participant's new state, which stays with it."""
        update, kept = self.engine.execute(setting, broadcast, participants, states)
        if not update.finite.all():  # training diverged: nothing else is told, so the run ends here, and says so
            broken = ~update.finite
            return only(update, broken), [state for state, bad in zip(kept, broken.tolist(), strict=True) if bad]
        device, cpu = next(iter(broadcast.ensemble.heads.values())).device, torch.device("cpu")
        update, broadcast = _on(update, cpu), replace(broadcast, ensemble=broadcast.ensemble.to(cpu))
        each = [only(update, mine) for mine in torch.eye(len(update.clients), dtype=torch.bool)]
        told = self._told if setting.method.adaptation.adaptive else self._summed
        return _on(told(setting, broadcast, each), device), kept

    def _told(self, setting: Setting, broadcast: Broadcast, each: Sequence[Update]) -> Update:
        """Return everybody's upload, with its own noise."""
        return join_uploads(
            [
                private_upload(
                    setting.method, self.privacy, broadcast, one, self._generator(setting, broadcast, *one.clients)
                )
                for one in each
            ]
        )

    def _summed(self, setting: Setting, broadcast: Broadcast, each: Sequence[Update]) -> Update:
        """Return what the sums of all uploads tell, as on Flower."""
        privacy, clients = self.privacy, tuple(client for one in each for client in one.clients)
        assert privacy.clip is not None
        sums: dict[str, Tensor] = {}
        for one in each:
            parts = self._bounded(setting, broadcast, one)
            if privacy.mode == "local-dp":
                spread = deviation(privacy, parts, 1)
                parts = noised(parts, spread, self._generator(setting, broadcast, *one.clients))
            sums = {name: sums.get(name, 0) + part for name, part in parts.items()}
        spread = deviation(privacy, sums, len(clients))
        if privacy.mode == "central-dp":
            sums = noised(sums, spread, self._generator(setting, broadcast))
        size = len(clients) * sum(part.numel() for part in sums.values()) * torch.float32.itemsize
        weights = broadcast.weights[list(clients)]
        update = averaged(
            broadcast.ensemble, in_units(sums, privacy.clip), clients, weights, size, spread / privacy.clip
        )
        return replace(update, held_out=None)  # Val is measured by whoever simulates

    def _bounded(self, setting: Setting, broadcast: Broadcast, one: Update) -> dict[str, Tensor]:
        """Return a client's summands: models clipped, shares of samples scaled to be as large, all else left out."""
        assert self.privacy.clip is not None
        parts = summands(broadcast.ensemble, one_vote_each(one))
        models = clipped({name: part for name, part in parts.items() if is_model(name)}, self.privacy.clip)
        return models | scaled_shares(setting.method, parts, self.privacy.clip)

    @staticmethod
    def _generator(setting: Setting, broadcast: Broadcast, *client: int) -> torch.Generator:
        return rng.torch_generator(setting.seed, PURPOSE, broadcast.round, *client)


def _on(update: Update, device: torch.device) -> Update:
    """Move what lies where the models are: noise is drawn and added on the CPU."""
    prototypes = update.prototypes
    if prototypes is not None:
        parts = (prototypes.class_means, prototypes.class_counts, prototypes.mean)
        prototypes = Prototypes(*(part.to(device) for part in parts))
    signatures = {client: signature.to(device) for client, signature in update.signatures.items()}
    return replace(update, models=update.models.to(device), prototypes=prototypes, signatures=signatures)
