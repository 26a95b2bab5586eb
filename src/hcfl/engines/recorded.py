"""Training steps as CUDA graphs: recorded once for each shape, then replayed without any work of the CPU."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hcfl.models import Params

Held = dict[str, Params]
"""What steps read, and change in place: parameters, momentum, statistics, by their roles."""

Batch = dict[str, Tensor]
"""What is new in every step."""

Advance = Callable[[Held, Batch], object]
"""One step. It changes `held` in place, and never waits for the GPU; what it returns is not used."""


@dataclass(frozen=True)
class Recorded:
    """A step of one shape, with the memory that it works in."""

    held: Held
    batch: Batch
    graph: torch.cuda.CUDAGraph

    @classmethod
    def of(cls, advance: Advance, held: Held, batch: Batch) -> "Recorded":
        """Record a step. What `held` contains stays as it is; the recording has its own copy."""
        mine, its = _cloned(held), {name: tensor.clone() for name, tensor in batch.items()}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):  # kernels are compiled, and libraries find their algorithms, outside the recording
                advance(mine, its)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            advance(mine, its)
        return cls(mine, its, graph)

    def load(self, held: Held) -> None:
        """Start from these values."""
        mine = [tensor for its in self.held.values() for tensor in its.values()]
        torch._foreach_copy_(mine, [held[part][name] for part, its in self.held.items() for name in its])

    def __call__(self, batch: Batch) -> None:
        """Take a step on a batch."""
        for name, tensor in self.batch.items():
            tensor.copy_(batch[name])
        self.graph.replay()


@dataclass
class Recorder:
    """The recordings of a run, one for each phase of training; a new shape replaces the old one's memory."""

    recordings: dict[str, tuple[object, Recorded]] = field(default_factory=dict)
    works: bool = True

    def descend(self, phase: str, kind: object, advance: Advance, held: Held, batches: Iterable[Batch]) -> Held:
        """Take a step on every batch; all have the same shape. Return what `held` became; it is changed, too.

        `kind` is what, beside shapes, makes one step differ from another.
        """
        recorded: Recorded | None = None
        for batch in batches:
            if recorded is None and self.works:
                recorded = self._recorded(phase, (kind, _shapes(held), _shapes({"batch": batch})), advance, held, batch)
            if recorded is None:
                advance(held, batch)
            else:
                recorded(batch)
        return held if recorded is None else _cloned(recorded.held)

    def _recorded(self, phase: str, key: object, advance: Advance, held: Held, batch: Batch) -> Recorded | None:
        known = self.recordings.get(phase)
        if known is None or known[0] != key:
            self.recordings.pop(phase, None)
            del known
            try:
                known = key, Recorded.of(advance, held, batch)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                warnings.warn(f"training steps cannot be recorded ({reason}); going on without, slower", stacklevel=2)
                self.works = False
                return None
            self.recordings[phase] = known
        known[1].load(held)
        return known[1]


def _cloned(held: Held) -> Held:
    return {part: {name: tensor.clone() for name, tensor in its.items()} for part, its in held.items()}


def _shapes(held: Held) -> tuple[object, ...]:
    return tuple((part, name, tensor.shape, tensor.dtype) for part, its in held.items() for name, tensor in its.items())
