"""All clients at once: one shared pass of the extractor, and local training as one tensor program."""

from dataclasses import dataclass

from hcfl.core.client import take_part
from hcfl.core.local_plan import Job, Trained, train
from hcfl.core.setting import RoundTask
from hcfl.core.state import ClientState, Update
from hcfl.engines.batched_training import train_together
from hcfl.engines.drawing import one_by_one
from hcfl.engines.stacked import stacked
from hcfl.models import Network
from hcfl.models.recorded import Recorder


@dataclass(frozen=True)
class Batched:
    """Run the participants of a round together; they train in chunks that fit memory."""

    compiled: bool = False
    """Whether to compile the network: minutes at the first round of its kind, then several times faster on a GPU."""
    recorder: Recorder | None = None
    """Where training steps are recorded as CUDA graphs, on a GPU."""

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Return what the participants send, and each one's new state."""
        return take_part(task, self.train)

    def train(self, network: Network, job: Job) -> Trained:
        """Train all clients' models together; layers that draw random numbers take one client after another."""
        if one_by_one(network, job.data.inputs):
            return train(network, job)
        return train_together(stacked(network, self.compiled), job, self.recorder)
