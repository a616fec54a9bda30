"""Networks of the fifth blind trial, and memory for direct reads and writes."""

import mmap
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.blind_input import words
from tests.hardware.labelled_loads.fourth_networks import Encoder
from tests.hardware.labelled_loads.models import TransformerBlock
from tests.hardware.labelled_loads.work import sized
from tests.hardware.training import DEVICE


class Reader(nn.Module):
    """A transformer that makes one direction in space of each sequence of words."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        layers, self.width = sized((layers, width), (2, 64))
        self.words = nn.Embedding(words(), self.width)
        blocks = (TransformerBlock(self.width, self.width // 64) for _ in range(layers))
        self.blocks = nn.Sequential(*blocks)

    def forward(self, tokens: Any) -> Any:
        """Sequence, width; `tokens`: sequence, word."""
        return functional.normalize(self.blocks(self.words(tokens)).mean(1), dim=1)


class ImagesAndTexts(nn.Module):
    """Two transformers that bring an image and its text to the same place."""

    SHARED = 256

    def __init__(self, layers: int, width: int, reading: int) -> None:
        """`reading`: the width of the one that reads."""
        super().__init__()
        self.images = Encoder(layers, width, 1)
        self.texts = Reader(layers, reading)
        self.seen = nn.Linear(self.images.width, self.SHARED)
        self.read = nn.Linear(self.texts.width, self.SHARED)

    def forward(self, images: Any, texts: Any) -> Any:
        """How alike: image, text."""
        seen = functional.normalize(self.seen(self.images(images).mean(1)), dim=1)
        read = functional.normalize(self.read(self.texts(texts)), dim=1)
        return 20 * seen @ read.T


PATCH = 16
"""Points along each side of a piece of a film."""


def pieces(clips: Any) -> Any:
    """Pieces of two frames each: clip, piece, number. `clips`: clip, frame, channel, row, column;
    the numbers are bytes."""
    count, frames, channels, rows, columns = clips.shape
    shape = (count, frames // 2, 2, channels, rows // PATCH, PATCH, columns // PATCH, PATCH)
    split = clips.view(shape).permute(0, 1, 4, 6, 2, 3, 5, 7)
    return split.reshape(count, -1, 2 * channels * PATCH**2).float() / 255


def reachable(room: memoryview) -> Any:
    """The same memory as a tensor of bytes, which the GPU's copy engines reach from now on."""
    values = torch.frombuffer(room, dtype=torch.uint8)
    if DEVICE == "cuda":
        cuda: Any = torch.cuda
        failed = int(cuda.cudart().cudaHostRegister(values.data_ptr(), len(room), 0))
        if failed:
            raise RuntimeError(f"cudaHostRegister: {failed}")
    return values


def aligned(size: int) -> tuple[memoryview, Any]:
    """Memory for direct reads and writes: for the system's calls, and as `reachable` gives it."""
    room = memoryview(mmap.mmap(-1, size))
    return room, reachable(room)
