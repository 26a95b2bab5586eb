"""Makes and measures the personal parts of all clients of a federation, in one process."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hcfl.config import PersonalKind
from hcfl.core.evaluation import held_out_inputs, scores_of
from hcfl.core.local_plan import Trainer
from hcfl.core.predictions import Predictions, kept_models, predictions_of_all
from hcfl.core.server import shares
from hcfl.core.setting import Setting
from hcfl.core.state import ClientScores, ClientState, PersonalPart, ServerState
from hcfl.models.ensemble import Ensemble
from hcfl.models.inputs import some
from hcfl.models.tasks import Task
from hcfl.personal.clients import Clients
from hcfl.personal.fine_tune import Tuning, main_models
from hcfl.personal.inner_split import Gains, Pool, together
from hcfl.personal.links import scoring_of
from hcfl.personal.making import candidates_of, gains_of, make, predict


@dataclass(frozen=True)
class PersonalParts:
    """Personal parts of one kind, with a trainer for whole models."""

    kind: PersonalKind
    trainer: Trainer
    start: Ensemble
    """The model that the federation began with, as a whole model."""

    def possible(self, task: Task, gains: Gains) -> bool:
        """Whether a client can have found this of the parts that it chooses among."""
        return gains.possible(len(candidates_of(self.kind, task)), scoring_of(task).largest)

    def measure(
        self, setting: Setting, state: ServerState, clients: Mapping[int, ClientState], groups: ClientScores
    ) -> tuple[ClientScores, Mapping[int, PersonalPart]]:
        """Make the parts from training data, and measure them on held-out data."""
        federation, network, method = setting.federation, setting.network, setting.method
        everyone = list(range(federation.clients))
        whole, held = together(federation)
        data = whole.local_data(everyone)
        seen = predictions_of_all(whole, network, method, state, clients, data.inputs, data.segments, data.answers)
        all_clients = Clients(
            ids=everyone,
            data=data,
            held=held,
            group=seen,
            class_shares=state.weights @ shares(method, state, federation.classes),
            models=main_models(state.ensemble, state.weights, kept_models(clients, federation.clients)),
            seed=setting.seed,
        )
        gains = self.gains(setting, all_clients)
        made = make(self.kind, all_clients, self._tuning(setting), gains, Pool.of(gains))
        parts = dict(enumerate(made))
        mixed = predictions_with(setting, state, clients, parts)
        right = scores_of(network.task, mixed, federation.answers[federation.val_rows], federation.val_segments)
        return replace(groups, personal=right, kinds=tuple(part.kind for part in made)), parts

    def gains(self, setting: Setting, clients: Clients) -> Gains:
        """Score what clients can add to their groups' models, on the samples that they set aside."""
        return gains_of(self.kind, clients, self._tuning(setting))

    def part(self, setting: Setting, client: Clients, gains: Gains | None, pool: Pool) -> PersonalPart:
        """Make the part of one client, from what it and all clients found."""
        found = self.gains(setting, client) if gains is None else gains
        return make(self.kind, client, self._tuning(setting), found, pool)[0]

    def _tuning(self, setting: Setting) -> Tuning:
        return Tuning(setting.network, self.trainer, setting.sgd, self.start)


def predictions_with(
    setting: Setting, state: ServerState, clients: Mapping[int, ClientState], parts: Mapping[int, PersonalPart]
) -> Tensor:
    """Predict all held-out samples, one client's after another's, with personal parts, in the form of the task."""
    federation, network = setting.federation, setting.network
    inputs, segments = held_out_inputs(federation), federation.val_segments
    groups = predictions_of_all(federation, network, setting.method, state, clients, inputs, segments)
    mixed = groups.mixed.clone()
    for client, part in parts.items():
        at = torch.nonzero(segments.index == client).flatten().to(mixed.device)
        if len(at) and part.kind != "none":
            mine = Predictions(groups.mixed[at], groups.features[at])
            mixed[at] = predict(network, part, mine, some(inputs, at))
    return mixed
