"""From samples to a federation: everything seeded, the truth recorded, nothing shared."""

import numpy as np
import pytest
import torch

import hcfl
from hcfl.config import Config, DataConfig
from hcfl.data import Federation, build
from hcfl.data.held_out import train_and_val
from hcfl.errors import InputError
from hcfl.report.tables import federation_table
from hcfl.runs.tables import describe_partition
from helpers import blobs


@pytest.fixture(scope="module")
def digits():
    federation = build(DataConfig(test_on="tenth"), seed=0)
    return federation, federation.settings


def test_the_default_federation(digits):
    federation, config = digits
    assert federation.clients == 30
    assert federation.classes == 10
    assert federation.shape == (8, 8, 1)
    assert federation.truth.concepts == 3
    assert np.bincount(federation.truth.concept).tolist() == [10, 10, 10]
    assert federation.truth.affected.all()
    assert len(federation.test_x) == pytest.approx(1797 * 0.2, abs=5)
    assert (config.partition, config.clients, config.concepts, config.beta) == ("lda", 30, 3, 0.9)


def test_every_sample_is_somebody_s_exactly_once(digits):
    federation, _ = digits
    rows = torch.cat([*federation.train, *federation.val]).tolist()
    assert len(rows) == len(set(rows)) == 1797 - len(federation.test_x)
    for train, val in zip(federation.train, federation.val, strict=True):
        assert len(val) == round(0.1 * (len(train) + len(val)))


def test_clients_labels_are_those_of_their_concept(digits):
    federation, config = digits
    plain = build(config.model_copy(update={"beta": 0.0, "concepts": None}), seed=0)
    for client, concept in enumerate(federation.truth.concept):
        rows = federation.train[client]
        assert torch.equal(rows, plain.train[client])
        assert torch.equal(federation.y[rows], (plain.y[rows] + int(concept)) % 10)


def test_newcomers_see_the_same_images_with_their_concept_s_labels(digits):
    federation, _ = digits
    first, second, third = federation.newcomers
    assert torch.equal(first.fit_rows, second.fit_rows)
    assert torch.equal((first.score_labels + 2) % 10, third.score_labels)
    assert len(first.fit_rows) == round(0.9 * len(federation.test_x))
    together = torch.cat([first.fit_rows, first.score_rows])
    assert sorted(together.tolist()) == list(range(len(federation.test_x)))


def test_the_same_seed_gives_the_same_federation_and_another_seed_another(digits):
    federation, config = digits
    again = build(config, seed=0)
    other = build(config, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(federation.train, again.train, strict=True))
    assert torch.equal(federation.y, again.y)
    assert not all(torch.equal(a, b) for a, b in zip(federation.train, other.train, strict=True))


def test_inputs_are_standardised_over_training_data(digits):
    federation, _ = digits
    inputs = federation.local_data(range(federation.clients)).inputs
    assert inputs.mean().item() == pytest.approx(0, abs=1e-5)
    assert inputs.std().item() == pytest.approx(1, abs=1e-3)


def test_noise_reaches_train_and_val_but_never_the_test_set():
    x, y = blobs(per_class=500)
    clean = Federation.from_arrays(x, y, clients=5, seed=0)
    noisy = Federation.from_arrays(x, y, clients=5, noise="pair", noise_rate=0.25, seed=0)
    for rows in (torch.cat([*clean.train]), torch.cat([*clean.val])):
        assert (clean.y[rows] != noisy.y[rows]).double().mean().item() == pytest.approx(0.25, abs=0.06)
    assert torch.equal(clean.newcomers[0].fit_labels, noisy.newcomers[0].fit_labels)


def test_copies_deal_every_training_image_so_many_times():
    x, y = blobs(per_class=60)
    one = Federation.from_arrays(x, y, clients=6, beta=0.5, seed=3)
    three = Federation.from_arrays(x, y, clients=6, beta=0.5, copies=3, seed=3)
    images = len(torch.cat([*one.train, *one.val]))
    dealt = torch.cat([*three.train, *three.val])
    assert len(dealt.unique()) == len(dealt)  # a row of x is one client's, corrupted and relabelled its way
    assert torch.bincount(dealt % images).max() == 3
    assert torch.equal(three.x[:images], three.x[images : 2 * images])
    assert torch.equal(three.test_x, one.test_x)
    assert sum(map(len, three.val)) == pytest.approx(3 * sum(map(len, one.val)), abs=6)


