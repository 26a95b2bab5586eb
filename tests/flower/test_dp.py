"""Clipping and noise, by Flower's own mods: the bound holds, and the noise is as large as it says."""

from math import log, sqrt

import numpy as np
import pytest
import torch
from fake_grid import _a_run  # noqa: F401
from flwr.app import Context, Message, RecordDict

from hcfl.config import PrivacyConfig
from hcfl.engines.flower import dp
from hcfl.methods import build
from hcfl.privacy.noise import bound, deviation
from hcfl.privacy.sums import in_units

LOCAL = PrivacyConfig(mode="local-dp", clip=2.0, epsilon=0.5, delta=1e-5)
CENTRAL = PrivacyConfig(mode="central-dp", clip=2.0, noise_multiplier=1.5, delta=1e-5)


def protected(method, privacy, parts):
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    return dp.protected(build(method), privacy, parts, message, context)


def models(**sizes):
    """Of a method that says nothing else."""
    return {name: part for name, part in parts(**sizes).items() if name not in ("mass", "counts")}


def parts(length=20_000, scale=1.0):
    generator = torch.Generator().manual_seed(1)
    draw = torch.randn(length, generator=generator).double() * scale
    return {
        "extractor.weight": draw[: length // 2].view(1, -1),
        "head.bias": draw[length // 2 :].view(1, -1),
        "mass": torch.tensor([0.0, 1.0, 0.0]).double(),
        "size": torch.ones(1).double(),
        "counts": torch.full((3, 4), 1 / 12).double(),
        "objective": torch.tensor([-5.0]).double(),
        "held_out": torch.tensor([3.0, 4.0]).double(),
    }


def norm(some):
    return float(torch.cat([part.double().flatten() for part in some.values()]).norm())


def test_a_long_update_is_cut_and_a_short_one_is_not():
    for scale, expected in ((1.0, 2.0), (1e-3, norm({"it": parts(scale=1e-3)["extractor.weight"]}) * 2**0.5)):
        sent = protected("fedavg", CENTRAL, models(scale=scale))
        assert set(sent) == {"extractor.weight", "head.bias"}
        assert norm(sent) == pytest.approx(expected, rel=0.02)
        assert norm(sent) <= 2.0 + 1e-6
        direction = torch.nn.functional.cosine_similarity(
            sent["head.bias"].double(), parts(scale=scale)["head.bias"], dim=1
        )
        assert float(direction) == pytest.approx(1)


@pytest.mark.parametrize(("method", "shares"), [("fedrc", ["counts"]), ("ifca", ["mass", "counts"])])
def test_nothing_leaves_but_models_and_the_shares_that_are_needed(method, shares):
    sent = protected(method, CENTRAL, parts())
    assert set(sent) == {"extractor.weight", "head.bias", *shares}
    assert norm(sent) <= bound(sent, 2.0) + 1e-6
    assert bound(sent, 2.0) == pytest.approx(2.0 * sqrt(1 + len(shares)))
    for name in shares:
        assert in_units(sent, CENTRAL.clip)[name].double().equal(sent[name].double() / 2)


def test_a_client_s_own_noise_is_as_large_as_its_epsilon_says():
    clean, sent = protected("ifca", CENTRAL, parts()), protected("ifca", LOCAL, parts())
    expected = 2 * 2.0 * sqrt(3) * sqrt(2 * log(1.25e5)) / 0.5  # sensitivity: another upload of norm 2√3
    noise = torch.cat([(sent[name] - clean[name]).flatten() for name in ("extractor.weight", "head.bias")])
    assert float(noise.std()) == pytest.approx(expected, rel=0.02)
    assert abs(float(noise.mean())) < 4 * expected / sqrt(len(noise))
    assert deviation(LOCAL, sent, 9) == pytest.approx(3 * expected)
    assert (sent["mass"] != clean["mass"]).all()
    assert (sent["counts"] != clean["counts"]).all()


def test_the_server_s_noise_is_as_large_as_its_multiplier_says():
    sums = {name: part.double() for name, part in protected("fedavg", CENTRAL, models()).items()}
    noised = dp.with_noise(CENTRAL, sums, 7)
    noise = torch.cat([(noised[name] - sums[name]).flatten() for name in sums])
    assert float(noise.std()) == pytest.approx(1.5 * 2.0, rel=0.02)
    assert deviation(CENTRAL, sums, 7) == pytest.approx(1.5 * 2.0)
    assert dp.with_noise(LOCAL, sums, 7) is sums


def test_noise_does_not_come_from_a_seed_that_others_know():
    drawn = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002
        drawn.append(protected("fedavg", LOCAL, parts())["head.bias"])
    assert not drawn[0].equal(drawn[1])
    np.random.seed(0)  # noqa: NPY002
    one = dp.with_noise(CENTRAL, {"head.bias": torch.zeros(9).double()}, 3)
    np.random.seed(0)  # noqa: NPY002
    assert not one["head.bias"].equal(dp.with_noise(CENTRAL, {"head.bias": torch.zeros(9).double()}, 3)["head.bias"])


def test_noise_leaves_everybody_else_s_random_numbers_alone():
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    protected("fedavg", LOCAL, parts())
    dp.with_noise(CENTRAL, {"head.bias": torch.zeros(9).double()}, 3)
    assert np.random.random() == expected  # noqa: NPY002


def test_an_update_of_zeros_is_one():
    zeros = {"head.bias": torch.zeros(1, 5).double()}
    assert protected("fedavg", CENTRAL, zeros)["head.bias"].abs().max() < 1e-20
    assert protected("fedavg", LOCAL, zeros)["head.bias"].abs().min() > 0
