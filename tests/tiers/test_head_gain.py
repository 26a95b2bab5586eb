"""Two heads or one: halves of clients' samples, cross-fitted gains, and what is split, merged or moved for them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import hcfl
from hcfl.errors import InputError
from hcfl.tiers import ConflictDistance, Decision, Participants, SplitOnContradiction, SplitOnGain
from hcfl.tiers.adaptation.gain import looks
from hcfl.tiers.client_segments import Segments
from hcfl.tiers.conflict import Directions, dissents
from hcfl.tiers.cuts import SOURCES
from hcfl.tiers.distance import half_prototypes
from hcfl.tiers.head_gain import (
    ClassMeans,
    Heads,
    canonical,
    chance,
    cross_fitted,
    gain_by,
    leading_axes,
    measured,
    principal_axes,
    serves_both,
)
from helpers import with_halves

CLASSES, FEATURES = 6, 12


def samples(sensors, seed=0, each=60, held=None, cameras=0.0, members=None) -> Participants:
    """Clients whose sensors see the classes in the way of their kind; each shifts and scales what it sees a little."""
    draw = torch.Generator().manual_seed(seed)
    usual = 2 * torch.randn(CLASSES, FEATURES, generator=draw)
    kinds = [usual, usual @ torch.linalg.qr(torch.randn(FEATURES, FEATURES, generator=draw)).Q]
    labels, features = [], []
    for client, kind in enumerate(sensors):
        some = torch.arange(CLASSES) if held is None else torch.tensor(held[client])
        mine = some[torch.arange(each) % len(some)]
        seen = kinds[kind][mine] + torch.randn(each, FEATURES, generator=draw)
        seen = seen * (1 + cameras * torch.rand(1, generator=draw)) + cameras * torch.randn(FEATURES, generator=draw)
        labels.append(mine)
        features.append(seen)
    return with_halves(torch.cat(features), torch.cat(labels), CLASSES, len(sensors), members)


def known(seen: Participants):
    assert seen.prototypes is not None
    assert seen.halves is not None
    return measured(seen.prototypes, seen.halves)


def decide(seen: Participants, rho: float = 0.4) -> Decision:
    occupied = torch.ones(int(seen.members.max()) + 1, dtype=torch.bool)
    return SplitOnGain(rho=rho).decide(seen, ConflictDistance().between(seen), occupied)


def test_the_first_half_of_each_class_is_the_larger_one():
    features = torch.tensor([[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]])
    labels = torch.tensor([0, 1, 0, 0, 1, 1])
    found = half_prototypes(features, labels, 3, Segments((4, 2)))
    # Client 0: class 0 has samples 1, 4, 8, class 1 has sample 2. Client 1: class 1 has 16 and 32.
    assert_close(found.class_counts, torch.tensor([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    assert_close(found.class_means[..., 0], torch.tensor([[2.5, 2.0, 0.0], [0.0, 16.0, 0.0]]))
    assert_close(found.mean[:, 0], torch.tensor([7 / 3, 16.0]))


def test_the_leading_axes_of_a_wide_matrix_are_its_largest_eigenvectors():
    draw = torch.Generator().manual_seed(3)
    spread = torch.arange(1, 301, dtype=torch.float64) ** -0.5
    rows = torch.randn(400, 300, generator=draw, dtype=torch.float64) * spread
    scatter = rows.T @ rows
    values, vectors = torch.linalg.eigh(scatter)
    found, axes = leading_axes(scatter, 10)  # by iteration; 100 of 300 would be found exactly
    assert torch.allclose(found, values[-10:], rtol=1e-3)
    assert torch.linalg.svdvals(axes.T @ vectors[:, -10:]).min() > 0.99
    assert torch.allclose(axes.T @ axes, torch.eye(10, dtype=torch.float64), atol=1e-10)
    assert torch.equal(leading_axes(scatter, 10)[1], axes), "the start is the same in all runs"


def test_class_means_on_a_line_have_one_axis_however_wide_they_are():
    direction = torch.nn.functional.normalize(torch.randn(500, dtype=torch.float64, generator=torch.Generator()), dim=0)
    means = torch.linspace(-1, 1, 24, dtype=torch.float64).view(2, 4, 3, 1) * direction
    axes = principal_axes(means, torch.ones(2, 4, 3, dtype=torch.float64))
    assert axes.shape == (500, 1)
    assert abs(float(axes[:, 0] @ direction)) == pytest.approx(1)


def test_canonical_means_do_not_change_with_a_clients_shift_and_scale():
    draw = torch.Generator().manual_seed(0)
    usual, counts = torch.randn(5, 3, generator=draw), torch.full((4, 5), 10.0)
    means = usual.repeat(4, 1, 1)
    means[2] = 2.5 * usual + torch.tensor([3.0, -1.0, 7.0])
    found = canonical(means, counts)
    assert_close(found[2], found[0])
    assert_close(found[0], found[1])


def test_a_head_comes_from_other_clients_and_a_class_that_a_group_lacks_from_all():
    means = torch.tensor([[[0.0], [4.0]], [[2.0], [6.0]], [[9.0], [8.0]]])
    counts = torch.tensor([[10.0, 10.0], [10.0, 10.0], [10.0, 0.0]])
    heads = Heads.of(ClassMeans(means, counts, counts), torch.tensor([[True, True, False], [False, False, True]]))
    # Client 0, its own group: 10 samples of client 1 (mean 2), and 5 of all others' mean (2 + 9) / 2.
    assert_close(heads.means[0, 0, 0, 0], torch.tensor((20 + 5 * 5.5) / 15))
    # Client 0, the other group holds no class 1: the mean of the others that do, client 1.
    assert_close(heads.means[0, 1, 1, 0], torch.tensor(6.0))
    assert_close(heads.sizes[0], torch.tensor([[15.0, 15.0], [15.0, 5.0]]))


def test_classes_are_as_likely_as_they_are_with_the_client():
    """All class means are the same, so a head says what the client's own frequencies say, whatever its group."""
    counts = torch.tensor([[30.0, 10.0], [10.0, 30.0], [20.0, 20.0], [20.0, 20.0]])
    seen = ClassMeans(torch.zeros(4, 2, 1), counts, counts)
    heads = Heads.of(seen, torch.tensor([[True, True, False, False], [False, False, True, True]]))
    own = torch.tensor([(30 + 0.5) / 41, (10 + 0.5) / 41])
    expected = float((torch.tensor([0.75, 0.25]) * own.log()).sum())
    same = replace(heads, sizes=torch.full_like(heads.sizes, 20.0))  # else means of fewer samples are less certain
    assert_close(same.log_likelihood(seen)[0], torch.full((2,), expected))


