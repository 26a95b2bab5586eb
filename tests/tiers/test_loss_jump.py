"""FedDrift's decisions on losses by hand."""

import pytest
import torch

from hcfl.errors import InputError
from hcfl.tiers import LossJump, Participants

MEMORY = {"losses": torch.tensor([0.1, 0.1, 0.1, 0.1]), "step": torch.tensor([0.0])}


def decided(losses, members, memory=MEMORY, step=1):
    members = torch.tensor(members)
    participants = Participants(
        clients=(0, 1, 2, 3),
        members=members,
        weights=torch.ones(4),
        reports={"losses": torch.tensor(losses)},
        memory=memory,
        everyone=members,
        step=step,
    )
    return LossJump(1.0).decide(participants, None, torch.ones(len(losses[0]), dtype=torch.bool))


def test_in_the_first_round_every_client_founds_a_cluster():
    found = decided([[2.3], [2.3], [2.3], [2.3]], [0, 0, 0, 0], memory={}, step=0)
    assert [split.second for split in found.splits] == [(1,), (2,), (3,)]
    assert {split.first for split in found.splits} == {(0,)}
    assert found.memory["losses"].tolist() == pytest.approx([2.3] * 4)


def test_within_a_step_nothing_changes_but_what_is_remembered():
    found = decided([[0.2, 5.0], [0.3, 5.0], [5.0, 0.4], [5.0, 0.5]], [0, 0, 1, 1], step=0)
    assert (found.splits, found.moves, found.merges) == ((), (), ())
    assert found.memory["losses"].tolist() == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_a_jump_founds_a_cluster_and_other_clients_join_the_lowest_loss():
    # Client 1 now has the data of cluster 1; no model serves client 3.
    found = decided([[0.2, 5.0], [5.0, 0.3], [5.0, 0.2], [5.0, 4.0]], [0, 0, 1, 1])
    assert [(move.client, move.to) for move in found.moves] == [(1, 1)]
    assert [(split.parent, split.first, split.second) for split in found.splits] == [(1, (2,), (3,))]
    assert found.splits[0].maximum == pytest.approx(3.9)  # from 0.1 to 4.0, its lowest
    assert found.merges == ()


def test_clusters_merge_that_serve_each_other_s_clients():
    # d(0, 1) = max(0.6 − 0.2, 0.7 − 0.3) = 0.4 < 1; cluster 2 is 4 away from both.
    losses = [[0.2, 0.6, 4.2], [0.2, 0.6, 4.2], [0.7, 0.3, 4.3], [4.2, 4.2, 0.2]]
    found = decided(losses, [0, 0, 1, 2])
    assert [(merge.into, merge.gone) for merge in found.merges] == [(0, 1)]
    assert found.merges[0].distance == pytest.approx(0.4)


def test_a_threshold_that_is_not_above_0_is_refused():
    with pytest.raises(InputError, match="delta = 0"):
        LossJump(0)