def test_no_client_trains_on_a_copy_of_what_it_holds_out():
    x, y = blobs(per_class=60)
    federation = Federation.from_arrays(x, y, clients=3, copies=3, seed=3)
    images = len(federation.x[: -len(federation.test_x)]) // 3
    for train, val in zip(federation.train, federation.val, strict=True):
        assert not set((train % images).tolist()) & set((val % images).tolist())
    lost = len(federation.x) - len(federation.test_x) - len(torch.cat([*federation.train, *federation.val]))
    assert 0 < lost < 0.3 * 3 * images  # copies of held-out images


def test_a_client_that_holds_one_image_several_times_trains_on_it():
    train, val = train_and_val(np.array([1, 6, 11]), 0.1, 0, 0, images=5)
    assert sorted(train.tolist()) == [1, 6, 11]
    assert len(val) == 0


def test_copies_are_said(digits):
    assert "copies" not in describe_partition(Config())
    config = Config.parse({"data": {"source": "digits", "copies": 3, "partition": "iid"}})
    assert describe_partition(config).startswith("iid, 3 copies")
    assert "3 copies of the training set" in federation_table(build(config.data, 0)).title


def test_affected_clients_hold_enough_relabelled_samples():
    x, y = blobs(classes=10, per_class=60)
    federation = Federation.from_arrays(x, y, clients=10, partition="classes", classes_per_client=2, beta=0.2, seed=0)
    original = Federation.from_arrays(x, y, clients=10, partition="classes", classes_per_client=2, seed=0)
    for client, affected in enumerate(federation.truth.affected):
        rows = torch.cat([original.train[client], original.val[client]])
        assert affected == ((original.y[rows] < 3).double().mean() >= 0.15)
    assert 0 < federation.truth.affected.sum() < 10


def test_concepts_that_coincide_are_one_and_reported():
    x, y = blobs(classes=10, per_class=20)
    federation = Federation.from_arrays(x, y, clients=9, partition="iid", beta=0.1)
    assert federation.truth.concepts == 2
    assert len(federation.newcomers) == 2 * 3
    assert federation.notes == ("concepts that coincide: 2 = 0",)


def test_classes_that_nobody_holds_are_reported():
    x, y = blobs(classes=5, per_class=20)
    federation = Federation.from_arrays(x, y, clients=4, classes_per_client=2)
    assert "classes that no client holds" in federation.notes[0]


def natural(**extra):
    x, y = blobs(per_class=30)
    client = np.array(["north", "south", "west"])[np.arange(len(y)) % 3]
    return x, y, {"client": client, **extra}


def test_a_natural_federation_is_taken_as_it_is():
    x, y, extra = natural()
    federation = Federation.from_arrays(x, y, **extra)
    assert federation.client_names == ("north", "south", "west")
    assert federation.truth is None
    assert federation.newcomers == ()
    rows = torch.cat([federation.train[1], federation.val[1]]).tolist()
    assert sorted(rows) == np.flatnonzero(extra["client"] == "south").tolist()
    assert torch.equal(federation.y, torch.from_numpy(y))


def test_a_natural_federation_may_know_its_concepts_and_test_set():
    x, y, extra = natural()
    concept = np.where(extra["client"] == "west", "b", "a")
    test = np.arange(len(y)) % 5 == 0
    federation = Federation.from_arrays(x, y, **extra, concept=concept, test=test, test_on="tenth")
    assert federation.truth.concept.tolist() == [0, 0, 1]
    assert federation.truth.names == ("a", "b")
    assert federation.truth.affected is None
    assert [newcomer.name for newcomer in federation.newcomers] == ["concept a", "concept b"]
    assert sum(len(n.fit_rows) + len(n.score_rows) for n in federation.newcomers) == test.sum()


@pytest.mark.parametrize(
    "settings", [{"clients": 4}, {"alpha": 1.0}, {"beta": 0.2}, {"partition": "iid"}, {"noise": "pair"}]
)
def test_a_natural_federation_refuses_to_be_dealt_again(settings):
    x, y, extra = natural()
    with pytest.raises(InputError, match=f"data.{next(iter(settings))} = "):
        Federation.from_arrays(x, y, **extra, **settings)


def test_a_client_has_one_concept():
    x, y, extra = natural()
    with pytest.raises(InputError, match="client north has 2 concepts"):
        Federation.from_arrays(x, y, **extra, concept=np.arange(len(y)) % 2)


def test_settings_of_another_partition_are_refused():
    x, y = blobs()
    with pytest.raises(InputError, match=r"data.alpha = 1.0: belongs to partition lda, but the partition is iid"):
        Federation.from_arrays(x, y, partition="iid", alpha=1.0)
    with pytest.raises(InputError, match=r"data.classes_per_client = null"):
        Federation.from_arrays(x, y, partition="classes")
    with pytest.raises(InputError, match=r"data.partition = natural: arrays does not say"):
        Federation.from_arrays(x, y, partition="natural")


