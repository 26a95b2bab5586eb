"""The reference engine: one client after another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hcfl.core.setting import Setting
from hcfl.core.state import Broadcast, ClientState, Update


@dataclass(frozen=True)
class Sequential:
    """Run the participants of a round in the order of their ids."""

    def execute(
        self,
        setting: Setting,
        broadcast: Broadcast,
        participants: Sequence[int],
        states: Mapping[int, ClientState],
    ) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state."""
        done = [setting.take_part([client], broadcast, states) for client in participants]
        return Update.join([update for update, _ in done]), [state for _, kept in done for state in kept]