@pytest.mark.parametrize("seed", [1, 2])
def test_noise_is_no_contradiction_where_one_class_is_common(tmp_path, seed):
    """Inputs say nothing, and a trained φ makes the most of it; with classes equally likely, clusters split here."""
    draw = np.random.default_rng(seed)
    x, y = draw.normal(size=(1200, 8)).astype(np.float32), draw.choice(4, 1200, p=[0.7, 0.1, 0.1, 0.1])
    federation = hcfl.Federation.from_arrays(x, y, client=np.arange(1200) % 20, seed=seed, val_share=0.2)
    run = hcfl.run("hcfl++", federation, rounds=8, seed=seed, threads=1, engine="batched", out=tmp_path / "run")
    assert [row["clusters"] for row in run.rows] == [1] * 8


def test_two_kinds_of_sensors_gain_by_two_heads_and_cameras_do_not():
    two, cameras = samples([0, 1] * 6, cameras=0.2), samples([0] * 12, cameras=0.5)
    for propose in SOURCES.values():
        assert chance(cross_fitted(known(two), propose).each) < 1e-3
        assert chance(cross_fitted(known(cameras), propose).each) > 0.05
    assert cross_fitted(known(two), SOURCES["losses"]).share > 0.3


def test_clients_with_other_classes_gain_nothing_at_all():
    apart = samples([0] * 8, held=[[0, 1, 2]] * 4 + [[3, 4, 5]] * 4)
    second = torch.arange(8) >= 4
    assert_close(gain_by(known(apart), second, second).each, torch.zeros(8, dtype=torch.float64), atol=1e-9, rtol=0)


