"""Masks of dropout: computed from whole numbers, so the same wherever they are needed."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.models import IMAGE_NETWORKS, Network, check_pair, drop
from hcfl.models.dropout import Dropout, at, dropout_layers, kept
from hcfl.rng import derive


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


def test_masks_of_more_axes_are_those_of_the_hash_by_hand_too():
    key, step = 0x7ABCDEF012345678, 3
    found = kept(torch.Size((2, 3, 4)), 0.3, torch.tensor(key), torch.tensor(step))
    for j in range(2):
        sample = mixed(mixed(mixed(key % 2**32 ^ step) ^ key // 2**32) ^ j)
        for channel in range(3):
            words = [(mixed(sample ^ channel) + pixel * 0x9E3779B9) % 2**32 for pixel in range(4)]
            assert found[j, channel].tolist() == [mixed(word) / 2**32 >= 0.3 for word in words]


def two_layers() -> nn.Sequential:
    values = nn.Dropout(0.5)
    return nn.Sequential(values, nn.Identity(), nn.Dropout2d(0.25), values)


def test_dropout_layers_of_a_network_are_ours_and_the_user_s_module_stays_as_it_is():
    conv, shared = nn.Conv2d(1, 2, 3), two_layers()
    mine = nn.Sequential(conv, shared, nn.Dropout(0.0))
    network = Network(mine, nn.Linear(4, 3))
    assert [type(layer) for layer in shared] == [nn.Dropout, nn.Identity, nn.Dropout2d, nn.Dropout]
    first, _, second, third = network.extractor[1]
    assert first is third, "one layer that is used twice"
    assert [(layer.number, layer.rate, layer.channels) for layer in (first, second)] == [
        (0, 0.5, False),
        (1, 0.25, True),
    ]
    assert network.extractor[0].weight is conv.weight, "a large backbone is not copied"
    assert Network(mine[0], mine[2]).extractor is conv, "nothing to replace"
    again = Network(network.extractor, network.head)
    assert again.extractor is network.extractor


def test_every_layer_use_step_and_key_has_a_mask_of_its_own_and_channels_fall_as_a_whole():
    extractor = Network(two_layers(), nn.Linear(4, 3)).extractor
    layers, x = dropout_layers(extractor), torch.ones(6, 5, 3, 3)

    def masks(key: int, step: int, number: int, use: int, shape: tuple[int, ...], rate: float) -> torch.Tensor:
        return kept(shape, rate, torch.tensor(key ^ derive(number, "dropout layer", use)), torch.tensor(step))

    for key, step in ((7, 0), (7, 1), (2**62, 0)):
        with at(layers, (key, step)):
            found = extractor.train()(x)
        channels = masks(key, step, 1, 0, (6, 5), 0.25)[:, :, None, None]
        first, second = (masks(key, step, 0, use, (6, 5, 3, 3), 0.5) for use in (0, 1))
        assert not torch.equal(first, second)
        assert_close(found, (first & second & channels) * 4 / 0.75)
    assert torch.equal(extractor.eval()(x), x)


def test_a_rate_of_the_channels_is_near_its_share():
    layer = Dropout(0.3, 0, channels=True).train()
    with at([layer], (5, 0)):
        stays = layer(torch.ones(200, 64, 2)) > 0
    assert torch.equal(stays[:, :, 0], stays[:, :, 1])
    assert abs(stays.double().mean() - 0.7) < 4 * (0.21 / (200 * 64)) ** 0.5


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
