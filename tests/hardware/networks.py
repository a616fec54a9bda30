"""Training of GPT-2 and ResNet-50 with random weights and data, which lie on the GPU."""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware.traced.loads_fourth import gpt, next_token_loss

DEVICE = os.environ.get("DGX_LOAD_DEVICE", "cuda")
"""`cpu` tries a load on a machine without a GPU, at small sizes."""

TOKENS, IMAGES = 32, 256
"""Rows of 1024 tokens and images of a step."""

CLASSES = 10
BLOCKS = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
"""ResNet-50's stages: blocks, width, stride of the first block."""


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


def training(task: str, wrap: Callable[[Any], Any] = lambda network: network) -> Callable[[], None]:
    """A step of training in bf16; `wrap` joins the network of several ranks."""
    has_gpu = DEVICE == "cuda"
    with torch.device(DEVICE):  # drawn there: on the host it takes seconds
        if task == "gpt":
            words, width, heads, layers = (50304, 768, 12, 12) if has_gpu else (512, 64, 1, 2)
            network = gpt(words, width, heads, layers)
            seen = torch.randint(0, words, (TOKENS, 1024) if has_gpu else (2, 32))
        else:
            network = resnet50()
            seen = torch.rand(*((IMAGES, 3, 224, 224) if has_gpu else (2, 3, 32, 32)))
        labels = torch.zeros(len(seen), dtype=torch.long)
    network = wrap(network)
    optimiser = torch.optim.AdamW(network.parameters(), lr=1e-5, fused=has_gpu or None)

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            made = network(seen)
            if task == "gpt":
                loss = next_token_loss(made, seen)
            else:
                loss = functional.cross_entropy(made, labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()

    return step
