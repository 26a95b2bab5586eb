"""Layers: both forms compute what torch's own layers compute on channels-first images."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, pad
from torch.testing import assert_close

from hcfl.models.layers import BatchNorm, Convolution, GroupNorm, window, write_out

FORMS = {"kernels": lambda layer: layer, "written out": write_out}
forms = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def expected_convolution(x, layer):
    """Pad as the words say, then let torch convolve with the whole kernel."""
    sides = []
    for size in (x.shape[2], x.shape[1]):
        total = max((-(-size // layer.stride) - 1) * layer.stride + layer.kernel - size, 0)
        sides += [total // 2, total - total // 2] if layer.same else [layer.kernel // 2] * 2
    groups = x.shape[-1] if layer.depthwise else 1
    padded = pad(x.movedim(-1, 1), sides)
    return conv2d(padded, layer.weight, stride=layer.stride, groups=groups).movedim(1, -1)


@forms
@pytest.mark.parametrize("kernel", [1, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("depthwise", [False, True])
def test_convolutions_of_every_size_equal_torch_s(form, kernel, stride, same, depthwise):
    torch.manual_seed(0)
    layer = form(Convolution(4, 4 if depthwise else 6, kernel, stride, depthwise, same)).double()
    for height in range(1, 10):
        for width in (1, 2, 5, 8):
            x = torch.randn(2, height, width, 4, dtype=torch.float64, requires_grad=True)
            ours, theirs = layer(x), expected_convolution(x, layer)
            assert_close(ours, theirs)
            upstream = torch.randn_like(ours)
            wrt = (x, layer.weight)
            for mine, other in zip(
                torch.autograd.grad(ours, wrt, upstream), torch.autograd.grad(theirs, wrt, upstream), strict=True
            ):
                assert_close(mine, other)


def test_taps_that_only_meet_padding_are_left_out():
    assert window(1, 3, 1, same=False).taps == slice(1, 2)
    assert window(2, 5, 1, same=False).taps == slice(1, 4)
    assert window(8, 5, 1, same=False).taps == slice(0, 5)


@forms
@pytest.mark.parametrize("training", [False, True])
def test_batch_normalisation_equals_torch_s(form, training):
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(5, eps=1e-3).double().train(training)
    for tensor in (theirs.weight, theirs.bias, theirs.running_mean, theirs.running_var):
        nn.init.uniform_(tensor, 0.5, 1.5)
    ours = form(BatchNorm(5, eps=1e-3)).double().train(training)
    ours.load_state_dict({name: t for name, t in theirs.state_dict().items() if name != "num_batches_tracked"})
    for _ in range(2):
        x = 3 + 2 * torch.randn(4, 3, 2, 5, dtype=torch.float64)
        assert_close(ours(x), theirs(x.movedim(-1, 1)).movedim(1, -1))
    assert_close(ours.running_mean, theirs.running_mean)
    assert_close(ours.running_var, theirs.running_var)


@pytest.mark.parametrize(("channels", "groups"), [(64, 4), (24, 3), (40, 5), (112, 7)])
def test_group_normalisation_takes_groups_of_16_or_8_channels(channels, groups):
    ours, theirs = GroupNorm(channels), nn.GroupNorm(groups, channels)
    nn.init.normal_(theirs.weight)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(3, 4, 2, channels)
    assert_close(ours(x), theirs(x.movedim(-1, 1)).movedim(1, -1))


def test_writing_out_leaves_the_original_as_it_is():
    module = nn.Sequential(Convolution(3, 4, 3), BatchNorm(4))
    copy = write_out(module)
    assert [layer.written_out for layer in module] == [False, False]
    assert [layer.written_out for layer in copy] == [True, True]