def test_where_nothing_differs_gains_are_negative_on_average():
    means = [
        float(cross_fitted(known(samples([0] * 10, seed)), SOURCES["class means"]).each.mean()) for seed in range(8)
    ]
    assert sum(mean < 0 for mean in means) >= 7


@pytest.mark.parametrize("sensors", [[0, 1] * 6, [0, 0, 1] * 5])
def test_it_splits_kinds_of_sensors(sensors):
    seen = samples(sensors, cameras=0.2)
    (split,) = decide(seen).splits
    kinds = dict(zip(seen.clients, sensors, strict=True))
    assert {kinds[client] for client in split.second} == {1}
    assert {kinds[client] for client in split.first} == {0}
    assert split.maximum >= split.threshold


def test_it_does_not_split_where_nothing_differs():
    for seed in range(5):
        shifted = samples([0] * 12, seed, cameras=0.5, held=[[0, 1, 2, 3]] * 6 + [[2, 3, 4, 5]] * 6)
        for seen in (samples([0] * 12, seed, each=24), shifted):
            assert replace(decide(seen), memory=None) == Decision()


def test_a_later_round_needs_more_evidence_and_all_rounds_together_have_the_level():
    rule = SplitOnGain(level=0.05)
    looked = [look for look in map(looks, range(1, 50_000)) if look]
    assert looked == list(range(1, len(looked) + 1))
    assert sum(rule.threshold(look, 3) * 3 for look in looked) == pytest.approx(0.05, rel=1e-3)


def test_rounds_between_looks_neither_split_nor_merge_by_gain():
    sensors = [0] * 6 + [1] * 6
    for seen, changed in ((samples(sensors), "splits"), (samples([0] * 12, members=sensors), "merges")):
        assert getattr(decide(replace(seen, round=10), rho=10.0), changed)
        assert not getattr(decide(replace(seen, round=11), rho=10.0), changed)


def test_clusters_that_pay_stay_and_others_merge():
    sensors = [0] * 6 + [1] * 6
    assert decide(samples(sensors, members=sensors)).merges == ()
    alike = decide(samples([0] * 12, members=sensors))
    assert [(merge.into, merge.gone) for merge in alike.merges] == [(0, 1)]


def test_a_client_in_the_wrong_cluster_moves_back():
    sensors = [0] * 6 + [1] * 6
    seen = samples(sensors, members=[0] * 5 + [1] + [1] * 6)
    (move,) = decide(seen).moves
    assert (move.client, move.to) == (seen.clients[5], 0)


def test_a_client_that_is_left_alone_joins_the_cluster_that_makes_its_samples_likely():
    sensors = [0] * 6 + [1] * 6
    alone = samples(sensors, members=[0] * 5 + [2] + [1] * 6)
    (move,) = decide(replace(alone, round=11)).moves
    assert (move.client, move.to) == (alone.clients[5], 0)
    everyone = torch.tensor([0] * 5 + [2] + [1] * 6 + [2])  # one more client, absent from this round, is in cluster 2
    assert decide(replace(alone, round=11, everyone=everyone)).moves == ()


def test_clients_that_are_alone_do_not_change_places():
    sensors = [0] * 6 + [1] * 6
    seen = replace(samples(sensors, members=[0] * 4 + [2, 3] + [1] * 6), round=11)
    assert {(move.client, move.to) for move in decide(seen).moves} == {(seen.clients[4], 0), (seen.clients[5], 0)}
    both = replace(samples([0] * 2, members=[0, 1]), round=11)
    assert decide(both).moves == ()


def test_a_client_that_is_like_nobody_stays_alone():
    draw = torch.Generator().manual_seed(5)
    seen = samples([0] * 8, members=[0] * 7 + [1])
    assert seen.prototypes is not None
    other = 2 * torch.randn(CLASSES, FEATURES, generator=draw)  # its classes look like nothing that others have
    for part in (seen.prototypes, seen.halves):
        part.class_means[7] = other[[1, 2, 3, 4, 5, 0]] + 0.1 * torch.randn(CLASSES, FEATURES, generator=draw)
    assert decide(replace(seen, round=11)).moves == ()