def test_a_client_of_one_sample_trains_on_it_and_holds_nothing_out():
    x, y = blobs(per_class=2)
    federation = Federation.from_arrays(x, y, client=np.arange(len(y)))
    assert all(len(train) == 1 and len(val) == 0 for train, val in zip(federation.train, federation.val, strict=True))


def test_every_client_has_noise_of_its_own():
    x, y = blobs(per_class=500)
    clean = Federation.from_arrays(x, y, clients=5, partition="iid", seed=0)
    noisy = Federation.from_arrays(x, y, clients=5, partition="iid", noise="pair", noise_rate=0.25, seed=0)
    parts = [torch.cat([train, val]) for train, val in zip(clean.train, clean.val, strict=True)]
    assert len({int((clean.y[rows] != noisy.y[rows]).sum()) for rows in parts}) > 1


def test_noise_flips_the_labels_that_the_client_sees():
    x, y = blobs()
    settings = {"clients": 6, "partition": "iid", "beta": 0.5, "seed": 0}
    clean = Federation.from_arrays(x, y, **settings)
    noisy = Federation.from_arrays(x, y, noise="pair", noise_rate=1.0, **settings)
    rows = torch.cat([*clean.train])
    assert torch.equal(noisy.y[rows], (clean.y[rows] + 1) % 4)


def test_a_few_relabelled_samples_do_not_make_a_client_affected():
    x, y = blobs(classes=20, per_class=30)
    # Two of twenty classes are swapped: a tenth of everybody's samples.
    federation = Federation.from_arrays(x, y, clients=3, partition="iid", beta=0.05, concepts=2)
    assert federation.truth.concepts == 2
    assert not federation.truth.affected.any()


def test_newcomers_of_a_natural_federation_hold_the_samples_of_their_concept():
    x, y, extra = natural()
    concept = np.where(extra["client"] == "west", "b", "a")
    test = np.arange(len(y)) % 5 == 0
    federation = Federation.from_arrays(x, y, **extra, concept=concept, test=test, test_on="tenth")
    for newcomer, name in zip(federation.newcomers, "ab", strict=True):
        for rows, seen in ((newcomer.fit_rows, newcomer.fit_labels), (newcomer.score_rows, newcomer.score_labels)):
            assert set(concept[test][rows.numpy()].tolist()) == {name}
            assert seen.tolist() == y[test][rows.numpy()].tolist()


def held_back(clients: str, sizes: list[int], **settings):
    """Return the natural federation with further clients, all of whose samples are of the test set."""
    x, y, extra = natural()
    client = np.concatenate([extra["client"], np.repeat(list(clients), sizes)])
    new = np.arange(sum(sizes)) % len(y)
    test = np.arange(len(client)) >= len(y)
    arrays = np.concatenate([x, x[new]]), np.concatenate([y, y[new]])
    return client[test], Federation.from_arrays(*arrays, client=client, test=test, **settings)


@pytest.mark.parametrize("test_on", ["halves", "tenth"])
def test_each_client_of_the_test_set_that_trains_nothing_is_a_newcomer(test_on):
    client, federation = held_back("uvw", [5, 8, 3], test_on=test_on)
    assert federation.client_names == ("north", "south", "west")
    assert federation.settings.test_clients == "each"
    each = 2 if test_on == "halves" else 1
    assert [newcomer.name for newcomer in federation.newcomers] == ["everybody"] * 3 * each
    for newcomer, name in zip(federation.newcomers, np.repeat(list("uvw"), each), strict=True):
        rows = torch.cat([newcomer.fit_rows, newcomer.score_rows])
        assert set(client[rows.numpy()].tolist()) == {name}
        assert len(rows) == (client == name).sum()
        assert min(len(newcomer.fit_rows), len(newcomer.score_rows)) > 0


def test_clients_of_the_test_set_can_be_one_newcomer():
    _, federation = held_back("uvw", [5, 8, 3], test_on="tenth", test_clients="together")
    assert [(len(n.fit_rows), len(n.score_rows)) for n in federation.newcomers] == [(14, 2)]


def test_clients_with_a_single_test_sample_are_one_newcomer():
    client, federation = held_back("tuvw", [1, 4, 1, 1], test_on="tenth")
    found = [sorted(client[torch.cat([n.fit_rows, n.score_rows]).numpy()].tolist()) for n in federation.newcomers]
    assert found == [["u"] * 4, ["t", "v", "w"]]


