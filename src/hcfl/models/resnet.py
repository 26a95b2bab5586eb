"""ResNet-18."""

from functools import partial

from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from hcfl.models.layers import NormName, StemName, Style, check_image, unit_names
from hcfl.models.network import Pair
from hcfl.models.pretrained import Published, from_url, load

STEM, STAGES, BLOCKS = 64, (64, 128, 256, 512), 2


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a connection around them, projected where the shape changes."""

    def __init__(self, before: int, after: int, stride: int, style: Style) -> None:
        super().__init__()
        self.first = style.unit(before, after, kernel=3, stride=stride)
        self.second = style.unit(after, after, kernel=3, active=False)
        changes = stride > 1 or before != after
        self.around = style.unit(before, after, stride=stride, active=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """(N, H, W, C) → (N, H′, W′, C′)."""
        y: Tensor = self.second(self.first(x))
        return relu(y + (x if self.around is None else self.around(x)))


class ResNetExtractor(nn.Module):
    """Stem, four stages of two blocks, and the mean over pixels."""

    def __init__(self, channels: int, stem: StemName, style: Style, dropout: float = 0.0) -> None:
        super().__init__()
        self.feature_dropout = dropout
        self.pooled = stem == "original"
        self.stem = style.unit(channels, STEM, kernel=7, stride=2 if stem == "original" else 1)
        blocks: list[BasicBlock] = []
        before = STEM
        for stage, after in enumerate(STAGES):
            for block in range(BLOCKS):
                blocks.append(BasicBlock(before, after, 2 if stage > 0 and block == 0 else 1, style))
                before = after
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Images (N, H, W, C) → features (N, 512)."""
        x = self.stem(x)
        if self.pooled:
            x = max_pool2d(x.movedim(-1, 1), kernel_size=3, stride=2, padding=1).movedim(1, -1)
        for block in self.blocks:
            x = block(x)
        return x.mean(dim=(1, 2))


def resnet_18(
    shape: tuple[int, ...],
    classes: int,
    norm: NormName = "batch",
    stem: StemName = "original",
    pretrained: str = "none",
    dropout: float = 0.0,
) -> Pair:
    """Build ResNet-18 (He et al., 2016), initialised as torchvision does."""
    check_image("resnet-18", shape)
    extractor = ResNetExtractor(shape[-1], stem, Style(norm), dropout)
    head = nn.Linear(STAGES[-1], classes)
    if pretrained != "none":
        load(extractor, shape[-1], _torchvision(), pretrained)
    return extractor, head


def _torchvision() -> Published:
    """Name the tensors as torchvision's resnet18 does."""
    modules = unit_names("stem", "conv1", "bn1")
    for i in range(len(STAGES) * BLOCKS):
        here, there = f"blocks.{i}", f"layer{i // BLOCKS + 1}.{i % BLOCKS}"
        modules |= unit_names(f"{here}.first", f"{there}.conv1", f"{there}.bn1")
        modules |= unit_names(f"{here}.second", f"{there}.conv2", f"{there}.bn2")
        modules |= unit_names(f"{here}.around", f"{there}.downsample.0", f"{there}.downsample.1")
    imagenet = partial(from_url, "https://download.pytorch.org/models/resnet18-f37072fd.pth")
    return Published("torchvision's resnet18", modules, "fc", imagenet)