def test_a_client_stays_alone_that_contradicts_the_cluster_which_makes_its_samples_likely():
    seen = samples([0] * 6 + [1] * 6, members=[0] * 5 + [2] + [1] * 6)
    for part in (seen.prototypes, seen.halves):
        part.class_means[:, 5] = part.class_means[:, 4]
        part.class_means[:, 5, 0] += 0.1  # two classes are much alike, and it swaps them: hardly a loss of likelihood
        part.class_means[5, [4, 5]] = part.class_means[5, [5, 4]]
    dissent = float(dissents(Directions.of(seen.prototypes), seen.members == torch.arange(3).unsqueeze(1))[5, 0])
    assert decide(replace(seen, round=11), rho=1.8 * dissent).moves == ()
    (move,) = decide(replace(seen, round=11), rho=2.2 * dissent).moves
    assert (move.client, move.to) == (seen.clients[5], 0)


def test_without_halves_contradictions_alone_decide():
    seen = replace(samples([0, 1] * 6), halves=None)
    distance, occupied = ConflictDistance().between(seen), torch.ones(1, dtype=torch.bool)
    assert decide(seen) == SplitOnContradiction().decide(seen, distance, occupied)


def numbers(slopes, seed=0, each=24, noise=1.0) -> Participants:
    """Clients whose answers are their slope times the inputs, and noise; classes are five bins of all answers."""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(len(slopes), each, len(slopes[0]), generator=draw)
    answers = (inputs * torch.tensor(slopes).unsqueeze(1)).sum(dim=2)
    answers = answers + noise * torch.randn(len(slopes), each, generator=draw)
    edges = answers.flatten().quantile(torch.linspace(0, 1, 6)[1:-1])
    bins = torch.bucketize(answers.flatten(), edges)
    return with_halves(inputs.flatten(0, 1), bins, 5, len(slopes))


def test_a_contradiction_must_repeat_in_samples_that_did_not_propose_it():
    weak = [numbers([[0.4, 0.3, 0.0, 0.0]] * 30, seed) for seed in range(6)]
    rule, occupied = SplitOnContradiction(), torch.ones(1, dtype=torch.bool)
    found = [rule.decide(seen, ConflictDistance().between(seen), occupied) for seen in weak]
    assert sum(bool(one.splits) for one in found) >= 3, "noise looks like contradictions"
    assert not any(decide(seen).splits for seen in weak)
    slope = [2.0, 0.0, 0.0, 0.0]
    (split,) = decide(numbers([slope] * 3 + [[-2.0, 0.0, 0.0, 0.0]] * 3, noise=0.1)).splits
    assert {frozenset(split.first), frozenset(split.second)} == {frozenset({1, 4, 7}), frozenset({10, 13, 16})}
    late = replace(numbers([slope] * 3 + [[-2.0, 0.0, 0.0, 0.0]] * 3, each=5, noise=0.1), round=10**6)
    assert not decide(late).splits, "few samples late in a run are no evidence"


def test_how_much_likelier_unseen_samples_are_is_summed_over_them():
    two, second = known(samples([0, 1] * 6)), torch.tensor([False, True] * 6)
    gain = gain_by(two, second, second)
    assert gain.repeated > 15
    assert_close(gain.repeated, float(30 * gain.each.sum()))  # 60 samples of each client; half of them are unseen
    wrong = torch.tensor([False] * 6 + [True] * 6)
    assert gain_by(two, wrong, wrong).repeated < 0


def test_both_parts_must_gain():
    gain = torch.tensor([1.0, 1.0, 1.0, -0.5, -0.2])
    assert serves_both(gain[:4], torch.tensor([False, True, False, True])) is False
    assert serves_both(gain.abs(), torch.tensor([False, True, False, True, False])) is True
    assert chance(torch.zeros(4)) == 1.0


@pytest.mark.parametrize(("settings", "message"), [({"level": 0.5}, "level = 0.5"), ({"rho": 0.0}, "rho = 0.0")])
def test_settings_are_checked(settings, message):
    with pytest.raises(InputError, match=message):
        SplitOnGain(**settings)
