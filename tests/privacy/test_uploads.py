"""What a client's whole upload tells: bounded, with noise in all of it, and relative to what the client says it is."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from hcfl import rng
from hcfl.config import PrivacyConfig
from hcfl.core import server
from hcfl.core.admission import only
from hcfl.core.setting import RoundTask
from hcfl.methods import build
from hcfl.privacy.uploads import join_uploads, private_upload, reported_shares
from hcfl.tiers import Prototypes
from helpers import setting, start

CLIENTS = tuple(range(8))
NOISELESS = PrivacyConfig(mode="local-dp", clip=1e3, noise_multiplier=1e-12, delta=1e-5)
NOISY = PrivacyConfig(mode="local-dp", clip=2.0, noise_multiplier=0.5, delta=1e-5)


def single(update, row):
    return only(update, torch.arange(len(update.clients)) == row)


def generator(client=0):
    return rng.torch_generator(3, "privacy", 1, client)


def a_round(federation, method):
    """What was received, and everybody's update."""
    chosen = setting(federation, method)
    _, ensemble = start(federation, method)
    state = server.begin(method, ensemble, federation.clients, federation.classes)
    message = server.broadcast(method, state, federation.classes)
    return state, message, chosen.network, chosen.engine.execute(RoundTask(chosen, message, CLIENTS, {}))[0]


@pytest.fixture(scope="module")
def rounds(request):
    from hcfl.data import Federation
    from helpers import blobs

    x, y = blobs(seed=3)
    federation = Federation.from_arrays(x, y, clients=8, alpha=0.5, seed=2)
    names = ("hcfl+(fedrc)", "hcfl+(fedem)", "hcfl+(fesem)", "hcfl++", "cfl", "stocfl")
    methods = [build(name, **({"clusters": 2} if name.startswith("hcfl+") else {})) for name in names]
    return {name: (method, *a_round(federation, method)) for name, method in zip(names, methods, strict=True)}


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "hcfl+(fedem)", "hcfl+(fesem)", "cfl", "stocfl"])
def test_without_noise_the_server_gets_what_was_sent(rounds, name):
    method, _, message, _, update = rounds[name]
    uploads = [private_upload(method, NOISELESS, message, single(update, row), generator(row)) for row in range(8)]
    got = join_uploads(uploads)
    for part in ("extractors", "heads"):
        assert_close(getattr(got.models, part), getattr(update.models, part), rtol=0, atol=1e-6)
    assert_close(got.weights, update.weights)
    assert got.mass.equal((update.mass > 0).float())
    assert got.sizes.tolist() == [1] * 8  # everybody counts once
    assert got.objective is None
    if update.counts is not None:
        shares = (update.counts / update.sizes.view(-1, 1, 1)).mean(dim=0)
        assert_close(got.counts, shares.expand(8, -1, -1), rtol=1e-4, atol=1e-6)
    if method.distance is not None and "prototypes" in method.needs:
        plain = server._participants(
            method, rounds[name][3], rounds[name][1], server.record(rounds[name][1], update), update
        )
        hid = replace(plain, prototypes=got.prototypes)
        assert_close(method.distance.between(hid), method.distance.between(plain), rtol=1e-4, atol=1e-5)
    for client, signature in update.signatures.items():
        assert_close(got.signatures[client], signature, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("hcfl+(fedrc)", {"weights", "counts", "prototypes"}),
        ("hcfl+(fedem)", {"weights", "prototypes", "mean"}),
        ("hcfl+(fesem)", {"weights", "prototypes", "mean"}),
        ("cfl", set()),
        ("stocfl", set()),
    ],
)
def test_all_that_tells_something_has_noise_as_large_as_the_number_of_kinds_says(rounds, name, kinds):
    method, _, message, _, update = rounds[name]
    one = single(update, 2)
    assert reported_shares(method, message, one).keys() == kinds
    number = 1 + len(kinds) + len(one.signatures)
    deviation = 0.5 * 2 * 2.0 * sqrt(number)  # multiplier × sensitivity, which is twice the largest norm
    clean, _ = private_upload(method, replace_noise(1e-12), message, one, generator())
    sent, shares = private_upload(method, NOISY, message, one, generator())
    assert shares == pytest.approx(deviation / 2.0)
    if not method.weighting.hard:
        assert float((sent.weights - clean.weights).abs().max()) > 0
    base = sent.models.extractors if sent.started.equal(clean.started) else {}
    noise = torch.cat([(base[name] - clean.models.extractors[name]).flatten() for name in base] or [torch.zeros(0)])
    if len(noise):
        assert float(noise.std()) == pytest.approx(deviation, rel=0.03)
        assert abs(float(noise.mean())) < 5 * deviation / sqrt(len(noise))
    for client in one.signatures:
        apart = sent.signatures[client] - clean.signatures[client]
        assert float(apart.std()) == pytest.approx(deviation, rel=0.03)


