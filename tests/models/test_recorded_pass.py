"""Passes that a GPU records: which ones are kept, and what memory they share. The graphs here stand for CUDA's."""

import gc
import weakref

import pytest
import torch

from hcfl.models import recorded_pass
from hcfl.models.recorded import Memory, convolutions_searched
from hcfl.models.recorded_pass import MOST, Passes


class Graph:
    """A recording, replayed by doing the work again."""

    def __init__(self, work):
        self.replay = work


@pytest.fixture
def pools(monkeypatch):
    """The recordings that live in each pool of memory; as with CUDA, one that has lost them all is gone."""
    living: dict[int, weakref.WeakSet] = {}

    def recording(work, memory: Memory) -> Graph:
        if memory.pool is not None:
            assert living[memory.pool], "use_count > 0"
        memory.pool = len(living) if memory.pool is None else memory.pool
        graph = Graph(work)
        living.setdefault(memory.pool, weakref.WeakSet()).add(graph)
        work()
        return graph

    monkeypatch.setattr(recorded_pass, "recording", recording)
    return living


def test_a_pass_is_recorded_when_its_shape_comes_again_and_gives_the_same(pools):
    same = torch.empty(5, 3)  # a graph writes to the same memory in every replay
    passes = Passes(lambda parameters, inputs: torch.matmul(inputs, parameters["weight"], out=same))
    parameters = {"weight": torch.arange(6.0).view(2, 3)}
    for number in range(4):
        inputs = torch.full((5, 2), float(number))
        assert torch.equal(passes(parameters, inputs), inputs @ parameters["weight"])
        gc.collect()
        assert sum(map(len, pools.values())) == (number > 0)


def test_recordings_after_all_others_were_dropped_have_a_new_pool(pools):
    passes = Passes(lambda parameters, inputs: inputs * parameters["weight"])
    parameters = {"weight": torch.tensor(2.0)}
    for size in (1, 1, *range(2, MOST + 4), MOST + 3, 1, 1):
        passes(parameters, torch.ones(size))
        gc.collect()
    assert len(pools) > 1


def test_where_a_pass_cannot_be_recorded_it_runs_as_it_is(monkeypatch):
    def failing(work, memory):
        work()
        raise RuntimeError("operation not permitted when stream is capturing\nand more lines")

    monkeypatch.setattr(recorded_pass, "recording", failing)
    passes = Passes(lambda parameters, inputs: inputs * parameters["weight"])
    parameters, inputs = {"weight": torch.tensor(2.0)}, torch.ones(3)
    assert passes(parameters, inputs).tolist() == [2.0, 2.0, 2.0]
    with pytest.warns(
        UserWarning, match=r"passes cannot be recorded \(operation not permitted when stream is capturing\); "
    ):
        assert passes(parameters, inputs).tolist() == [2.0, 2.0, 2.0]
    assert [passes(parameters, inputs).tolist() for _ in range(3)] == [[2.0, 2.0, 2.0]] * 3  # and no further warning


def test_cudnn_searches_its_kernels_only_before_a_recording():
    before, found = torch.backends.cudnn.benchmark, []

    def out_of_memory():
        with convolutions_searched():
            found.append(torch.backends.cudnn.benchmark)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        out_of_memory()
    assert found == [True]
    assert torch.backends.cudnn.benchmark == before
