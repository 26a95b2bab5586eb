"""Forward passes on a GPU as CUDA graphs: one whose shape comes again is recorded, and then takes no work of the CPU.

A deep network for small images starts hundreds of short kernels, and the CPU needs longer to start them than the GPU to
run them. Rounds look at the same data again and again, so their passes have few shapes.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hcfl.models import kernels
from hcfl.models.recorded import Memory, recording

MOST = 6
"""How many shapes are remembered: those of training data, of Val and of Test, with a last chunk each."""

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class RecordedPass:
    """One pass, with the memory that it works in."""

    parameters: Parameters
    inputs: Tensor
    features: Tensor
    graph: torch.cuda.CUDAGraph

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Run it."""
        names = list(self.parameters)
        torch._foreach_copy_([self.parameters[name] for name in names], [parameters[name] for name in names])
        self.inputs.copy_(inputs)
        self.graph.replay()
        return self.features.clone()


@dataclass
class Passes:
    """A network's passes, and their recordings."""

    work: Callable[[Parameters, Tensor], Tensor]
    """(parameters, inputs) → features, without gradients."""
    known: dict[object, RecordedPass | None] = field(default_factory=dict)
    """By shape, the latest last; None: it came once."""
    memory: Memory = field(default_factory=lambda: Memory({}))
    works: bool = True

    def __call__(self, parameters: Parameters, inputs: Tensor) -> Tensor:
        """Run the pass, recorded where its shape has come before."""
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in parameters.items())
        key = shapes, inputs.shape, inputs.dtype, inputs.device, torch.backends.cuda.matmul.allow_tf32
        again = key in self.known
        mine = self.known.pop(key, None)
        if again and mine is None and self.works:
            mine = self._tried(parameters, inputs)
        elif not again and not self.known:
            kernels.compile_ahead(lambda: self.work(parameters, inputs))
        while len(self.known) >= MOST:
            self.known.pop(next(iter(self.known)))
        self.known[key] = mine
        return self.work(parameters, inputs) if mine is None else mine(parameters, inputs)

    def _tried(self, parameters: Parameters, inputs: Tensor) -> RecordedPass | None:
        """Record a pass; where that fails, or memory is too short for it, passes run as they are from then on."""
        try:
            return self._recorded(parameters, inputs)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"passes cannot be recorded ({reason}); going on without, slower", stacklevel=3)
            self.works = False
            self.known.clear()
            return None

    def _recorded(self, parameters: Parameters, inputs: Tensor) -> RecordedPass:
        if not any(self.known.values()):  # a pool of memory ends with the last recording that works in it
            self.memory = Memory({})
        held = {name: tensor.clone() for name, tensor in parameters.items()}
        seen, features = inputs.clone(), inputs.new_empty(0)

        def work() -> None:
            nonlocal features
            features = self.work(held, seen)

        graph = recording(work, self.memory)
        return RecordedPass(held, seen, features, graph)
