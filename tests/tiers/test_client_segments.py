"""Sums over each client's own samples."""

import torch
from torch.testing import assert_close

from hcfl.tiers.client_segments import Segments, sums_of_runs


def test_sums_and_means_are_each_client_s_own():
    segments = Segments((2, 1, 3))
    values = torch.tensor([[1.0, 0], [3, 2], [5, 5], [1, 1], [2, 2], [6, 3]])
    assert len(segments) == 3
    assert segments.samples == 6
    assert segments.index.tolist() == [0, 0, 1, 2, 2, 2]
    assert segments.sum(values).tolist() == [[4, 2], [5, 5], [9, 6]]
    assert segments.mean(values).tolist() == [[2, 1], [5, 5], [3, 2]]
    assert [part.tolist() for part in segments.split(values[:, 0])] == [[1, 3], [5], [1, 2, 6]]
    assert segments.each(torch.tensor([[7.0], [8], [9]])).flatten().tolist() == [7, 7, 8, 9, 9, 9]


def test_a_client_alone_gives_what_it_gives_among_others():
    values = torch.rand(7, 2, 3, generator=torch.Generator().manual_seed(0))
    together, alone = Segments((4, 3)), [Segments((4,)), Segments((3,))]
    for part, segments, mean, total in zip(
        torch.split(values, (4, 3)), alone, together.mean(values), together.sum(values), strict=True
    ):
        assert_close(segments.mean(part)[0], mean)
        assert_close(segments.sum(part)[0], total)
        assert segments.each(torch.ones(1, 2)).shape == (len(part), 2)


def test_sums_by_class_are_each_client_s_own():
    sums, counts = Segments((3, 0, 2)).sums_by_class(torch.tensor([1.0, 2, 4, 8, 16]), torch.tensor([1, 0, 1, 2, 2]), 3)
    assert sums.tolist() == [[2, 5, 0], [0, 0, 0], [0, 0, 24]]
    assert counts.tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 2]]


def test_a_run_of_no_rows_sums_to_nothing():
    assert sums_of_runs(torch.ones(3, 1), torch.tensor([1, 0, 2])).flatten().tolist() == [1, 0, 2]
