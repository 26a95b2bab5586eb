"""The kernels for many clients give what the plain layers give, in value and gradient.

They run on the CPU in Triton's interpreter, which executes the same program; on a GPU they are compiled.
"""

import os

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn.functional import relu6

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from hcfl.engines.stacked import Stacked
from hcfl.models import Network, TrainedPart, kernels, write_out
from hcfl.models.layers import BatchNorm, Convolution, Unit
from hcfl.models.unit_pairs import in_turn

CLIENTS = 3


@pytest.fixture
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "usable", lambda x: True)


def stacked(layer: torch.nn.Module, x: Tensor, share: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Run a layer for all clients, each with parameters of its own; return output, gradients and buffers."""
    generator = torch.Generator().manual_seed(1)
    written = write_out(layer).train()
    params = {
        name: torch.randn(CLIENTS, *tensor.shape, generator=generator).requires_grad_()
        for name, tensor in layer.named_parameters()
    }
    buffers = {
        name: torch.rand(CLIENTS, *tensor.shape, generator=generator).add_(0.5)
        for name, tensor in layer.named_buffers()
    }
    norms = [name for name, module in written.named_modules() if isinstance(module, BatchNorm)]

    def one(params: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor, share: Tensor) -> Tensor:
        shares = {f"{name}.share": share for name in norms}
        result: Tensor = functional_call(written, {**params, **buffers, **shares}, (x,))
        return result

    x = x.clone().requires_grad_()
    y = vmap(one)(params, buffers, x, share)
    wanted = torch.randn(y.shape, generator=generator) * (share > 0)[:, :, None, None, None]
    gradients = torch.autograd.grad((y * wanted).sum(), [x, *params.values()])
    return y.detach(), dict(zip(["x", *params], gradients, strict=True)), buffers


UNITS = [
    (5, 3, 1, 7, False),
    (6, 3, 2, 33, True),
    (7, 5, 2, 4, True),
    (4, 5, 1, 70, False),
    (2, 5, 1, 3, True),
    (1, 3, 1, 5, False),
    (3, 3, 2, 5, False),
    (8, 7, 1, 2, False),
]
"""Depthwise units: borders, strides, one pixel, more channels than a tile, both paddings, one without a kernel."""


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(("size", "kernel", "stride", "channels", "same"), UNITS)
def test_a_depthwise_unit(
    size: int, kernel: int, stride: int, channels: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0 has a full batch, client 1 a shorter one, client 2 none at all."""
    unit = Unit(Convolution(channels, channels, kernel, stride, depthwise=True, same=same), BatchNorm(channels), relu6)
    share = torch.tensor([[0.25] * 4, [0.5, 0.5, 0, 0], [0.0] * 4])
    x = torch.randn(CLIENTS, 4, size, size, channels, generator=torch.Generator().manual_seed(0))
    found = stacked(unit, x, share)
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    plain = stacked(unit, x, share)
    counted = share > 0
    torch.testing.assert_close(found[0][counted], plain[0][counted], atol=1e-5, rtol=1e-4)
    for name, gradient in plain[1].items():
        torch.testing.assert_close(
            found[1][name], gradient, atol=2e-5, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}"
        )
    for name, buffer in plain[2].items():
        torch.testing.assert_close(
            found[2][name], buffer, atol=1e-5, rtol=1e-4, msg=lambda text, n=name: f"{n}: {text}"
        )


class InTurn(torch.nn.Module):
    """A pointwise unit and a depthwise one, as in an inverted residual."""

    def __init__(self, channels: int, kernel: int, stride: int, same: bool) -> None:
        super().__init__()
        self.first = Unit(Convolution(3, channels), BatchNorm(channels), relu6)
        self.second = Unit(
            Convolution(channels, channels, kernel, stride, depthwise=True, same=same), BatchNorm(channels), relu6
        )

    def forward(self, x: Tensor) -> Tensor:
        return in_turn(self.first, self.second, x)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(("size", "kernel", "stride", "channels", "same"), UNITS)
