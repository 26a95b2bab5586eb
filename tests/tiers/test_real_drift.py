"""FedDAA: virtual drift leaves clients where they are, real drift moves them; by hand, and on planted data."""

import numpy as np
import pandas as pd
import pytest
import torch

import hcfl
from hcfl.data import Federation
from hcfl.errors import InputError
from hcfl.tiers import Participants, Prototypes, RealDriftGroups
from helpers import blobs

ONE = [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
"""What the three classes look like in one concept."""
OTHER, THIRD = [ONE[1], ONE[2], ONE[0]], [ONE[2], ONE[0], ONE[1]]
"""The same looks with other labels."""


def seen(concepts, members, memory, step=1, round_=6, shift=None, counts=None):
    """Participants with these class means, (clients, classes, features); `shift` moves all features of a client."""
    means = torch.tensor(concepts)
    means = means + 0.01 * torch.arange(len(means)).view(-1, 1, 1)
    if shift is not None:
        means = means + torch.tensor(shift).unsqueeze(1)
    counts = torch.full(means.shape[:2], 5.0) if counts is None else torch.tensor(counts)
    members = torch.tensor(members)
    return Participants(
        clients=tuple(range(len(means))),
        members=members,
        weights=torch.ones(len(means)),
        prototypes=Prototypes(means, counts, means.mean(dim=1)),
        unplaced=torch.zeros(len(means), dtype=torch.bool),
        memory=memory,
        everyone=members,
        undecided=not memory,
        step=step,
        round=round_,
    )


def decided(participants, after=1):
    return RealDriftGroups(after).decide(participants, None, torch.ones(3, dtype=torch.bool))


def begun(concepts, members):
    """What is remembered of the step before, after the first grouping."""
    first = decided(seen(concepts, [0] * len(members), {}, step=0, round_=1))
    assert first.splits or first.moves
    return decided(seen(concepts, members, first.memory, step=0, round_=2)).memory


TWO = [ONE, ONE, ONE, OTHER, OTHER, OTHER]
MEMBERS = [0, 0, 0, 1, 1, 1]


def test_virtual_drift_keeps_membership():
    # The features of clients 0 and 4 are elsewhere now: another camera, the same meaning of labels.
    shift = [[3.0, 3.0, 0.0], [0.0] * 3, [0.0] * 3, [0.0] * 3, [-2.0, 5.0, 1.0], [0.0] * 3]
    found = decided(seen(TWO, MEMBERS, begun(TWO, MEMBERS), shift=shift))
    assert (found.splits, found.moves) == ((), ())


def test_label_drift_keeps_membership():
    # Client 1 has no samples of class 0 any more.
    counts = [[5.0] * 3] * 6
    counts[1] = [0.0, 5.0, 5.0]
    found = decided(seen(TWO, MEMBERS, begun(TWO, MEMBERS), counts=counts))
    assert (found.splits, found.moves) == ((), ())


def test_real_drift_moves_a_client_to_the_cluster_of_its_new_concept():
    now = [ONE, OTHER, ONE, OTHER, OTHER, OTHER]
    found = decided(seen(now, MEMBERS, begun(TWO, MEMBERS)))
    assert [(move.client, move.to) for move in found.moves] == [(1, 1)]
    assert found.splits == ()


def test_clients_with_a_concept_that_is_new_found_a_cluster_together():
    now = [THIRD, ONE, ONE, THIRD, OTHER, OTHER]
    found = decided(seen(now, MEMBERS, begun(TWO, MEMBERS)))
    assert [(move.client, move.to) for move in found.moves] == [(3, 0)]
    assert [(split.parent, split.first, split.second) for split in found.splits] == [(0, (1, 2), (0, 3))]


def test_it_acts_when_a_step_begins_and_not_within():
    now = [ONE, OTHER, ONE, OTHER, OTHER, OTHER]
    found = decided(seen(now, MEMBERS, begun(TWO, MEMBERS), step=0))
    assert (found.splits, found.moves) == ((), ())


def planted(change):
    """Nine clients of two concepts, three steps; from step 2 on, `change` happens to clients 0 and 1."""
    x, y = blobs(per_class=300)
    generator = np.random.default_rng(0)
    client, step = generator.integers(0, 9, len(x)), generator.integers(0, 3, len(x))
    late = (client < 2) & (step > 0)
    concept = (client % 2 == 1).astype(int)
    if change == "features":
        x = np.where(late[:, None], 0.6 * x + 1.5, x)
    if change == "concept":
        concept = np.where(late, 1 - concept, concept)
    y = np.where(concept == 1, (y + 1) % 4, y)
    columns = {f"x{at}": x[:, at] for at in range(x.shape[1])}
    table = pd.DataFrame({**columns, "y": y, "client": client, "step": step, "concept": concept})
    return Federation.from_frame(table, label="y", client="client", time="step", steps=3, truth="concept", seed=0)


@pytest.mark.parametrize(("change", "moved"), [("features", set()), ("concept", {0, 1})])
def test_on_planted_data_only_a_change_of_concepts_moves_clients(tmp_path, change, moved):
    run = hcfl.run("feddaa", planted(change), rounds_per_step=3, out=tmp_path / "run")
    ends = np.array([row["client_clusters"] for row in run.rows if row["round"] % 3 == 0])
    assert set(np.flatnonzero((ends != ends[0]).any(axis=0)).tolist()) == moved
    assert run.summary["concept_changes_missed"] == 0
    assert run.summary["ari_last"] == 1


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="most = 1"):
        RealDriftGroups(most=1)
    with pytest.raises(InputError, match="after = 0"):
        RealDriftGroups(after=0)
