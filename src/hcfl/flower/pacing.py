"""When the next step begins: some time after the one before, in which the files of clients grow."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from hcfl.core.setting import Engine, RoundTask
from hcfl.core.state import ClientState, Update


@dataclass
class Paced:
    """An engine whose steps begin at least some seconds after each other."""

    engine: Engine
    seconds: float
    step: int
    """The step that the run is in, from 0."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        self._began = self.clock()

    def execute(self, task: RoundTask) -> tuple[Update, list[ClientState]]:
        """Wait where a step begins, then execute the round."""
        step = task.setting.step(task.broadcast.round)
        if step > self.step:
            left = self._began + self.seconds - self.clock()
            if left > 0:
                print(f"Step {step + 1} begins in {left:.0f} seconds", flush=True)
                self.sleep(left)
            self.step, self._began = step, self.clock()
        return self.engine.execute(task)