def test_newcomers_are_named_by_the_concept_that_is_known_of_them():
    x, y = blobs(per_class=30)
    client = np.array(["north", "south", "west", "isle"])[np.arange(len(y)) % 4]
    concept = np.where(np.isin(client, ["west", "isle"]), "b", "a")
    test = client != "south"
    federation = Federation.from_arrays(x, y, client=client, concept=concept, test=test, test_on="tenth")
    assert [newcomer.name for newcomer in federation.newcomers] == ["concept a", "concept b", "concept b"]


def test_clients_that_disagree_are_served_where_each_finds_its_weights():
    draw = np.random.default_rng(0)
    x, client = draw.normal(size=(600, 4)).astype(np.float32), np.arange(600) % 12
    y = ((x[:, 0] > 0) ^ (client % 2 == 0)).astype(int)  # two groups of clients with opposite labels
    found = {}
    for kind in ("each", "together"):
        federation = Federation.from_arrays(x, y, client=client, test=client >= 8, test_clients=kind)
        found[kind] = hcfl.run("ifca", federation, clusters=2, rounds=10, seed=1).summary["test_last"]
    assert found["each"] > 0.9
    assert 0.3 < found["together"] < 0.7


def test_of_very_many_clients_in_the_test_set_a_sample_measures_test(monkeypatch):
    monkeypatch.setattr("hcfl.data.natural.MOST_NEWCOMERS", 2)
    client, federation = held_back("stuvw", [4, 4, 4, 4, 4], test_on="tenth")
    assert "of 5 clients in the test set, 2 measure Test, drawn by the seed" in federation.notes
    owners = [set(client[n.fit_rows.numpy()].tolist()) for n in federation.newcomers]
    assert [len(owner) for owner in owners] == [1, 1]
    _, again = held_back("stuvw", [4, 4, 4, 4, 4], test_on="tenth")
    assert all(torch.equal(a.fit_rows, b.fit_rows) for a, b in zip(federation.newcomers, again.newcomers, strict=True))


def test_where_a_client_of_the_test_set_trains_there_is_one_newcomer():
    x, y, extra = natural()
    test = np.arange(len(y)) % 5 == 0
    federation = Federation.from_arrays(x, y, **extra, test=test, test_on="tenth")
    assert len(federation.newcomers) == 1
    assert federation.settings.test_clients is None
    with pytest.raises(InputError, match="test_clients = each: client north has rows of the test set, but also trains"):
        Federation.from_arrays(x, y, **extra, test=test, test_clients="each")
    with pytest.raises(InputError, match=r"test_clients = each: .* does not say which client holds a sample"):
        Federation.from_arrays(x, y, clients=3, test_clients="each")


@pytest.mark.parametrize(("samples", "sizes"), [(1, []), (2, [(1, 1)]), (4, [(3, 1)]), (20, [(18, 2)])])
def test_a_small_test_set_still_measures_something(samples, sizes):
    x, y, extra = natural()
    federation = Federation.from_arrays(x, y, **extra, test=np.arange(len(y)) < samples, test_on="tenth")
    assert [(len(n.fit_rows), len(n.score_rows)) for n in federation.newcomers] == sizes


def test_a_test_set_that_is_given_is_the_test_set():
    x, y = blobs()
    test = np.arange(len(y)) % 7 == 0
    federation = Federation.from_arrays(x, y, clients=4, test=test)
    assert torch.equal(federation.test_x, torch.from_numpy(x[test]))
    assert not set(torch.cat([*federation.train]).tolist()) & set(np.flatnonzero(test).tolist())


def test_defaults_of_a_partition_by_classes():
    two, three = (build(DataConfig(classes_per_client=number), seed=0).settings for number in (2, 3))
    assert (two.partition, two.grouping, two.beta) == ("classes", "grouped", 0.0)
    assert three.grouping == "random"


def test_halves_of_the_test_set_measure_each_other(digits):
    federation, _ = digits
    halved = build(DataConfig(), seed=0)
    assert halved.settings.test_on == "halves"
    assert [newcomer.name for newcomer in halved.newcomers] == [f"concept {k}" for k in (0, 0, 1, 1, 2, 2)]
    for one, two in zip(halved.newcomers[::2], halved.newcomers[1::2], strict=True):
        assert torch.equal(one.fit_rows, two.score_rows)
        assert torch.equal(one.score_labels, two.fit_labels)
        assert abs(len(one.fit_rows) - len(one.score_rows)) <= 1
        assert sorted(torch.cat([one.fit_rows, one.score_rows]).tolist()) == list(range(len(federation.test_x)))