def replace_noise(multiplier):
    return NOISY.model_copy(update={"noise_multiplier": multiplier})


@given(st.lists(st.integers(0, 40), min_size=4, max_size=4).filter(any), st.integers(0, 2**31), st.floats(1e-6, 1e6))
def test_prototypes_have_a_norm_of_at_most_one_whatever_the_features_are(rounds, counts, seed, scale):
    method, _, message, _, update = rounds["hcfl+(fedem)"]
    drawn = torch.randn(1, 5, 7, generator=torch.Generator().manual_seed(seed)) * scale
    found = Prototypes(drawn[:, :4], torch.tensor([counts]).float(), drawn[:, 4])
    parts = reported_shares(method, message, replace(single(update, 0), prototypes=found))
    assert float(parts["prototypes"].norm()) == pytest.approx(1, rel=1e-5)
    assert float(parts["mean"].norm()) == pytest.approx(1, rel=1e-5)
    held = torch.tensor(counts) > 0
    assert (parts["prototypes"][0, ~held] == 0).all()
    for share in ("weights", "prototypes", "mean"):
        assert float(parts[share].norm()) <= 1 + 1e-6


def test_a_change_of_models_is_cut_to_the_clip(rounds):
    method, _, message, _, update = rounds["hcfl+(fedrc)"]
    short = PrivacyConfig(mode="local-dp", clip=0.01, noise_multiplier=1e-12, delta=1e-5)
    sent, _ = private_upload(method, short, message, single(update, 1), generator())
    received = message.ensemble
    square = sum(
        float((getattr(sent.models, part)[name].double() - before.double()).square().sum())
        for part in ("extractors", "heads")
        for name, before in getattr(received, part).items()
    )
    assert sqrt(square) == pytest.approx(0.01, rel=1e-3)


def test_a_client_with_one_model_says_nothing_of_its_cluster_but_what_has_noise(rounds):
    method, _, message, _, update = rounds["hcfl+(fesem)"]
    one = single(update, 0)
    other = replace(one, started=one.started.flip(1), mass=one.mass.flip(1))
    first, second = (private_upload(method, NOISY, message, update, generator())[0] for update in (one, other))
    assert first.started.equal(second.started)
    assert first.mass.equal(second.mass)
    assert first.mass.equal(first.weights)


@pytest.mark.parametrize("name", ["hcfl+(fedrc)", "hcfl+(fedem)", "hcfl++"])
def test_prototypes_that_noise_has_swallowed_split_nobody(rounds, name):
    method, state, message, network, update = rounds[name]
    loud = PrivacyConfig(mode="local-dp", clip=1.0, epsilon=1.0, delta=1e-5)
    got = join_uploads([private_upload(method, loud, message, single(update, row), generator(row)) for row in range(8)])
    assert not got.prototypes.class_counts.any()
    after, distances = server.conclude(method, network, state, got)
    assert distances.matrix.abs().max() < 1e-6
    assert not any(type(change).__name__ == "Split" for change in after.changes)
    assert got.finite.all()


def test_counts_within_the_noise_are_all_alike_and_others_stay(rounds):
    method, _, message, _, update = rounds["hcfl+(fedrc)"]
    sent = [private_upload(method, NOISELESS, message, single(update, row), generator(row)) for row in range(8)]
    loud = [(upload, 0.35) for upload, _ in sent]
    floor, means = 0.35 / sqrt(8), torch.cat([upload.counts for upload, _ in sent]).mean(dim=0)
    assert 0 < (means < floor).sum() < means.numel()
    assert_close(join_uploads(loud).counts[0], means.clamp_min(floor))
