"""The networks that come with hcfl, each an extractor and a linear head."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from hcfl.errors import InputError
from hcfl.models.layers import check_image
from hcfl.models.mobile import efficientnet_lite0, mobilenet_v2
from hcfl.models.network import Builder, Pair
from hcfl.models.resnet import resnet_18


class AxisToFront(nn.Module):
    """Move the last axis (channels, as users store data) to where torch's convolutions expect it."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, …, C) → (N, C, …), without copying: images become torch's channels-last layout."""
        return x.movedim(-1, 1)


class AsOneRow(nn.Module):
    """A series as an image of one row: torch pools images with channels last ten times as fast as series."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) → (N, D, 1, T), without copying."""
        return x.movedim(-1, 1).unsqueeze(2)


class RowConvolution(nn.Conv1d):
    """A convolution along images of one row, with the parameters of one along series."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, 1, T) → (N, C′, 1, T)."""
        return conv2d(x, self.weight.unsqueeze(2), self.bias, padding=(0, self.kernel_size[0] // 2))


def mlp(shape: tuple[int, ...], classes: int, hidden: Sequence[int] = (256, 128)) -> Pair:
    """Build a perceptron for inputs of any shape."""
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers), nn.Linear(widths[-1], classes)


def cnn(shape: tuple[int, ...], classes: int, channels: Sequence[int] = (32, 64, 128)) -> Pair:
    """Build a small convolutional network for images (H, W, C) of any size."""
    check_image("cnn", shape)
    layers: list[nn.Module] = [AxisToFront()]
    for before, after in pairwise([shape[-1], *channels]):
        # The activation does not change which value is the largest, so it comes after pooling, on a quarter as many.
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(channels[-1], classes)


def cnn1d(shape: tuple[int, ...], classes: int, channels: Sequence[int] = (32, 64, 128)) -> Pair:
    """Build a small convolutional network for series (T, D) of any length."""
    if len(shape) != 2:
        raise InputError(f"model.name = cnn1d: reads series (T, D), but the inputs have shape {shape}")
    layers: list[nn.Module] = [AsOneRow()]
    for before, after in pairwise([shape[-1], *channels]):
        # After pooling, as in `cnn`.
        layers += [RowConvolution(before, after, 5), nn.MaxPool2d((1, 2), ceil_mode=True), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), nn.Linear(channels[-1], classes)


class LastState(nn.Module):
    """A gated recurrent unit (Cho et al., 2014) over a series, of which the last state is returned.

    As torch's GRU, written in plain operations, so that it trains for all clients at once.
    """

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.width = width
        self.seen, self.kept = nn.Linear(channels, 3 * width), nn.Linear(width, 3 * width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(width**-0.5), width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, D) → (N, width)."""
        state = x.new_zeros(len(x), self.width)
        for seen in self.seen(x).unbind(dim=1):
            (reset, update, new), (kept_reset, kept_update, kept_new) = (
                part.chunk(3, dim=1) for part in (seen, self.kept(state))
            )
            gate = torch.sigmoid(update + kept_update)
            proposed = torch.tanh(new + torch.sigmoid(reset + kept_reset) * kept_new)
            state = (1 - gate) * proposed + gate * state
        return state


def gru(shape: tuple[int, ...], classes: int, width: int = 32) -> Pair:
    """Build a recurrent network for series (T, D) of any length."""
    if len(shape) != 2:
        raise InputError(f"model.name = gru: reads series (T, D), but the inputs have shape {shape}")
    return LastState(shape[-1], width), nn.Linear(width, classes)


IMAGE_NETWORKS: dict[str, Callable[..., Pair]] = {
    "mobilenet-v2": mobilenet_v2,
    "resnet-18": resnet_18,
    "efficientnet-lite0": efficientnet_lite0,
}
"""Builders that also take `norm`, `stem`, `pretrained` and `dropout`."""

IMAGE_NETWORK_OPTIONS: dict[str, str | float] = {
    "norm": "batch",
    "stem": "original",
    "pretrained": "none",
    "dropout": 0.0,
}
"""What these are unless the user says otherwise."""

MODELS: dict[str, Builder] = {"mlp": mlp, "cnn": cnn, "cnn1d": cnn1d, "gru": gru, **IMAGE_NETWORKS}
"""Builders by the name that configurations use."""


SMALLEST_FOR_CNN = 16
"""Below this side, three poolings leave a convolutional network nothing to see."""


def default_model(shape: tuple[int, ...]) -> str:
    """Return the model for inputs of this shape: images → cnn (tiny ones → mlp), series → cnn1d, vectors → mlp."""
    if len(shape) == 3:
        return "cnn" if min(shape[:2]) >= SMALLEST_FOR_CNN else "mlp"
    return "cnn1d" if len(shape) == 2 else "mlp"
