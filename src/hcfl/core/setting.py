"""What does not change between rounds (`Setting`), one round's work for clients (`RoundTask`), and engines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, Protocol

from torch import Tensor

from hcfl.config import AdmissionConfig
from hcfl.core.sgd import LocalSGD
from hcfl.core.state import Broadcast, ClientScores, ClientState, PersonalPart, ServerState, Update
from hcfl.data import Federation
from hcfl.data.backdoor import Backdoor
from hcfl.data.local_data import LocalData
from hcfl.methods import Method
from hcfl.models import Network


def uploads_needed(quorum: float, clients: int) -> int:
    """Return how many uploads of so many sampled clients make a quorum, a share in (0, 1]; at least one.

    >>> uploads_needed(0.7, 10)
    7
    """
    return max(1, ceil(quorum * clients - 1e-9))


def step_of(round_: int, rounds_per_step: int | None, steps: int) -> int:
    """Return the step of a round, from 0; rounds after the last step stay in it.

    >>> [step_of(round_, rounds_per_step=2, steps=2) for round_ in range(1, 6)]
    [0, 0, 1, 1, 1]
    """
    return 0 if rounds_per_step is None else min((max(1, round_) - 1) // rounds_per_step, steps - 1)


@dataclass(frozen=True)
class Setting:
    """Everything about a run that does not change between rounds."""

    federation: Federation
    method: Method
    network: Network
    engine: "Engine"
    sgd: LocalSGD
    admission: AdmissionConfig
    participation: float
    """Share of the clients that are sampled each round."""
    newcomers: Literal["persistent", "fresh"]
    plain_newcomers: bool
    """Whether newcomers find their weights without P_k."""
    evaluate_every: int
    """Rounds between two measurements of Val and Test."""
    seed: int
    personal: "Personal | None" = None
    """How clients make their personal parts; None: they make none."""
    personal_every: int | None = None
    """Rounds between two measurements of personal parts; None: only the last round's are measured."""
    attackers: frozenset[int] = frozenset()
    """Clients that attack in a simulation, which the server does not know: only measurement looks at them."""
    backdoor: Backdoor | None = None
    """The backdoor that some of them put into models, for the same purpose."""
    stops_early: bool = False
    """Whether a held-out likelihood may end the run: then clients that measure by themselves report it."""
    rounds_per_step: int | None = None
    """Rounds of each step of time; None: the data never change."""

    def step(self, round_: int) -> int:
        """Return the step of a round, from 0; rounds after the last step stay in it."""
        steps = 1 if self.rounds_per_step is None else self.federation.steps
        return step_of(round_, self.rounds_per_step, steps)

    def begins_step(self, round_: int) -> bool:
        """Whether the data of a round are others than those of the round before."""
        return self.step(round_) > self.step(round_ - 1)

    def at(self, round_: int) -> "Setting":
        """Return the setting with the data that clients hold in a round."""
        if self.personal is None:
            federation = self.federation.at(self.step(round_))
        else:
            federation = self.personal.federation_in(round_)
        return self if federation is self.federation else replace(self, federation=federation)


@dataclass(frozen=True)
class RoundTask:
    """The clients' work of one round: what an engine needs to execute it."""

    setting: Setting
    broadcast: Broadcast
    """What the server sends to each participant."""
    participants: Sequence[int]
    """Ids of the sampled clients."""
    states: Mapping[int, ClientState]
    """By client id; a client that takes part for the first time has none."""

    @property
    def needed(self) -> int:
        """How many uploads the round needs."""
        return uploads_needed(self.setting.admission.quorum, len(self.participants))

    def only(self, participants: Sequence[int]) -> "RoundTask":
        """Return the same work for some of the participants."""
        return replace(self, participants=participants)

    def attempt(self, number: int) -> "RoundTask":
        """Return the same work as the attempt with this number at the round, from 0."""
        return replace(self, broadcast=replace(self.broadcast, attempt=number))


class Personal(Protocol):
    """Makes the personal part of every client, and measures it."""

    def federation_in(self, round_: int) -> Federation:
        """Return the federation as clients train on it in a round: at first without what they have set aside."""
        ...

    def notes_in(self, round_: int) -> bool:
        """Whether a participant of a round notes what its candidates gain, if it has not yet."""
        ...

    def note(self, task: RoundTask, data: LocalData) -> Sequence[Mapping[str, Tensor]]:
        """Return what the candidates of each participant gain on the samples of `data` that it has set aside."""
        ...

    def measure(
        self, setting: Setting, state: ServerState, clients: Mapping[int, ClientState], groups: ClientScores
    ) -> tuple[ClientScores, Mapping[int, PersonalPart]]:
        """Return the groups' measurement with that of personal parts beside it, and the parts by client."""
        ...


class Engine(Protocol):
    """Executes the clients' work of a round: in this process, or on other machines."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state, in the order of the update's clients.

        Clients that fail or do not answer are left out of both; `Update.missing` names them, with the reason.
        """
        ...
