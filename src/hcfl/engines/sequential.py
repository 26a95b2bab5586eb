"""The reference engine: one client after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hcfl.client import take_part
from hcfl.data import Federation
from hcfl.method import Method
from hcfl.models import Network
from hcfl.state import Broadcast, ClientState, Update
from hcfl.training import LocalSGD


@dataclass(frozen=True)
class Sequential:
    """Run the participants of a round in the order of their ids."""

    def execute(
        self,
        federation: Federation,
        method: Method,
        network: Network,
        sgd: LocalSGD,
        broadcast: Broadcast,
        participants: Sequence[int],
        states: Mapping[int, ClientState],
        seed: int,
    ) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state."""
        done = [
            take_part(method, network, sgd, federation.local_data([client]), broadcast, [client], states, seed)
            for client in participants
        ]
        return Update.join([update for update, _ in done]), [state for _, kept in done for state in kept]
