"""Sums over each client's own samples."""

import torch
from torch.testing import assert_close

from hcfl.tiers.client_segments import Owners, sums_of_runs


def test_sums_and_means_are_each_client_s_own():
    owners = Owners((2, 1, 3))
    values = torch.tensor([[1.0, 0], [3, 2], [5, 5], [1, 1], [2, 2], [6, 3]])
    assert len(owners) == 3
    assert owners.samples == 6
    assert owners.index.tolist() == [0, 0, 1, 2, 2, 2]
    assert owners.sum(values).tolist() == [[4, 2], [5, 5], [9, 6]]
    assert owners.mean(values).tolist() == [[2, 1], [5, 5], [3, 2]]
    assert [part.tolist() for part in owners.split(values[:, 0])] == [[1, 3], [5], [1, 2, 6]]
    assert owners.each(torch.tensor([[7.0], [8], [9]])).flatten().tolist() == [7, 7, 8, 9, 9, 9]


def test_a_client_alone_gives_what_it_gives_among_others():
    values = torch.rand(7, 2, 3, generator=torch.Generator().manual_seed(0))
    together, alone = Owners((4, 3)), [Owners((4,)), Owners((3,))]
    for part, owners, mean, total in zip(
        torch.split(values, (4, 3)), alone, together.mean(values), together.sum(values), strict=True
    ):
        assert_close(owners.mean(part)[0], mean)
        assert_close(owners.sum(part)[0], total)
        assert owners.each(torch.ones(1, 2)).shape == (len(part), 2)


def test_sums_by_class_are_each_client_s_own():
    sums, counts = Owners((3, 0, 2)).sums_by_class(torch.tensor([1.0, 2, 4, 8, 16]), torch.tensor([1, 0, 1, 2, 2]), 3)
    assert sums.tolist() == [[2, 5, 0], [0, 0, 0], [0, 0, 24]]
    assert counts.tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 2]]


def test_a_run_of_no_rows_sums_to_nothing():
    assert sums_of_runs(torch.ones(3, 1), torch.tensor([1, 0, 2])).flatten().tolist() == [1, 0, 2]
