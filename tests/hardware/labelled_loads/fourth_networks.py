"""Networks of the fourth blind trial, and how its processes end."""

import ctypes
import signal
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.work import sized

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """This process is killed when the one that forked it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Encoder(nn.Module):
    """A transformer that sees all of a sequence: of words, of pieces of an image, or of points."""

    PIECE = 16

    def __init__(self, layers: int, width: int, words: int, enter: int = 0) -> None:
        """`enter`: numbers of a point, where sequences are of points."""
        super().__init__()
        layers, width = sized((layers, width), (2, 64))
        self.width = width
        self.words = nn.Embedding(words, width)
        self.pieces = nn.Linear(enter or 3 * self.PIECE**2, width)
        layer = nn.TransformerEncoderLayer(
            *(width, width // 64, 4 * width, 0.0, "gelu"), batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, seen: Any, told: Any = 0.0) -> Any:
        """Sequence, position, width; `told` is added to each.

        `seen`: sequence, word; sequence, point, number; or bytes: image, channel, row, column.
        """
        if seen.ndim == 2:
            return self.blocks(self.words(seen) + told)
        if seen.ndim == 4:
            seen = functional.unfold(seen.float() / 255, self.PIECE, stride=self.PIECE)
            seen = seen.transpose(1, 2)
        return self.blocks(self.pieces(seen) + told)


class Experts(nn.Module):
    """Layers of which each row goes to the two that a router likes best, if they have room."""

    CHOSEN = 2
    ROOM = 1.25

    def __init__(self, width: int, wide: int, count: int) -> None:
        super().__init__()
        self.before, self.router = nn.LayerNorm(width), nn.Linear(width, count)
        self.up = nn.Parameter(torch.randn(count, width, wide) * width**-0.5)
        self.down = nn.Parameter(torch.randn(count, wide, width) * wide**-0.5)

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: row, width."""
        count, width = len(self.up), values.shape[1]
        places = int(self.ROOM * self.CHOSEN * len(values) / count)
        seen = self.before(values).to(values.dtype)
        weights, chosen = self.router(seen).float().softmax(1).topk(self.CHOSEN)
        expert, order = chosen.flatten().sort()
        each = (expert[:, None] == torch.arange(count, device=expert.device)).sum(0)
        place = torch.arange(len(expert), device=expert.device) - (each.cumsum(0) - each)[expert]
        # who finds no room goes to the last place, which no expert sees
        slot = torch.where(place < places, expert * places + place, count * places)
        row = order // self.CHOSEN
        sent = torch.zeros(count * places + 1, width, device=seen.device, dtype=seen.dtype)
        sent = sent.index_copy(0, slot, seen.index_select(0, row))
        wide = functional.gelu(torch.bmm(sent[:-1].view(count, places, width), self.up))
        made = functional.pad(torch.bmm(wide, self.down).flatten(0, 1), (0, 0, 0, 1))
        weighed = made.index_select(0, slot) * weights.flatten()[order, None].to(made.dtype)
        return values.index_add(0, row, weighed.to(values.dtype))
