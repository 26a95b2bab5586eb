"""Everything about a run that does not change between rounds, and who executes clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hcfl.core.admission import Admission
from hcfl.core.client import take_part
from hcfl.core.local_plan import Trainer, train
from hcfl.core.sgd import LocalSGD
from hcfl.core.state import Broadcast, ClientState, Update
from hcfl.data import Federation
from hcfl.methods import Method
from hcfl.models import Network


class Engine(Protocol):
    """Whoever executes the clients' work of a round."""

    def execute(
        self,
        setting: "Setting",
        broadcast: Broadcast,
        participants: Sequence[int],
        states: Mapping[int, ClientState],
    ) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state, in the order of the update's clients.

        Some of them may be missing, where they are on other machines, or fail: then the update says who, and why.
        """
        ...


@dataclass(frozen=True)
class Setting:
    """Everything about a run that does not change between rounds."""

    federation: Federation
    method: Method
    network: Network
    engine: Engine
    sgd: LocalSGD = field(default_factory=LocalSGD)
    participation: float = 1.0
    newcomers: Literal["persistent", "fresh"] = "persistent"
    plain_newcomers: bool = False
    """Whether newcomers find their weights without P_k."""
    evaluate_every: int = 1
    """Rounds between two measurements of Val and Test."""
    seed: int = 0
    admission: Admission = field(default_factory=Admission)

    def take_part(
        self,
        clients: Sequence[int],
        broadcast: Broadcast,
        states: Mapping[int, ClientState],
        trainer: Trainer = train,
    ) -> tuple[Update, list[ClientState]]:
        """Do the work of some clients together, on their data."""
        data = self.federation.local_data(clients)
        return take_part(self.method, self.network, self.sgd, data, broadcast, clients, states, self.seed, trainer)
