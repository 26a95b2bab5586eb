"""What is trained of an extractor: all, nothing, parameters by their names, or low-rank adapters."""

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.testing import assert_close

from hcfl.errors import InputError
from hcfl.models import MODELS, Network, TrainedPart, parameters_of
from hcfl.models.layers import Convolution, Style
from hcfl.models.trained_part import LowRank, is_linear, merge_adapters


def images() -> nn.Module:
    """A widening, a depthwise convolution, the mean over pixels."""
    style = Style()
    return nn.Sequential(style.unit(3, 4), style.unit(4, 4, kernel=3, depthwise=True), Mean())


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(dim=(1, 2))


def network_of(extractor: nn.Module, *names: str, **more) -> Network:
    return TrainedPart(names, **more).network(Network(extractor, nn.Linear(4, 2)))


def test_an_adapted_weight_is_the_weight_and_the_scaled_product():
    adapter = LowRank(torch.zeros(2, 3), rank=1, scale=10.0)
    with torch.no_grad():
        adapter.A.copy_(torch.tensor([[1.0, 2, 3]]))
        adapter.B.copy_(torch.tensor([[1.0], [-1]]))
    expected = torch.tensor([[11.0, 21, 31], [-9, -19, -29]])
    assert torch.equal(adapter(torch.ones(2, 3)), expected)
    assert torch.equal(adapter(torch.ones(2, 3, 1, 1)), expected.view(2, 3, 1, 1))


def test_adapters_start_as_the_network_without_and_only_they_are_trained():
    extractor = images()
    network = network_of(extractor, "adapters", rank=2)
    x = torch.randn(5, 6, 6, 3)
    trained = network.trained_part(network.extractor)
    assert {name: tuple(tensor.shape) for name, tensor in trained.items()} == {
        "0.conv.parametrizations.weight.0.A": (2, 3),
        "0.conv.parametrizations.weight.0.B": (4, 2),
    }
    assert_close(network.embed(trained, x), extractor.eval()(x))
    assert extractor[0].conv.weight.requires_grad, "the user's own module stays as it was"

    trained["0.conv.parametrizations.weight.0.B"] += 1
    changed = network.embed(trained, x)
    assert not torch.allclose(changed, extractor(x))
    network.extractor.load_state_dict(trained, strict=False)
    plain = merge_adapters(network.extractor).eval()
    assert parameters_of(plain).keys() == parameters_of(extractor).keys()
    assert_close(plain(x), changed)
    assert_close(functional_call(extractor, parameters_of(plain), (x,)), changed)


def test_linear_and_one_by_one_layers_are_adapted():
    adapted = [nn.Linear(2, 3), nn.Conv2d(2, 3, 1), nn.Conv1d(2, 3, 1, stride=2), Convolution(2, 3)]
    others = [nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 1, groups=2), Convolution(2, 2, 3), Convolution(2, 2, depthwise=True)]
    others += [nn.Embedding(2, 3), nn.LayerNorm(3), nn.ConvTranspose2d(2, 3, 1)]
    assert all(map(is_linear, adapted))
    assert not any(map(is_linear, others))


def test_adapters_of_some_layers_beside_parameters_of_others():
    extractor, _ = MODELS["mlp"]((6,), 2)
    network = network_of(extractor, "adapters", "*.bias", layers=("3",))
    assert sorted(network.trained_part(network.extractor)) == [
        "1.bias",
        "3.bias",
        "3.parametrizations.weight.0.A",
        "3.parametrizations.weight.0.B",
    ]


def test_a_frozen_normalisation_goes_by_its_statistics_and_a_trained_one_follows_its_batches():
    extractor, x = images(), torch.randn(7, 4, 4, 3) + 5
    frozen = network_of(extractor, "adapters")
    assert not frozen.buffers
    trained = frozen.trained_part(frozen.extractor)
    assert_close(frozen.embed(trained, x, training=True), extractor.eval()(x))

    partly = network_of(extractor, "1.*")
    assert partly.buffers == {"1.norm.running_mean", "1.norm.running_var"}
    mine = partly.trained_part(partly.extractor)
    features = partly.embed(mine, x, training=True)
    assert mine["1.norm.running_mean"].abs().sum() > 0
    middle = extractor[0].eval()(x)
    assert_close(features, extractor[2](extractor[1].train()(middle)))
    assert torch.equal(partly.extractor[0].norm.running_mean, torch.zeros(4))


def test_dropout_layers_of_a_frozen_extractor_do_nothing():
    extractor = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.9), nn.Linear(4, 4))
    network, x = network_of(extractor, "2.*"), torch.ones(9, 3)
    trained = network.trained_part(network.extractor)
    assert_close(network.embed(trained, x, training=True), network.embed(trained, x))


def test_what_is_fixed():
    extractor = images()
    assert network_of(extractor, "heads").fixed
    assert not network_of(extractor, "adapters").fixed
    assert not network_of(extractor, "all").fixed
    assert not Network(nn.Flatten(), nn.Linear(4, 2)).fixed


@pytest.mark.parametrize(
    ("names", "more", "said"),
    [
        (("0.conv.wieght",), {}, "training.train = '0.conv.wieght': is no parameter of the extractor; did you mean"),
        (("zzz",), {}, "training.train = 'zzz': is no parameter of the extractor; it has 0.conv.weight, 0.norm.weight"),
        (("adapters",), {"layers": ("9",)}, "training.lora_layers = '9': is no linear or 1×1 layer of the extractor"),
    ],
)
def test_unknown_names(names, more, said):
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        network_of(images(), *names, **more)


def test_nothing_to_adapt():
    with pytest.raises(InputError, match="has no linear and no 1×1 layer to adapt"):
        network_of(nn.Conv2d(3, 4, 3), "adapters")
