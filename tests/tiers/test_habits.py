"""Habits: class frequencies of two groups, what inputs tell, and what is split, merged and remembered for them."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl.core import server
from hcfl.methods import build
from hcfl.models.ensemble import Ensemble
from hcfl.runs.checkpoint import load
from hcfl.tiers import ConflictDistance, Decision, Participants, SplitDecision, SplitOnGain
from hcfl.tiers.habits import (
    HABITS,
    INPUTS,
    by_frequencies,
    frequencies,
    gain_by_frequencies,
    random_halves,
    told_by_inputs,
)
from hcfl.tiers.head_gain import chance
from hcfl.tiers.many_participants import extended
from helpers import with_halves

CLASSES, FEATURES = 4, 6

USUAL, FIRST, SECOND = (0.25, 0.25, 0.25, 0.25), (0.7, 0.1, 0.1, 0.1), (0.1, 0.1, 0.1, 0.7)

TWO = [FIRST, SECOND] * 10


def answers(mixes, seed=0, each=40, told=0.0, members=None) -> Participants:
    """Clients whose labels have their own frequencies; classes lie `told` apart in inputs, in deviations of noise."""
    draw = torch.Generator().manual_seed(seed)
    centres = told * torch.randn(CLASSES, FEATURES, generator=draw)
    labels = torch.multinomial(torch.tensor(mixes), each, replacement=True, generator=draw).flatten()
    values = centres[labels] + torch.randn(len(labels), FEATURES, generator=draw)
    return with_halves(values, labels, CLASSES, len(mixes), members)


def counts(mixes, seed=0, each=40):
    found = answers(mixes, seed, each).prototypes
    assert found is not None
    return found.class_counts.double()


def told(seen: Participants) -> float:
    assert seen.prototypes is not None
    assert seen.halves is not None
    return told_by_inputs(seen.prototypes, seen.halves, seen.members)


def decide(seen: Participants, clusters: int | None = None) -> Decision:
    """What is decided where contradictions count for little: noise of inputs looks like them."""
    occupied = torch.ones(clusters or int(seen.members.max()) + 1, dtype=torch.bool)
    return SplitOnGain(rho=10.0).decide(seen, ConflictDistance().between(seen), occupied)


def remembers_habits(decision: Decision) -> bool:
    assert decision.memory is not None
    return HABITS in decision.memory


def apart(seen: Participants) -> Participants:
    """The same participants, where the server remembers that habits keep clusters apart."""
    return replace(seen, memory={HABITS: torch.tensor(1.0), INPUTS: torch.tensor(0.0)})


def test_what_inputs_tell_does_not_depend_on_where_their_origin_is():
    seen = answers([USUAL] * 4, told=1.0, members=[0, 0, 1, 1])
    moved = replace(
        seen,
        prototypes=replace(seen.prototypes, class_means=seen.prototypes.class_means + 50.0),
        halves=replace(seen.halves, class_means=seen.halves.class_means + 50.0),
    )
    assert told(seen) > 0.3
    assert told(moved) == pytest.approx(told(seen), rel=1e-3)


def test_frequencies_come_from_other_clients_and_a_prior():
    seen = torch.tensor([[10.0, 0.0], [0.0, 10.0], [20.0, 20.0]])
    found = frequencies(seen, torch.tensor([[True, True, False], [False, False, True]]))
    # n samples count for n / (1 + n/20): clients 0 and 1 for 20/3, client 2 for 20/3 of each class.
    # For client 0 the others hold 20/3 and 40/3, with half a sample more of each: 43/6 and 83/6, of 21.
    prior = 5 * torch.tensor([43 / 126, 83 / 126])
    assert_close(found[0, 0], (prior + torch.tensor([0.0, 20 / 3])) / (5 + 20 / 3))
    assert_close(found[0, 1], (prior + 20 / 3) / (5 + 40 / 3))


def test_random_halves_are_all_samples_and_do_not_repeat_what_is_chance():
    seen = torch.tensor([[10.0, 10.0, 1.0]]).repeat(400, 1)
    first, second = random_halves(seen)
    assert_close(first + second, seen.double())
    assert first.sum(dim=1).unique().tolist() == [10]
    # Of 10 drawn of 21 samples without replacement, of which 10 are of class 0: 100/21 on average, variance 1.31.
    assert float(first[:, 0].mean()) == pytest.approx(100 / 21, abs=0.2)
    assert float(first[:, 0].var()) == pytest.approx(10 * (10 / 21) * (11 / 21) * 11 / 20, rel=0.3)


def test_frequencies_find_two_planted_groups_also_of_unequal_sizes():
    for seed in range(20):
        second = by_frequencies(counts([FIRST] * 5 + [SECOND] * 15, seed, each=20))
        assert second.tolist() in ([False] * 5 + [True] * 15, [True] * 5 + [False] * 15)


def test_where_nothing_differs_frequencies_gain_nothing_and_planted_groups_do():
    for seed in range(8):
        same = gain_by_frequencies(random_halves(counts([USUAL] * 30, seed, each=20)), by_frequencies)
        assert float(same.each.mean()) < 0
        assert chance(same.each) > 0.05
    planted = gain_by_frequencies(random_halves(counts(TWO)), by_frequencies)
    # A group's entropy is 0.94 nats. All together have the frequencies 0.4, 0.1, 0.1, 0.4 and 1.19 nats.
    assert float(planted.each.mean()) == pytest.approx(0.25, abs=0.06)
    assert planted.loss == pytest.approx(1.19, abs=0.1)
    assert chance(planted.each) < 1e-4


def test_a_gain_counts_on_the_half_that_did_not_propose_it():
    unlike = torch.stack([counts(TWO), counts([SECOND, FIRST] * 10)])
    assert float(gain_by_frequencies(unlike, by_frequencies).each.mean()) < 0


def test_inputs_tell_all_where_classes_are_far_apart_and_nothing_where_they_are_noise():
    assert told(answers([USUAL] * 12, told=8.0)) == pytest.approx(log(CLASSES), abs=0.02)
    assert told(answers([USUAL] * 12)) < 0.01
    assert 0.1 < told(answers([USUAL] * 12, told=0.5)) < 0.8
    assert told(answers([USUAL], told=8.0)) == 0, "no other client has a head"


def test_it_splits_groups_with_other_habits_and_remembers_them():
    for seed in range(3):
        seen = answers(TWO, seed)
        decision = decide(seen)
        (split,) = decision.splits
        parts = {frozenset(split.first), frozenset(split.second)}
        assert parts == {frozenset(seen.clients[::2]), frozenset(seen.clients[1::2])}
        assert split.maximum >= split.threshold
        assert remembers_habits(decision)


@pytest.mark.parametrize(
    "settings",
    [{"mixes": TWO, "told": 2.0}, {"mixes": [USUAL] * 20}, {"mixes": [USUAL] * 20, "told": 2.0}],
    ids=["label shift", "iid, noise", "iid"],
)
def test_it_splits_neither_label_shift_nor_iid(settings):
    for seed in range(3):
        decision = decide(answers(seed=seed, **settings))
        assert not decision.splits
        assert not remembers_habits(decision)


def test_what_inputs_once_told_counts_later():
    seen = answers(TWO)
    assert not decide(replace(seen, memory={INPUTS: torch.tensor(0.8)})).splits
    assert decide(replace(seen, memory={INPUTS: torch.tensor(0.1)})).splits
    informative = decide(answers(TWO, told=2.0)).memory
    assert informative is not None
    assert not decide(replace(seen, memory=informative)).splits


def test_habits_keep_clusters_apart_without_moves_and_merge_when_they_vanish():
    groups = [0, 1] * 10
    keep = decide(apart(answers(TWO, members=[1, *groups[1:]])))
    assert (keep.merges, keep.moves) == ((), ())
    assert remembers_habits(keep)
    found = decide(answers(TWO, members=groups))
    assert found.merges == ()
    assert remembers_habits(found)
    vanished = decide(apart(answers([USUAL] * 20, members=groups)))
    assert [(merge.into, merge.gone) for merge in vanished.merges] == [(0, 1)]
    assert not remembers_habits(vanished)


def test_clusters_that_another_rule_found_need_all_evidence_to_be_kept_apart_by_habits():
    seen = answers(TWO, members=[0, 1] * 10)  # groups gain about 0.25 nats
    for inputs, new, kept in ((0.1, True, True), (0.4, False, True), (0.8, False, False)):
        told = {INPUTS: torch.tensor(inputs)}
        assert remembers_habits(decide(replace(seen, memory=told))) is new
        assert remembers_habits(decide(replace(seen, memory={**told, HABITS: torch.tensor(1.0)}))) is kept
    same = [answers([USUAL] * 20, seed, members=[0, 1] * 10) for seed in range(20)]
    assert not any(remembers_habits(decide(one)) for one in same)


def test_a_round_that_misses_a_cluster_forgets_no_habits():
    alone = apart(answers([FIRST] * 6))
    assert remembers_habits(decide(alone, clusters=2))
    assert remembers_habits(decide(apart(answers([USUAL] * 6, members=[0] * 5 + [1])), clusters=2))
    assert not remembers_habits(decide(alone, clusters=1))


def test_rounds_between_looks_leave_the_memory():
    between = decide(apart(replace(answers(TWO, members=[0, 1] * 10), round=11)))
    assert between.memory is None
    assert between.moves == ()


@pytest.mark.parametrize("mixes", [[FIRST], [FIRST, SECOND], [(1.0, 0.0, 0.0, 0.0)] * 12, [FIRST] * 9 + [SECOND]])
@pytest.mark.parametrize("each", [1, 2, 10])
def test_few_clients_few_samples_and_one_class_split_nothing(mixes, each):
    assert decide(answers(mixes, each=each)).splits == ()


def test_while_habits_keep_clusters_apart_class_frequencies_are_not_divided_out():
    method = build("hcfl++", clusters=2)
    state = server.begin(method, Ensemble({}, {"h": torch.zeros(2, 1)}, "split"), clients=1, classes=2)
    state = replace(state, counts=torch.tensor([[[3.0, 1.0], [0.0, 4.0]]]))
    assert_close(server.shares(method, state, 2), torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    state = replace(state, memory={INPUTS: torch.tensor(0.1)})
    assert_close(server.shares(method, state, 2), torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    state = replace(state, memory={HABITS: torch.tensor(1.0)})
    assert_close(server.shares(method, state, 2), torch.full((2, 2), 0.5))


def test_clients_that_a_sample_left_out_are_not_placed_by_distance():
    everyone = answers(TWO)
    split = SplitDecision(0, everyone.clients[:4:2], everyone.clients[1:4:2], "lean", 1.0, 1.0, 1.0)
    sample, distance = everyone.some(torch.arange(4)), ConflictDistance()
    by_habits = Decision((split,), memory={HABITS: torch.tensor(1.0)})
    assert extended(by_habits, distance, sample, everyone) is by_habits
    (placed,) = extended(Decision((split,)), distance, sample, everyone).splits
    assert len(placed.first) + len(placed.second) == 20


def households(mixes, seed=0, each=60, regression=False) -> hcfl.Federation:
    """Clients whose inputs are noise; their answers are as frequent as their mix says."""
    draw = np.random.default_rng(seed)
    y = np.concatenate([draw.choice(CLASSES, size=each, p=mix) for mix in mixes])
    x = draw.normal(size=(len(y), FEATURES)).astype(np.float32)
    client = np.repeat(np.arange(len(mixes)), each)
    if regression:
        y = y + 0.1 * draw.normal(size=len(y))
    return hcfl.Federation.from_arrays(x, y, client=client, seed=seed, val_share=0.3)


SHORT = {"rounds": 8, "threads": 1, "seed": 0, "epochs": 2}


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "numbers"])
def test_a_run_finds_habits_and_predicts_them(regression, tmp_path):
    data = households(TWO, regression=regression)
    found = hcfl.run("hcfl++", data, out=tmp_path / "run", **SHORT)
    assert found.summary["clusters_last"] == 2
    members = found.state.server.members
    assert len(set(members[::2].tolist())) == len(set(members[1::2].tolist())) == 1
    everyone = hcfl.run("fedavg", data, out=tmp_path / "fedavg", **SHORT)
    assert found.summary["val_last"] > everyone.summary["val_last"] + 0.2
    kept, _ = load(tmp_path / "run" / "checkpoint")
    assert HABITS in kept.server.memory


def test_a_run_where_nothing_differs_keeps_one_cluster(tmp_path):
    found = hcfl.run("hcfl++", households([FIRST] * 20), out=tmp_path / "run", **SHORT)
    assert found.summary["clusters_last"] == 1
