"""A transformer, for the loads."""

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
