"""Work on a GPU as CUDA graphs: recorded once for each shape, then replayed without any work of the CPU."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hcfl.models import kernels

Held = dict[str, dict[str, Tensor]]
"""What steps read, and change in place: parameters, momentum, statistics, by their roles."""

Batch = dict[str, Tensor]
"""What is new in every step."""

Advance = Callable[[Held, Batch], object]
"""One step. It changes `held` in place, and never waits for the GPU; what it returns is not used."""


@dataclass
class Memory:
    """What steps of one kind work in, and their recordings, one for each shape of batch."""

    held: Held
    graphs: dict[object, tuple[Batch, torch.cuda.CUDAGraph]] = field(default_factory=dict)
    pool: Any = None
    """The memory that recordings share for what lies between: only one is replayed at a time."""

    def load(self, held: Held) -> None:
        """Start from these values."""
        mine = [tensor for its in self.held.values() for tensor in its.values()]
        torch._foreach_copy_(mine, [held[part][name] for part, its in self.held.items() for name in its])

    def replay(self, advance: Advance, batch: Batch) -> None:
        """Take a step on a batch; it is recorded first where its shape is new."""
        shape = _shapes({"batch": batch})
        if shape not in self.graphs:
            self.graphs[shape] = self._recorded(advance, batch)
        mine, graph = self.graphs[shape]
        torch._foreach_copy_(list(mine.values()), [batch[name] for name in mine])
        graph.replay()

    def _recorded(self, advance: Advance, batch: Batch) -> tuple[Batch, torch.cuda.CUDAGraph]:
        """Record a step. What is held is afterwards as it was before."""
        before, its = cloned(self.held), {name: tensor.clone() for name, tensor in batch.items()}
        try:
            return its, recording(lambda: advance(self.held, its), self)
        finally:
            self.load(before)


def recording(work: Callable[[], object], memory: Memory) -> torch.cuda.CUDAGraph:
    """Record work that always reads and writes the same memory."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside), convolutions_searched():
        kernels.compile_ahead(work)
        for _ in range(2):  # libraries find their algorithms outside the recording
            work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory.pool):
        work()
    memory.pool = memory.pool or graph.pool()
    return graph


@contextmanager
def convolutions_searched() -> Iterator[None]:
    """Let cuDNN measure which of its kernels are fastest, for convolutions that are not ours; then as before.

    Convolutions of many clients are one with a group for each. What cuDNN chooses for these without a measurement can
    be a kernel that runs one group after another.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


@dataclass
class Recorder:
    """The recordings of a run's training; for each phase those of one kind of step, so that memory does not grow."""

    memories: dict[str, tuple[object, Memory]] = field(default_factory=dict)
    works: bool = True

    def descend(
        self, phase: str, kind: object, advance: Advance, held: Held, batches: Iterable[Batch], changed: Sequence[str]
    ) -> Held:
        """Take a step on every batch, from `held`, which stays as it is. Return what the changed parts became.

        `kind` is what, beside shapes, makes one step differ from another.
        """
        memory = self._memory(phase, (kind, _shapes(held)), held)
        for batch in batches:
            if self.works:
                try:
                    memory.replay(advance, batch)
                    continue
                except torch.OutOfMemoryError:
                    raise
                except RuntimeError as error:
                    reason = str(error).strip().splitlines()[0]
                    text = f"training steps cannot be recorded ({reason}); going on without, slower"
                    warnings.warn(text, stacklevel=2)
                    self.works = False
            advance(memory.held, batch)
        return held | cloned({part: memory.held[part] for part in changed})

    def _memory(self, phase: str, key: object, held: Held) -> Memory:
        known = self.memories.get(phase)
        if known is not None and known[0] == key:
            known[1].load(held)
            return known[1]
        self.memories.pop(phase, None)
        del known
        memory = Memory(cloned(held))
        self.memories[phase] = key, memory
        return memory


def cloned(held: Held) -> Held:
    """Return a copy in memory of its own; what is expanded is written out."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    return {part: {name: copy(tensor) for name, tensor in its.items()} for part, its in held.items()}


def _shapes(held: Held) -> tuple[object, ...]:
    return tuple((part, name, tensor.shape, tensor.dtype) for part, its in held.items() for name, tensor in its.items())
