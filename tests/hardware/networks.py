"""The networks that the loads train: LittleCNN, VGG16 and ResNet-50, with random weights."""

from typing import Any

import torch
from torch import nn

CLASSES = 10
BLOCKS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""ResNet-50's stages: blocks, width, stride of the first block."""


def _drawn(*layers: Any, drop: float) -> list[Any]:
    return [*layers, nn.MaxPool2d(2), nn.Dropout(drop)]


def little_cnn() -> Any:
    """The shallow network of the DGX-1 deep learning paper, for images of 32 by 32."""
    first = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU())
    second = (nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU())
    side = ((32 - 2) // 2 - 2) // 2
    ends = (nn.Linear(64 * side * side, 512), nn.ReLU(), nn.Dropout(0.5), nn.Linear(512, CLASSES))
    return nn.Sequential(
        *_drawn(*first, drop=0.25), *_drawn(*second, drop=0.25), nn.Flatten(), *ends
    )


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *_normed(channels, width, 1, 1),
            nn.ReLU(inplace=True),
            *_normed(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_normed(width, 4 * width, 1, 1),
        )
        same = channels == 4 * width and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(*_normed(channels, 4 * width, 1, stride))
        )

    def forward(self, images: Any) -> Any:
        """The block's output."""
        return torch.relu(self.path(images) + self.shortcut(images))


def _normed(channels: int, width: int, size: int, stride: int) -> tuple[Any, Any]:
    convolution = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    return convolution, nn.BatchNorm2d(width)


def resnet50() -> Any:
    """The 50 layers of He et al., for images of 224 by 224."""
    layers: list[Any] = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
    channels = 64
    for blocks, width, stride in BLOCKS:
        for number in range(blocks):
            layers.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*layers)
