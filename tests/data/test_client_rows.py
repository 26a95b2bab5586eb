"""Rows of clients as one array."""

import numpy as np
import torch

from hcfl.data.client_rows import ClientRows

PARTS = [torch.tensor([4, 1]), torch.tensor([], dtype=torch.long), torch.tensor([7, 8, 9])]


def test_each_client_gets_its_own_rows():
    rows = ClientRows.of(PARTS)
    assert [part.tolist() for part in rows] == [[4, 1], [], [7, 8, 9]]
    assert [rows[client].tolist() for client in range(3)] == [[4, 1], [], [7, 8, 9]]
    assert rows[-1].tolist() == [7, 8, 9]
    assert [part.tolist() for part in rows[1:]] == [[], [7, 8, 9]]
    assert rows.join(np.array([2, 0])).tolist() == [7, 8, 9, 4, 1]


def test_groups_of_clients_are_put_one_after_another():
    rows = ClientRows.joined([ClientRows.of(PARTS[:2]), ClientRows.of(PARTS[2:])])
    assert [part.tolist() for part in rows] == [[4, 1], [], [7, 8, 9]]
