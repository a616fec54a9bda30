"""Networks of the third blind trial: a mixer, scans, a recommender's, adapters, a ring."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.hardware.labelled_loads.work import sized
from tests.hardware.training import DEVICE, IMAGE


def blank(batch: int) -> Any:
    """Images of bytes in the host's memory, drawn once."""
    return torch.randint(0, 255, (sized(batch, 2), *IMAGE), dtype=torch.uint8)


class MixingBlock(nn.Module):
    """A layer across the places of an image, then one across its channels."""

    def __init__(self, places: int, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across, self.along = (
            nn.Sequential(nn.Linear(side, wide), nn.GELU(), nn.Linear(wide, side))
            for side, wide in ((places, width // 2), (width, 4 * width))
        )

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: image, place, width."""
        values = values + self.across(self.before(values).transpose(1, 2)).transpose(1, 2)
        return values + self.along(self.between(values))


class Mixer(nn.Module):
    """MLP-Mixer-L/16: an image as 14 by 14 pieces and nothing but dense layers (208 M)."""

    def __init__(self) -> None:
        super().__init__()
        layers, width = sized((24, 1024), (2, 32))
        places = IMAGE[1] // 16
        self.pieces = nn.Conv2d(IMAGE[0], width, 16, 16)
        self.blocks = nn.Sequential(*(MixingBlock(places**2, width) for _ in range(layers)))
        self.last = nn.Linear(width, 1000)

    def forward(self, images: Any) -> Any:
        """Logits: image, class."""
        values = self.pieces(images).flatten(2).transpose(1, 2)
        return self.last(self.blocks(values).mean(1))


def recognition(images: Any) -> Callable[[Any], Any]:
    """The loss of a network on images of bytes that stay where they are."""
    classes = torch.zeros(len(images), dtype=torch.long, device=DEVICE)
    return lambda network: functional.cross_entropy(network(images.float() / 255), classes)


def _scanned(gates: Any, states: Any) -> Any:
    """state[t] = gate[t] x state[t - 1] + what was given, for all t in log2(length) passes."""
    shift = 1
    while shift < states.shape[1]:
        places = (0, 0, shift, 0)
        states = states + gates * functional.pad(states[:, :-shift], places)
        gates = gates * functional.pad(gates[:, :-shift], places, value=1.0)
        shift *= 2
    return states


class ScannedLayer(nn.Module):
    """A state that decays and takes in, position by position, as Mamba's does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.taken, self.left = nn.Linear(width, 2 * width), nn.Linear(width, width)

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: sequence, position, width."""
        decay, taken = self.taken(self.before(values)).float().chunk(2, -1)
        gates = torch.sigmoid(decay)
        return values + self.left(functional.silu(_scanned(gates, (1 - gates) * taken)))


def scanning(batch: int, length: int, width: int, layers: int) -> tuple[Any, Any]:
    """A network of scans, and its loss on random sequences."""
    batch, length, width, layers = sized((batch, length, width, layers), (2, 16, 8, 2))
    with torch.device(DEVICE):
        network = nn.Sequential(*(ScannedLayer(width) for _ in range(layers)))
        seen = torch.randn(batch, length + 1, width)
    return network, lambda network: functional.mse_loss(network(seen[:, :-1]).float(), seen[:, 1:])


class ManyHot(nn.Module):
    """Sums of several rows of a large table for each feature, below wide layers."""

    def __init__(self, entries: int, width: int, features: int, wide: int) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(entries, width, mode="sum", sparse=True)
        sides = (features * width, wide, wide, wide)
        hidden = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(sides)]
        self.above = nn.Sequential(*hidden, nn.Linear(wide, 1))

    def forward(self, entries: Any) -> Any:
        """`entries` of the table: row, feature, one of several. One number a row."""
        return self.above(self.table(entries.flatten(0, 1)).view(len(entries), -1))


class Adapted(nn.Module):
    """A layer that learns no more, and two thin ones beside it that do."""

    def __init__(self, layer: Any, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, values: Any) -> Any:
        """What the layer says, and what was learnt since."""
        return self.layer(values) + self.up(self.down(values))


class Ring:
    """Tensors change hands with the other rank; not `connected`, each rank keeps its own."""

    def __init__(self, rank: int) -> None:
        self._other = 1 - rank
        self._running: list[Any] = []
        self.connected = False

    def start(self, own: Any) -> None:
        """Beside what is launched next."""
        if not self.connected:
            self._arrived = own.detach()
            return
        self._arrived = torch.empty_like(own)
        exchange = [
            dist.P2POp(dist.isend, own, self._other),
            dist.P2POp(dist.irecv, self._arrived, self._other),
        ]
        self._running = dist.batch_isend_irecv(exchange)

    def finish(self) -> Any:
        """What has arrived; what is launched next waits for it."""
        for handle in self._running:
            handle.wait()
        self._running = []
        return self._arrived


class ChangedHands(torch.autograd.Function):
    """Forward: what the other rank sent. Backward: the gradient goes back to where it belongs."""

    @staticmethod
    def forward(ctx: Any, _own: Any, ring: Ring) -> Any:
        """Same shape as what was sent."""
        ctx.ring = ring
        return ring.finish()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """In the open: what follows needs it."""
        ctx.ring.start(gradients[0].contiguous())
        return ctx.ring.finish(), None


class RingLayer(nn.Module):
    """Attention of the own half of a sequence to both; the other's keys and values come by."""

    HEAD = 128

    def __init__(self, width: int, ring: Ring) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self._ring = ring

    def forward(self, values: Any) -> Any:
        """Same shape as `values`: sequence, position, width."""
        split = self.mixed(self.before(values)).view(*values.shape[:2], 3, -1, self.HEAD)
        query, *rest = split.permute(2, 0, 3, 1, 4).unbind()
        own = torch.stack(rest)
        self._ring.start(own.detach())
        near = functional.scaled_dot_product_attention(query, *own.unbind())
        arrived = ChangedHands.apply(own, self._ring)
        far = functional.scaled_dot_product_attention(query, *arrived.unbind())
        return values + self.joined((near + far).transpose(1, 2).flatten(2))
