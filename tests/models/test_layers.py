"""Layers: both forms compute what torch's own layers compute on channels-first images."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap
from torch.nn.functional import conv2d, pad
from torch.testing import assert_close

from hcfl.models import parameters_of
from hcfl.models.ensemble import stack
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


@pytest.mark.parametrize("clients", [1, 3])
def test_batch_normalisation_of_several_clients_equals_torch_s(clients):
    """Under vmap: every client's own parameters and running statistics."""
    torch.manual_seed(0)
    theirs = [nn.BatchNorm2d(5, momentum=0.1).double() for _ in range(clients)]
    for layer in theirs:
        for tensor in (layer.weight, layer.bias, layer.running_mean, layer.running_var):
            nn.init.uniform_(tensor, 0.5, 1.5)
    ours = write_out(BatchNorm(5)).train()
    stacked = stack([parameters_of(layer) for layer in theirs])
    del stacked["num_batches_tracked"]
    for samples in (4, 2, 1):
        x = 3 + 2 * torch.randn(clients, samples, 3, 2, 5, dtype=torch.float64)
        found = vmap(lambda params, inputs: functional_call(ours, params, (inputs,)))(stacked, x)
        for client, layer in enumerate(theirs):
            assert_close(found[client], layer(x[client].movedim(-1, 1)).movedim(1, -1))
            assert_close(stacked["running_mean"][client], layer.running_mean)
            assert_close(stacked["running_var"][client], layer.running_var)


def test_samples_without_a_share_are_as_if_they_were_not_there():
    torch.manual_seed(0)
    theirs = nn.BatchNorm2d(5).double()
    ours = write_out(BatchNorm(5)).double()
    x = torch.randn(6, 3, 2, 5, dtype=torch.float64, requires_grad=True)
    here = torch.tensor([True, True, False, True, False, False])
    filled = torch.where(here.view(-1, 1, 1, 1), x, torch.inf)
    found = functional_call(ours, {"share": here.double() / 3}, (filled,))
    expected = theirs(x[here].movedim(-1, 1)).movedim(1, -1)
    assert_close(found[here], expected)
    assert found.isfinite().all(), "so that what is made of it can count nothing too"
    assert_close(ours.running_mean, theirs.running_mean)
    assert_close(ours.running_var, theirs.running_var)
    upstream = torch.randn_like(expected)
    gradient = torch.autograd.grad((found[here] * upstream).sum(), x)[0]
    assert_close(gradient, torch.autograd.grad((expected * upstream).sum(), x)[0])


def test_running_statistics_stay_where_nobody_has_a_share():
    ours = write_out(BatchNorm(5))
    found = functional_call(ours, {"share": torch.zeros(4)}, (torch.randn(4, 3, 2, 5),))
    assert found.isfinite().all()
    assert (ours.running_mean == 0).all()
    assert (ours.running_var == 1).all()


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
