"""The reference engine: one client after another; on a CPU, several side by side."""

from dataclasses import dataclass

from hcfl.core.client import take_part
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.engines.workers import Workers


@dataclass(frozen=True)
class Sequential:
    """Run the participants of a round in the order of their ids."""

    workers: Workers | None = None
    """Runs several clients side by side, with the same result; None: one after another."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state."""
        if self.workers is None:
            done = [take_part(task.only([client])) for client in task.participants]
        else:
            done = self.workers.execute(task)
        return Update.join([update for update, _ in done]), [state for _, kept in done for state in kept]
