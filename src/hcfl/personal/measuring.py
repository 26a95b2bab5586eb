"""Makes and measures the personal parts of all clients of a federation, in one process; or what one client needs of it.

Up to the choosing round, clients train without what they have set aside. A client that takes part after it first notes
what its candidates gain on these samples, and trains on them from then on; so its part is chosen with samples that no
model had seen, and groups learn from all samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from hcfl.config import PersonalKind
from hcfl.core.evaluation import held_out_inputs, scores_of
from hcfl.core.local_plan import Trainer
from hcfl.core.predictions import Predictions, kept_models, predictions_of_all
from hcfl.core.received import known_weights, predicted
from hcfl.core.server import shares
from hcfl.core.setting import RoundTask, Setting
from hcfl.core.state import ClientScores, ClientState, PersonalPart, ServerState
from hcfl.data import Federation
from hcfl.data.local_data import LocalData
from hcfl.models.ensemble import Ensemble
from hcfl.models.inputs import some
from hcfl.models.tasks import Task
from hcfl.personal.clients import Clients
from hcfl.personal.fine_tune import Tuning, main_models
from hcfl.personal.inner_split import OF_SAMPLES, Gains, held_of, set_aside
from hcfl.personal.links import scoring_of
from hcfl.personal.making import candidates_of, gains_of, make, predict
from hcfl.personal.stacking import common_weights


@dataclass(frozen=True)
class PersonalParts:
    """Personal parts of one kind, with a trainer for whole models."""

    kind: PersonalKind
    trainer: Trainer
    start: Ensemble
    """The model that the federation began with, as a whole model."""
    federation: Federation
    """With all training samples of each client."""
    after: int
    """The choosing round: the last one in which clients train without what they have set aside."""

    def possible(self, task: Task, gains: Gains) -> bool:
        """Whether a client can have found this of the parts that it chooses among."""
        return gains.possible(len(candidates_of(self.kind, task)), scoring_of(task).largest)

    @cached_property
    def apart(self) -> Federation:
        """The federation without what clients have set aside."""
        return set_aside(self.federation)

    def federation_in(self, round_: int) -> Federation:
        """Return the federation as clients train on it in a round."""
        return self.federation if self.notes_in(round_) else self.apart

    def notes_in(self, round_: int) -> bool:
        """Whether a participant of a round notes what its candidates gain, if it has not yet."""
        return round_ > self.after

    def note(self, task: RoundTask, data: LocalData) -> list[Mapping[str, Tensor]]:
        """Return what the candidates of each participant gain on the samples of `data` that it has set aside."""
        return by_client(self.gains(task.setting, clients_of(task, data)))

    def measure(
        self, setting: Setting, state: ServerState, clients: Mapping[int, ClientState], groups: ClientScores
    ) -> tuple[ClientScores, Mapping[int, PersonalPart]]:
        """Make the parts from training data, and measure them on held-out data."""
        federation, network, method = self.federation, setting.network, setting.method
        everyone = list(range(federation.clients))
        data = federation.local_data(everyone)
        inputs, segments = data.inputs, data.segments
        seen = predictions_of_all(federation, network, method, state, clients, inputs, segments, data.answers)
        all_clients = Clients(
            ids=everyone,
            data=data,
            held=held_of(data.segments),
            group=seen,
            class_shares=state.weights @ shares(method, state, federation.classes),
            models=main_models(state.ensemble, state.weights, kept_models(clients, federation.clients)),
            seed=setting.seed,
        )
        noted = [clients[client].noted if client in clients else {} for client in everyone]
        gains = self._with_notes(setting, all_clients, noted)
        made = make(self.kind, all_clients, self._tuning(setting), gains, common_weights(gains))
        parts = dict(enumerate(made))
        mixed = predictions_with(setting, state, clients, parts)
        right = scores_of(network.task, mixed, federation.answers[federation.val_rows], federation.val_segments)
        return replace(groups, personal=right, kinds=tuple(part.kind for part in made)), parts

    def gains(self, setting: Setting, clients: Clients) -> Gains:
        """Score what clients can add to their groups' models, on the samples that they set aside."""
        return gains_of(self.kind, clients, self._tuning(setting))

    def part(self, setting: Setting, client: Clients, gains: Gains, common: Tensor) -> PersonalPart:
        """Make the part of one client, from what it found and the weights of all clients."""
        return make(self.kind, client, self._tuning(setting), gains, common)[0]

    def _with_notes(self, setting: Setting, clients: Clients, noted: Sequence[Mapping[str, Tensor]]) -> Gains:
        """Return what all clients found: what they have noted; who has not trained on what it set aside scores now."""
        missing = torch.tensor([not mine for mine in noted])
        late = iter(by_client(self.gains(setting, some_of(clients, missing))) if bool(missing.any()) else ())
        each = [mine or next(late) for mine in noted]
        return Gains(**{name: torch.cat([mine[name] for mine in each]) for name in each[0]})

    def _tuning(self, setting: Setting) -> Tuning:
        return Tuning(setting.network, self.trainer, setting.sgd, self.start)


def by_client(gains: Gains) -> list[Mapping[str, Tensor]]:
    """Return what each client found, as it notes it."""
    tables = {name: table for name, table in vars(gains).items() if table is not None}
    split = {
        name: gains.segments.split(table) if name in OF_SAMPLES else table.split(1) for name, table in tables.items()
    }
    return [{name: parts[row] for name, parts in split.items()} for row in range(len(gains.samples))]


def clients_of(task: RoundTask, data: LocalData) -> Clients:
    """Return the participants as their parts are chosen or made: their training data, and what their groups predict."""
    weights = known_weights(task, data.segments).client
    states = [task.states.get(client) for client in task.participants]
    return Clients(
        ids=task.participants,
        data=data,
        held=held_of(data.segments),
        group=predicted(task, data.inputs, data.segments, data.answers),
        class_shares=weights @ task.broadcast.class_shares,
        models=main_models(
            task.broadcast.ensemble, weights, [None if state is None else state.own for state in states]
        ),
        seed=task.setting.seed,
    )


def some_of(clients: Clients, which: Tensor) -> Clients:
    """Return some of the clients, (clients,)."""
    if bool(which.all()):
        return clients
    rows, samples = torch.nonzero(which).flatten(), clients.segments.each(which.unsqueeze(1))[:, 0]
    at = samples.to(clients.group.features.device)
    return replace(
        clients,
        ids=[clients.ids[row] for row in rows.tolist()],
        data=clients.data.only(which),
        held=clients.held[samples],
        group=Predictions(**{name: table[at] for name, table in vars(clients.group).items() if table is not None}),
        class_shares=clients.class_shares[rows],
        models=clients.models.map(lambda tensor: tensor[rows.to(tensor.device)]),
    )


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
