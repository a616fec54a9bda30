"""Tasks of training: a network, its data on the GPU, and one step of it."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.hardware import networks
from tests.hardware.device import DEVICE, IMAGE
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


Loss = Callable[[Any], Any]
"""The loss of a network on the data of its next step."""


def language(batch: int, layers: int = 12, width: int = 768) -> tuple[Any, Loss]:
    """GPT-2's smallest, or larger; random tokens."""
    length = sized(CONTEXT, 32)
    words = sized(50304, 512)
    tokens = torch.randint(0, words, (sized(batch, 2), length + 1), device=DEVICE)

    def loss(network: Any) -> Any:
        guessed = network(tokens[:, :-1])
        return functional.cross_entropy(guessed.flatten(0, 1), tokens[:, 1:].flatten())

    with torch.device(DEVICE):  # drawn there: on the host it takes seconds
        return LanguageModel(layers, width), loss


def images(batch: int) -> tuple[Any, Loss]:
    """ResNet-50."""
    shape = sized(IMAGE, (3, 32, 32))
    seen = torch.rand(sized(batch, 2), *shape, device=DEVICE)
    labels = torch.zeros(len(seen), dtype=torch.long, device=DEVICE)
    return networks.resnet50().to(DEVICE), lambda network: functional.cross_entropy(
        network(seen), labels
    )


class Trainer:
    """Steps of one network. `network` may be wrapped for several ranks."""

    def __init__(self, network: Any, loss: Loss, accumulate: int = 1) -> None:
        """`accumulate`: so many batches are added up before each step of the optimiser."""
        self.network = network
        self._loss = loss
        self._accumulate = accumulate
        self._optimiser = torch.optim.AdamW(
            network.parameters(), lr=1e-5, fused=DEVICE == "cuda" or None
        )

    def step(self, *, exchange: bool = True) -> None:
        """One step; without `exchange` the ranks keep their gradients to themselves."""
        for turn in range(self._accumulate):
            alone = not (exchange and turn == self._accumulate - 1)
            wrapped = hasattr(self.network, "no_sync")
            with self.network.no_sync() if alone and wrapped else nullcontext():
                self.loss().backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=False)

    def loss(self) -> Any:
        """Forward, in bf16 where the GPU is better at it."""
        with torch.autocast(DEVICE, torch.bfloat16):
            return self._loss(self.network)