def test_a_unit_and_a_depthwise_one_in_turn(
    size: int, kernel: int, stride: int, channels: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between is not written, and all gradients are the same, also where clients have fewer samples."""
    pair = InTurn(channels, kernel, stride, same)
    share = torch.tensor([[0.25] * 4, [1 / 3] * 3 + [0.0], [0.0] * 4])
    x = torch.randn(CLIENTS, 4, size, size, 3, generator=torch.Generator().manual_seed(0))
    found = stacked(pair, x, share)
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    plain = stacked(pair, x, share)
    torch.testing.assert_close(found[0][share > 0], plain[0][share > 0], atol=1e-4, rtol=1e-3)
    exactness = 2e-4 if size > 1 else 3e-2  # a variance of three values, where they are nearly equal
    for which in (1, 2):
        for name, wanted in plain[which].items():
            torch.testing.assert_close(
                found[which][name], wanted, atol=exactness, rtol=1e-3, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(("size", "kernel", "stride", "channels", "same"), UNITS)
def test_a_unit_and_a_depthwise_one_in_evaluation(
    size: int, kernel: int, stride: int, channels: int, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One model goes by its running statistics."""
    torch.manual_seed(0)
    pair = InTurn(channels, kernel, stride, same).eval()
    for unit in (pair.first, pair.second):
        assert isinstance(unit.norm, BatchNorm)
        unit.norm.running_mean.normal_()
        unit.norm.running_var.uniform_(0.5, 2.0)
        torch.nn.init.normal_(unit.norm.weight)
    x = torch.randn(5, size, size, 3)
    with torch.no_grad():
        found = pair(x)
        monkeypatch.setattr(kernels, "usable", lambda x: False)
        torch.testing.assert_close(found, pair(x), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize("activation", [None, torch.nn.functional.relu, relu6, torch.nn.functional.silu])
def test_normalisation_with_its_activation(activation: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a dense convolution; an activation that the kernel does not know is applied after it."""
    unit = Unit(Convolution(3, 6, 3, 2), BatchNorm(6), activation)  # type: ignore[arg-type]
    share = torch.tensor([[0.2] * 5, [1 / 3] * 3 + [0.0] * 2, [1.0] + [0.0] * 4])
    x = 4 * torch.randn(CLIENTS, 5, 6, 6, 3, generator=torch.Generator().manual_seed(0))
    found = stacked(unit, x, share)
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    plain = stacked(unit, x, share)
    torch.testing.assert_close(found[0][share > 0], plain[0][share > 0], atol=1e-5, rtol=1e-4)
    for name, gradient in plain[1].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-4, rtol=1e-3)


def test_a_step_of_descent() -> None:
    """Rows that are idle stay as they are; the others take torch.optim.SGD's step."""
    from hcfl.models.kernels.sgd import descend

    generator = torch.Generator().manual_seed(0)
    value, velocity, slope, target = torch.randn(4, 3, 5, 7, generator=generator)
    before, moving, idle = value.clone(), velocity.clone(), torch.tensor([False, True, False])
    descend([value], [velocity], [slope], [target], idle, lr=0.1, momentum=0.9, decay=0.01, proximal=0.5)
    wanted = 0.9 * moving + slope + 0.01 * before + 0.5 * (before - target)
    for row in range(3):
        assert torch.equal(value[row], before[row]) if idle[row] else torch.allclose(velocity[row], wanted[row])
        if not idle[row]:
            torch.testing.assert_close(value[row], before[row] - 0.1 * wanted[row])


@pytest.mark.usefixtures("_interpreted")
def test_one_model_in_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, one model's depthwise convolution uses the same kernel."""
    unit = Unit(Convolution(8, 8, 5, 2, depthwise=True, same=True), BatchNorm(8), relu6).eval()
    x = torch.randn(3, 7, 7, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found = unit(x)
        monkeypatch.setattr(kernels, "usable", lambda x: False)
        torch.testing.assert_close(found, unit(x), atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("_interpreted")
def test_adapters_of_a_frozen_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients share the frozen weights and statistics; normalisation shifts what the convolution gives."""
    torch.manual_seed(0)
    units = [
        Unit(Convolution(3, 8), BatchNorm(8), relu6),
        Unit(Convolution(8, 8, 3, depthwise=True), BatchNorm(8), relu6),
    ]
    for unit in units:
        unit.norm.running_mean.normal_()  # type: ignore[operator, union-attr]
        torch.nn.init.normal_(unit.norm.bias)  # type: ignore[arg-type]
    plain_network = Network(torch.nn.Sequential(*units, torch.nn.Flatten()), torch.nn.Linear(1, 1))
    network = TrainedPart(("adapters",), rank=2).network(plain_network)
    trained = {
        name: torch.randn(CLIENTS, *tensor.shape).requires_grad_()
        for name, tensor in network.trained_part(network.extractor).items()
    }
    x, share = torch.randn(CLIENTS, 4, 5, 5, 3), torch.full((CLIENTS, 4), 0.25)
    moment = torch.zeros(CLIENTS).long(), torch.zeros(CLIENTS).long()

    def passed() -> tuple[Tensor, ...]:
        features = Stacked(network).embed(trained, {}, x, share, moment, None)
        return features, *torch.autograd.grad(features.square().sum(), list(trained.values()))

    found = passed()
    monkeypatch.setattr(kernels, "usable", lambda x: False)
    for mine, expected in zip(found, passed(), strict=True):
        torch.testing.assert_close(mine, expected, atol=1e-3, rtol=1e-4)
    alone = network.embed({name: tensor[1] for name, tensor in trained.items()}, x[1])
    torch.testing.assert_close(found[0][1], alone, atol=1e-4, rtol=1e-4)
