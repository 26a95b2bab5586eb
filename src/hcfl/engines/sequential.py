"""The reference engine: one client after another."""

from dataclasses import dataclass

from hcfl.core.client import take_part
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Update


@dataclass(frozen=True)
class Sequential:
    """Run the participants of a round in the order of their ids."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state."""
        done = [take_part(task.only([client])) for client in task.participants]
        return Update.join([update for update, _ in done]), [state for _, kept in done for state in kept]
