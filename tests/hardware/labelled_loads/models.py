"""Models of the loads besides the networks of the papers: a transformer, a U-Net, a graph net."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.work import sized

WORDS = 50304
CONTEXT = 1024


class TransformerBlock(nn.Module):
    """Attention to what came before, then a layer four times as wide."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: batch, position, width."""
        batch, length, width = values.shape
        split = self.mixed(self.before(values)).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        values = values + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
        return values + self.wide(self.between(values))


class LanguageModel(nn.Module):
    """A decoder of GPT-2's make; 12 layers of 768 are its smallest (124 M parameters)."""

    def __init__(self, layers: int = 12, width: int = 768) -> None:
        super().__init__()
        layers, width = sized((layers, width), (2, 64))
        self.words = nn.Embedding(sized(WORDS, 512), width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, width // 64) for _ in range(layers))
        self.last = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        """Logits: batch, position, word."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        values = self.words(tokens) + self.places(places)
        for block in self.blocks:
            values = block(values)
        return functional.linear(self.last(values), self.words.weight)


class Denoiser(nn.Module):
    """A small U-Net that predicts the noise in an image, as diffusion models are trained."""

    def __init__(self) -> None:
        super().__init__()
        widths = sized((128, 256, 512), (8, 16, 32))
        self.enter = nn.Conv2d(3, widths[0], 3, padding=1)
        self.down = nn.ModuleList(
            _convolved(a, b) for a, b in zip(widths, (*widths[1:], widths[-1]), strict=True)
        )
        self.up = nn.ModuleList(
            _convolved(b + (widths[-1] if a == widths[-1] else b), a)
            for a, b in reversed(list(zip(widths, (*widths[1:], widths[-1]), strict=True)))
        )
        self.leave = nn.Conv2d(widths[0], 3, 3, padding=1)

    def forward(self, images: Any) -> Any:
        """Same shape as `images`: batch, 3, side, side."""
        values = self.enter(images)
        kept = []
        for layer in self.down:
            values = layer(values)
            kept.append(values)
            values = functional.avg_pool2d(values, 2)
        for layer in self.up:
            values = functional.interpolate(values, scale_factor=2)
            values = layer(torch.cat((values, kept.pop()), 1))
        return self.leave(values)


def _convolved(channels: int, width: int) -> Any:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.GroupNorm(8, width),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.GroupNorm(8, width),
        nn.SiLU(),
    )


class GraphNetwork(nn.Module):
    """Layers that add up what each node's neighbours say."""

    def __init__(self, layers: int = 6, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, nodes: Any, source: Any, target: Any) -> Any:
        """Same shape as `nodes`: node, width. `source` and `target` are the ends of each edge."""
        for layer in self.layers:
            said = layer(nodes)[source].float()  # sums of many terms want the precision
            nodes = functional.relu(torch.zeros_like(nodes).index_add(0, target, said)) + nodes
        return nodes
