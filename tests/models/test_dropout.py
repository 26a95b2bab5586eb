"""Masks of dropout: computed from whole numbers, so the same wherever they are needed."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.models import IMAGE_NETWORKS, Network, check_pair, drop
from hcfl.models.dropout import kept


def mixed(word: int) -> int:
    """The hash as it is written in C, by whole numbers of any size."""
    word ^= word >> 15
    word = word * 0x2C1B3C6D % 2**32
    word ^= word >> 12
    word = word * 0x297A2D39 % 2**32
    return word ^ word >> 15


def stays(rate: float, key: int, step: int, sample: int, feature: int) -> bool:
    whose = mixed(mixed(key % 2**32 ^ step) ^ key // 2**32)
    return mixed((mixed(whose ^ sample) + feature * 0x9E3779B9) % 2**32) / 2**32 >= rate


@pytest.mark.parametrize("key", [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 0x7ABCDEF012345678])
@pytest.mark.parametrize("step", [0, 1, 70_000])
def test_masks_are_those_of_the_hash_by_hand(key, step):
    found = kept(torch.Size((5, 7)), 0.3, torch.tensor(key), torch.tensor(step))
    assert found.tolist() == [[stays(0.3, key, step, j, f) for f in range(7)] for j in range(5)]


def test_a_mask_stays_what_it_is():
    """Another hash would change every run with dropout."""
    found = kept(torch.Size((2, 12)), 0.5, torch.tensor(12345678901234567), torch.tensor(3))
    assert ["".join("01"[value] for value in row) for row in found.tolist()] == GOLDEN


GOLDEN = ["000010110110", "100111000101"]


def test_what_stays_is_scaled_and_what_is_dropped_gets_no_gradient():
    features = torch.arange(1.0, 25).view(4, 6).requires_grad_()
    dropped = drop(features, 0.2, 7, 0)
    mask = kept(torch.Size((4, 6)), 0.2, torch.tensor(7), torch.tensor(0))
    assert 0 < mask.sum() < 24
    assert_close(dropped, torch.where(mask, features * 1.25, 0))
    (gradient,) = torch.autograd.grad(dropped.sum(), features)
    assert_close(gradient, mask * 1.25)


def test_without_dropout_features_are_left_alone():
    features = torch.ones(2, 3)
    assert drop(features, 0.0, 0, 0) is features


def test_masks_know_nothing_of_those_beside_them_or_of_what_fills_up_a_batch():
    keys, steps = torch.tensor([5, 6, 2**62]), torch.tensor([0, 9, 4])
    together = kept(torch.Size((3, 8, 10)), 0.5, keys, steps)
    for row in range(3):
        assert torch.equal(together[row, :5], kept(torch.Size((5, 10)), 0.5, keys[row], steps[row]))
    assert torch.equal(together[1:], kept(torch.Size((2, 8, 10)), 0.5, keys[1:], steps[1:]))


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5])
def test_masks_are_as_good_as_independent(rate):
    """Shares, and correlations between neighbours, keys and steps, within four standard errors."""
    shape, keys, steps = torch.Size((20, 64, 256)), torch.arange(20) << 40, torch.zeros(20, dtype=torch.long)
    one = kept(shape, rate, keys, steps).double() - (1 - rate)
    error, spread = (rate * (1 - rate) / one.numel()) ** 0.5, rate * (1 - rate)
    assert abs(one.mean()) < 4 * error
    others = {
        "step": kept(shape, rate, keys, steps + 1).double() - (1 - rate),
        "key": kept(shape, rate, keys + 1, steps).double() - (1 - rate),
        "high part of the key": one.roll(1, 0),
        "sample": one.roll(1, 1),
        "feature": one.roll(1, 2),
    }
    for name, other in others.items():
        assert abs((one * other).mean()) / spread * one.numel() ** 0.5 < 4, name
    for axes in ((0, 1), (0, 2), (1, 2)):
        means = one.mean(dim=axes)
        assert means.abs().max() < 4.5 * (spread * means.numel() / one.numel()) ** 0.5, axes


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_image_networks_carry_the_rate_and_their_weights_and_features_are_the_same(name):
    torch.manual_seed(0)
    extractor, head = IMAGE_NETWORKS[name]((28, 28, 1), 3, dropout=0.3)
    torch.manual_seed(0)
    plain, _ = IMAGE_NETWORKS[name]((28, 28, 1), 3)
    assert (Network(extractor, head).dropout, Network(plain, head).dropout) == (0.3, 0.0)
    assert extractor.state_dict().keys() == plain.state_dict().keys()
    x = torch.randn(2, 28, 28, 1)
    for training in (True, False):
        assert torch.equal(extractor.train(training)(x), plain.train(training)(x)), "training drops, not the extractor"


def test_a_user_s_own_extractor_may_have_a_rate_and_it_must_be_one():
    extractor = nn.Flatten()
    assert Network(extractor, nn.Linear(4, 3)).dropout == 0
    extractor.feature_dropout = 0.25
    assert check_pair((extractor, nn.Linear(4, 3)), (2, 2), 3).dropout == 0.25
    for wrong in (1, -0.1, float("nan"), "much"):
        extractor.feature_dropout = wrong
        with pytest.raises(InputError, match=r"feature_dropout = .* of the extractor: must be at least 0"):
            check_pair((extractor, nn.Linear(4, 3)), (2, 2), 3)
