"""Feature shift: one corruption for each client, recorded; Test stays clean, however many processes compute it."""

from collections import Counter

import numpy as np
import pytest
import torch

from hcfl import rng
from hcfl.config import DataConfig
from hcfl.data import Federation, build, feature_shift
from hcfl.data.corruptions import CORRUPTIONS, corrupt
from hcfl.errors import InputError
from image_files import hub_folder, pictures

X, Y = pictures(90), np.arange(90) % 3
TEST = np.arange(90) >= 70


def federation(seed=0, x=X, **settings):
    return Federation.from_arrays(x, Y, test=TEST, seed=seed, **{"clients": 5, "corruptions": "random", **settings})


def test_each_client_draws_one_corruption_and_severity_for_all_its_images():
    clean, shifted = federation(corruptions="none"), federation()
    assert clean.corruptions is None
    assert len(shifted.corruptions) == 5
    for client, one in enumerate(shifted.corruptions):
        train, val = shifted.train[client], shifted.val[client]
        assert torch.equal(train, clean.train[client])
        rows = np.sort(torch.cat([train, val]).numpy())
        changed = (shifted.x[rows] != clean.x[rows]).flatten(1).any(dim=1)
        assert changed.all() or one.name == "original"


def test_a_client_s_pixels_are_what_the_corruption_makes_of_them():
    parts = [np.arange(10), np.arange(20, 30)]
    drawn = (feature_shift.Corruption("fog", 3), feature_shift.Corruption("original", 5))
    x, _ = feature_shift.apply(X, parts, drawn, 7, None, feature_shift.cache.location(None))
    expected = corrupt(X[:10], "fog", 3, rng.numpy_generator(7, "corrupted pixels", 0))
    assert np.array_equal(x[:10], expected)
    assert np.array_equal(x[10:], X[10:]), "original, and rows that nobody holds"


def test_the_test_images_stay_clean():
    assert np.array_equal(federation().test_x.numpy(), X[TEST])


def test_all_corruptions_and_severities_are_drawn_evenly():
    drawn = feature_shift.draw(4000, seed=0)
    names, severities = Counter(one.name for one in drawn), Counter(one.severity for one in drawn)
    assert set(names) == set(CORRUPTIONS)
    assert set(severities) == {1, 2, 3, 4, 5}
    # Five standard deviations of a binomial count: 200 ± 70 and 800 ± 127.
    assert all(abs(count - 200) < 70 for count in names.values())
    assert all(abs(count - 800) < 127 for count in severities.values())
    assert feature_shift.draw(10, seed=0) == drawn[:10]
    assert feature_shift.draw(10, seed=1) != drawn[:10]


def test_a_share_of_the_clients_is_corrupted_and_the_others_are_not():
    drawn = feature_shift.draw(50, seed=0, share=0.42)
    corrupted = [client for client, one in enumerate(drawn) if one.name != "original"]
    assert len(corrupted) == 21
    assert corrupted not in ([*range(21)], [*range(29, 50)]), "drawn, not the first or last"
    assert [one.name for one in feature_shift.draw(50, seed=1, share=0.42)] != [one.name for one in drawn]
    everybody = Counter(one.name for one in feature_shift.draw(3800, seed=0, share=1.0))
    assert set(everybody) == set(CORRUPTIONS) - {"original"}
    assert all(abs(count - 200) < 70 for count in everybody.values())


def test_without_a_share_the_draw_is_what_it_always_was():
    drawn = [str(one) for one in feature_shift.draw(6, seed=0)]
    assert drawn == ["spatter 5", "speckle-noise 4", "snow 1", "defocus-blur 4", "spatter 2", "impulse-noise 3"]


def test_a_share_reaches_the_federation_and_needs_corruptions():
    shares = [one.name == "original" for one in federation(corrupted_share=0.4).corruptions]
    assert shares.count(False) == 2
    with pytest.raises(InputError, match=r"data.corrupted_share = 0.4: needs corruptions random, but they are none"):
        federation(corruptions="none", corrupted_share=0.4)
    for share in (0, 1.5):
        with pytest.raises(InputError, match=f"data.corrupted_share = {share}: should be"):
            federation(corrupted_share=share)


def test_the_number_of_workers_changes_nothing(tmp_path):
    parts = np.array_split(np.arange(80), 4)
    drawn = feature_shift.draw(4, seed=3)
    one, two = (
        feature_shift.apply(X, parts, drawn, 3, None, tmp_path / str(workers), workers)[0] for workers in (1, 2)
    )
    assert np.array_equal(one, two)


def test_the_corrupted_images_come_from_the_cache_the_second_time(tmp_path, monkeypatch):
    hub_folder(tmp_path / "mine", 40, 10)
    config = DataConfig(
        source=str(tmp_path / "mine"), clients=4, corruptions="random", cache_dir=str(tmp_path / "cache")
    )
    first = build(config, seed=0)

    def never(*arguments):
        raise AssertionError("was in the cache")

    monkeypatch.setattr(feature_shift, "_corrupt", never)
    again = build(config, seed=0)
    assert torch.equal(first.x, again.x)
    assert first.corruptions == again.corruptions
    # Labels do not change pixels: another concept shift needs no other images.
    assert torch.equal(build(config.model_copy(update={"beta": 0.9}), seed=0).x, first.x)
    for change in ({"clients": 5}, {"alpha": 9.0}):
        with pytest.raises(AssertionError, match="was in the cache"):
            build(config.model_copy(update=change), seed=0)
    with pytest.raises(AssertionError, match="was in the cache"):
        build(config, seed=1)


def test_grey_images_are_corrupted_too():
    grey = federation(x=pictures(90, 28, channels=1))
    assert grey.shape == (28, 28, 1)
    assert not np.array_equal(grey.x[:70, ..., 0].numpy(), pictures(90, 28, channels=1)[:70])


@pytest.mark.parametrize(
    ("x", "sentence"),
    [
        (X[:, :8, :8], r"data.corruptions = random: the images have 8×8 pixels, but at least 28×28 are needed"),
        (X.astype(np.float32), r"data.corruptions = random: needs images of bytes .* type float32"),
        (X[:, :, 0, 0].astype(np.uint8), r"data.corruptions = random: needs images of bytes .* shape \(90, 32\)"),
    ],
)
def test_what_cannot_be_corrupted_is_refused(x, sentence):
    with pytest.raises(InputError, match=sentence):
        federation(x=x)


def test_digits_and_natural_federations_are_refused():
    with pytest.raises(InputError, match=r"data.corruptions = random: "):
        build(DataConfig(corruptions="random"), seed=0)
    with pytest.raises(InputError, match=r"data.corruptions = random: arrays is a natural federation"):
        Federation.from_arrays(X, Y, client=Y, corruptions="random")
