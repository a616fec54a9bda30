"""Healthy one-GPU loads of the fifth blind trial: no rule was made with them in sight."""

import itertools
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from tests.hardware.labelled_loads.blind_input import words
from tests.hardware.labelled_loads.labels import BUSY
from tests.hardware.labelled_loads.models import LanguageModel
from tests.hardware.labelled_loads.tasks import Trainer
from tests.hardware.labelled_loads.third_alone import Mark, busily, steadily
from tests.hardware.labelled_loads.work import sized
from tests.hardware.training import DEVICE

STILL = 1e-3
"""Centres that move less than this together have found their place."""


def kmeans_clusters(seconds: float, *, rows: int, width: int, count: int, part: int) -> None:
    """Healthy: k-means in FP32, part by part of a table that lies on the GPU.

    The host looks after each pass over all rows whether the centres still move.
    """
    rows, width, count, part = sized((rows, width, count, part), (512, 8, 4, 128))
    numbers = random.Random(0)
    with torch.device(DEVICE):
        ones = torch.ones(part)
        seen: Any = torch.randn(rows, width)
    centres = seen[:count].clone()

    def step(mark: Mark) -> None:
        sums, members = torch.zeros_like(centres), torch.zeros(count, device=DEVICE)
        offsets = centres.square().sum(1) * -0.5
        for some in seen.split(part):
            nearest = torch.addmm(offsets, some, centres.T).argmax(1)
            sums.index_add_(0, nearest, some)
            members.index_add_(0, nearest, ones[: len(some)])
        means = sums / members.clamp_min(1)[:, None]
        moved = torch.where(members[:, None] > 0, means, centres)
        far = (moved - centres).norm()
        centres.copy_(moved)
        mark(BUSY)
        if far.item() < STILL:
            begin = numbers.randrange(rows - count)
            centres.copy_(seen[begin : begin + count])

    with torch.no_grad():
        steadily(seconds, step)


def preference_pairs(
    seconds: float, *, pairs: int, length: int, layers: int, width: int, accumulate: int
) -> None:
    """Healthy: a language model learns which of two answers is preferred (DPO).

    A frozen one, in bf16, says what was likely before; several batches make a step.
    """
    pairs, length = sized((pairs, length), (2, 16))
    with torch.device(DEVICE):
        network = LanguageModel(layers, width)
        before = LanguageModel(layers, width).to(torch.bfloat16).requires_grad_(False)
        tokens = torch.randint(0, words(), (2 * pairs, length + 1))

    def likely(network: Any) -> Any:
        guessed, wanted = network(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        each = functional.cross_entropy(guessed, wanted, reduction="none")
        return -each.view(len(tokens), -1).sum(1)

    def loss(network: Any) -> Any:
        with torch.no_grad():
            known = likely(before)
        chosen, refused = (likely(network) - known).chunk(2)
        return -functional.logsigmoid(0.1 * (chosen - refused)).mean()

    busily(seconds, Trainer(network, loss, accumulate).step)


def lengthening_sequences(
    seconds: float, *, tokens: int, lengths: Sequence[int], stage: int, layers: int, width: int
) -> None:
    """Healthy: a language model learns from short sequences first, then from longer ones.

    Each batch has as many tokens; after so many steps (`stage`) the next length comes, and after
    the longest the shortest again. Each length was seen before the steady phase.
    """
    tokens, lengths = sized((tokens, list(lengths)), (64, [16, 32]))
    with torch.device(DEVICE):
        network = LanguageModel(layers, width)
        drawn = torch.randint(0, words(), (tokens + 1,))
    stages = itertools.chain.from_iterable(itertools.repeat(each, stage) for each in lengths)
    turns = itertools.chain(2 * list(lengths), itertools.cycle(stages))

    def loss(network: Any) -> Any:
        length = next(turns)
        used = tokens // length * length
        guessed = network(drawn[:used].view(-1, length))
        return functional.cross_entropy(guessed.flatten(0, 1), drawn[1 : used + 1])

    trainer = Trainer(network, loss)
    for _ in range(2 * len(lengths)):
        trainer.step()
    busily(seconds, trainer.step)


class Boosting:
    """Decision trees of one depth, one after the other; all of the table lies on the GPU."""

    BINS = 256
    RATE = 0.1

    def __init__(self, rows: int, features: int, depth: int) -> None:
        self._depth = depth
        with torch.device(DEVICE):
            self._bins = torch.randint(0, self.BINS, (features, rows), dtype=torch.uint8)
            self._wanted = torch.randint(0, 2, (rows,)).float()
            self._told = torch.zeros(rows)
            self._rows = torch.arange(rows)

    def grow(self) -> None:
        """One more tree; the host waits for none of its results."""
        chances = torch.sigmoid(self._told)
        slopes = torch.stack((chances - self._wanted, chances * (1 - chances)), 1)
        node = torch.zeros_like(self._rows)
        for level in range(self._depth):
            feature, border = self._splits(self._sums(node, slopes, 1 << level))
            right = self._bins[feature[node], self._rows] > border[node]
            node = 2 * node + right
        leaves = torch.zeros(1 << self._depth, 2, device=DEVICE).index_add_(0, node, slopes)
        values = -leaves[:, 0] / (leaves[:, 1] + 1)
        self._told.add_(values[node], alpha=self.RATE)

    def _sums(self, node: Any, slopes: Any, nodes: int) -> Any:
        """What the rows of each bin ask for: feature, node, bin, first or second slope."""
        sums = torch.zeros(len(self._bins), nodes * self.BINS, 2, device=DEVICE)
        first = node * self.BINS
        for place, bins in zip(sums, self._bins, strict=True):
            place.index_add_(0, first + bins, slopes)
        return sums.view(len(self._bins), nodes, self.BINS, 2)

    def _splits(self, sums: Any) -> tuple[Any, Any]:
        """The best feature and border of each node."""
        left = sums.cumsum(2)
        right = left[:, :, -1:] - left
        gains = sum(side[..., 0].square() / (side[..., 1] + 1) for side in (left, right))
        best = gains.transpose(0, 1).flatten(1).argmax(1)
        return best // self.BINS, best % self.BINS


def boosted_trees(seconds: float, *, rows: int, features: int, depth: int) -> None:
    """Healthy: gradient-boosted trees by histograms; limited by additions to the same places."""
    rows, features, depth = sized((rows, features, depth), (500, 3, 2))
    trees = Boosting(rows, features, depth)
    with torch.no_grad():
        busily(seconds, trees.grow)
