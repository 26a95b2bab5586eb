"""Private runs in the sequential and the batched engine."""

from dataclasses import replace

import pytest
from torch.testing import assert_close

import hcfl
from hcfl.config import PrivacyConfig, from_flat
from hcfl.data import Federation
from hcfl.engines import Batched, Private, Sequential
from hcfl.methods import build
from hcfl.privacy.accounting import epsilon_of
from hcfl.privacy.rules import settled
from helpers import blobs, play, start

SILENT = {
    "central-dp": PrivacyConfig(mode="central-dp", clip=1e3, noise_multiplier=1e-12, delta=1e-5),
    "local-dp": PrivacyConfig(mode="local-dp", clip=1e3, noise_multiplier=1e-13, delta=1e-5),
}
LOUD = {
    "central-dp": PrivacyConfig(mode="central-dp", clip=1.0, noise_multiplier=0.01, delta=1e-5),
    "local-dp": PrivacyConfig(mode="local-dp", clip=1.0, noise_multiplier=0.001, delta=1e-5),
}


@pytest.fixture(scope="module")
def alike():
    """Twelve clients in three concepts, all with 36 samples for training: counting once is counting by size."""
    x, y = blobs()
    return Federation.from_arrays(x, y, clients=12, partition="iid", beta=0.9, concepts=3, seed=1, test_share=0.1)


def same_models(one, two, atol):
    for part in ("extractors", "heads"):
        assert_close(getattr(one.server.ensemble, part), getattr(two.server.ensemble, part), rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        ("central-dp", "fedavg"),
        ("central-dp", "ifca"),
        ("local-dp", "fedrc"),
        ("local-dp", "fedsoft"),
        ("local-dp", "hcfl+(fedrc)"),
        ("local-dp", "hcfl+(fesem)"),
        ("local-dp", "icfl"),
    ],
)
def test_without_clip_and_noise_a_run_is_the_plain_run(alike, mode, name):
    assert len({len(rows) for rows in alike.train}) == 1
    plain, said = play(alike, build(name))
    private, told = play(alike, build(name), engine=Private(Sequential(), SILENT[mode]))
    same_models(private, plain, 1e-4)
    assert [record.clusters for record in told] == [record.clusters for record in said]
    assert [record.val for record in told] == [record.val for record in said]
    assert [record.test for record in told] == [record.test for record in said]
    assert told[-1].objective is None  # nobody says how well models fit its data


@pytest.mark.parametrize(
    ("mode", "name"), [("central-dp", "fedrc"), ("local-dp", "fedavg"), ("local-dp", "hcfl+(fedem)")]
)
def test_engines_draw_the_same_noise_and_seeds_other_noise(alike, mode, name):
    runs = [play(alike, build(name), 2, engine=Private(engine, LOUD[mode]))[0] for engine in (Sequential(), Batched())]
    same_models(*runs, 1e-4)
    plain, _ = play(alike, build(name), 2)
    with pytest.raises(AssertionError):
        same_models(runs[0], plain, 1e-4)


@pytest.mark.parametrize(
    ("mode", "name", "expected"),
    [
        ("central-dp", "fedavg", 6 / 12),  # σ = z·clip in the sum, so z·clip/n in the mean of n clients
        ("local-dp", "fedavg", 2 * 6 / 12**0.5),  # 2z·clip by every client, so 2z·clip/√n in the mean
        ("local-dp", "cfl", 2 * 6 / 12**0.5),
    ],
)
def test_every_round_and_every_client_has_noise_of_its_own(alike, mode, name, expected):
    method = build(name)
    privacy = PrivacyConfig(mode=mode, clip=1e-9, noise_multiplier=6e9, delta=1e-5)  # nothing is left but noise
    _, start_models = start(alike, method)
    after = [play(alike, method, number, engine=Private(Sequential(), privacy))[0].server.ensemble for number in (1, 2)]
    before, one, two = (models.extractors["1.weight"].flatten() for models in (start_models, *after))
    for noise in (one - before, two - one):
        assert float(noise.std()) == pytest.approx(expected, rel=0.06)
        assert abs(float(noise.mean())) < 5 * expected / len(noise) ** 0.5
    alike_noise = float(((one - before) * (two - one)).mean()) / expected**2
    assert abs(alike_noise) < 5 / len(one) ** 0.5


def test_a_run_can_be_repeated_and_says_what_it_spent(tmp_path):
    settings = {"clients": 6, "rounds": 3, "privacy": "local-dp", "noise_multiplier": 2.0, "clip": 0.1}
    runs = [
        hcfl.run("hcfl+(fedrc)", out=tmp_path / name, seed=seed, **settings)
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    same_models(runs[0].state, runs[1].state, 0)
    with pytest.raises(AssertionError):
        same_models(runs[0].state, runs[2].state, 0.1)
    assert runs[0].summary["epsilon"] == pytest.approx(epsilon_of(1e-5, 2.0, 3))
    assert runs[0].summary["delta"] == 1e-5
    assert runs[0].summary["val_last"] is not None
    assert runs[0].profiles is None


def test_an_interrupted_run_goes_on_with_the_noise_it_would_have_had(tmp_path):
    from hcfl.launch import execute, resume
    from hcfl.runs.prepare import prepare

    config = from_flat(method="fedavg", clients=6, rounds=3, privacy="central-dp", noise_multiplier=0.5)
    whole = execute(prepare(config), tmp_path / "whole")

    def stop(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(prepare(config), tmp_path / "half", stop)
    same_models(resume(tmp_path / "half").state, whole.state, 0)


def test_noise_is_said_once(alike):
    config = from_flat(method="fedavg", privacy="local-dp", noise_multiplier=2)
    chosen = settled(config, build("fedavg")).privacy
    assert (chosen.epsilon, chosen.noise_multiplier, chosen.clip) == (None, 2, 1)
    with pytest.raises(hcfl.InputError, match=r"privacy.noise_multiplier = 2: privacy.epsilon says already"):
        settled(config.updated("privacy", epsilon=0.5), build("fedavg"))


@pytest.mark.parametrize("mode", SILENT)
def test_where_one_client_diverges_nobody_is_seen_without_noise(alike, mode):
    """The server could leave it out, and would then have the others' uploads as they are."""
    x = alike.x.clone()
    x[alike.train[3]] *= 1e30
    with pytest.raises(hcfl.InputError, match=r"training diverged in round 1"):
        play(replace(alike, x=x), build("fedavg"), engine=Private(Sequential(), LOUD[mode]))
