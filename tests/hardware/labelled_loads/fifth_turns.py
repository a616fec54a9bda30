"""One-GPU loads of the fifth blind trial that take turns with the host: no rule knows them."""

import heapq
import itertools
import json
import multiprocessing
import random
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.hardware.labelled_loads.alone import recorded
from tests.hardware.labelled_loads.blind_alone import Decoder
from tests.hardware.labelled_loads.blind_input import directory, words
from tests.hardware.labelled_loads.fourth_input import Merger
from tests.hardware.labelled_loads.fourth_networks import die_with_parent
from tests.hardware.labelled_loads.labels import BUSY, CPU, HOST_THREAD
from tests.hardware.labelled_loads.models import LanguageModel
from tests.hardware.labelled_loads.third_alone import Mark, steadily
from tests.hardware.labelled_loads.work import length_of, sized
from tests.hardware.training import DEVICE, pinned, synchronize


class Ranking(Decoder):
    """Ranks the next tokens of each sequence, which goes on from what another one has seen."""

    MOST = 128

    def __init__(self, batch: int, **sizes: int) -> None:
        super().__init__(batch=batch, **sizes)
        rows = len(self.tokens)
        with torch.device(DEVICE):
            self.parents = torch.arange(rows)
            self.likely = torch.zeros(rows, self.MOST)
            self.found = torch.zeros(rows, self.MOST, dtype=torch.int64)

    def rank(self) -> None:
        """One pass: the likeliest tokens after `tokens`, where `parents` were before."""
        layers: Any = self._layers
        for layer in layers:
            layer.cache.copy_(layer.cache.index_select(1, self.parents))
        seen = (self._each <= self.places[:, None])[:, None, None, :]
        values = self._words(self.tokens)
        for layer in layers:
            values = layer(values, self.places, seen)
        logits = functional.linear(values, self._words.weight).float()
        likely, found = logits.log_softmax(1).topk(self.MOST)
        self.likely.copy_(likely)
        self.found.copy_(found)
        self.places.add_(1).remainder_(self.positions)


class Beams:
    """Several beginnings of each of many texts, kept in plain Python."""

    KEPT = 64
    REPEATED = 10.0
    """What it costs to say the same three tokens again."""

    def __init__(self, rows: int, each: int) -> None:
        """`each` text has so many beginnings."""
        self._each = each
        self._texts = [[0, row] for row in range(rows)]
        self._scores = [0.0] * rows

    def choose(
        self, likely: Sequence[Sequence[float]], found: Sequence[Sequence[int]]
    ) -> tuple[list[int], list[int]]:
        """The parents and the tokens of the best next beginnings."""
        best: list[tuple[float, int, int]] = []
        for first in range(0, len(self._texts), self._each):
            rows = range(first, first + self._each)
            best += heapq.nlargest(self._each, self._candidates(rows, likely, found))
        most = max(score for score, _, _ in best)
        self._scores = [score - most for score, _, _ in best]
        self._texts = [[*self._texts[row], token][-self.KEPT :] for _, row, token in best]
        return [row for _, row, _ in best], [token for _, _, token in best]

    def _candidates(
        self, rows: range, likely: Sequence[Sequence[float]], found: Sequence[Sequence[int]]
    ) -> Iterator[tuple[float, int, int]]:
        for row in rows:
            text, score = self._texts[row], self._scores[row]
            said = set(zip(text, text[1:], text[2:], strict=False))
            for value, token in zip(likely[row], found[row], strict=True):
                again = (text[-2], text[-1], token) in said
                yield score + value - (self.REPEATED if again else 0.0), row, token


def _fitting(beams: Beams, ranking: Ranking, lasting: float) -> int:
    """How many tokens of each row to look at, for the choice to take so long (s)."""
    few, many = 2 * sized(4, 2), ranking.MOST

    def choose(looked: int) -> float:
        likely, found = (part[:, :looked].tolist() for part in (ranking.likely, ranking.found))
        return length_of(lambda: beams.choose(likely, found), sized(0.3, 0.02))

    least, most = choose(few), choose(many)
    return min(many, max(few, round(few + (many - few) * (lasting - least) / (most - least))))


def beam_search(seconds: float, *, beams: int, share: float, batch: int, **sizes: int) -> None:
    """Translation: the GPU ranks the next tokens, the main thread chooses in plain Python.

    It looks at as many as make it take so large a share; a pass on the GPU is a CUDA graph.
    """
    with torch.no_grad():
        ranking = Ranking(batch, **sizes)
        run = recorded(ranking.rank)
        likely = pinned(torch.zeros_like(ranking.likely, device="cpu"))
        found = pinned(torch.zeros_like(ranking.found, device="cpu"))
        sent = pinned(torch.zeros(2, len(ranking.tokens), dtype=torch.int64))
        kept = Beams(len(ranking.tokens), sized(beams, 2))
        lasting = length_of(run, sized(0.5, 0.05), at_once=sized(8, 2)) * share / (1 - share)
        looked = _fitting(kept, ranking, lasting)

        def step(mark: Mark) -> None:
            values, tokens = likely.numpy()[:, :looked], found.numpy()[:, :looked]
            chosen = kept.choose(values.tolist(), tokens.tolist())
            sent.numpy()[:] = chosen
            mark(HOST_THREAD)
            ranking.parents.copy_(sent[0], non_blocking=True)
            ranking.tokens.copy_(sent[1], non_blocking=True)
            run()
            likely.copy_(ranking.likely, non_blocking=True)
            found.copy_(ranking.found, non_blocking=True)
            mark(BUSY)
            synchronize()

        steadily(seconds, step)


def logged_steps(seconds: float, *, batch: int, length: int, layers: int, width: int) -> None:
    """A small language model; each step writes down its loss and the norm of each gradient.

    Each number is asked for on its own. The same step as a CUDA graph, without the asking, is what
    it would take if the host cost nothing.
    """
    batch, length = sized((batch, length), (2, 8))
    with torch.device(DEVICE):
        network = LanguageModel(layers, width).to(torch.bfloat16)
        tokens = torch.randint(0, words(), (batch, length + 1))
    named = dict(network.named_parameters())
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-5, foreach=False)

    def learn() -> dict[str, Any]:
        optimiser.zero_grad(set_to_none=False)
        guessed = network(tokens[:, :-1]).flatten(0, 1)
        loss: Any = functional.cross_entropy(guessed, tokens[:, 1:].flatten())
        loss.backward()
        told = {name: one.grad.norm() for name, one in named.items() if one.grad is not None}
        optimiser.step()
        return {"loss": loss.detach(), **told}

    kernels = length_of(recorded(learn), at_once=sized(20, 2))
    turns = itertools.count()
    with tempfile.TemporaryFile("w", dir=directory()) as log:

        def step(mark: Mark) -> None:
            told = {name: value.item() for name, value in learn().items()}
            log.write(json.dumps({"step": next(turns), **told}) + "\n")
            log.flush()
            mark(BUSY)

        steadily(seconds, step, levels=[(HOST_THREAD, kernels, None)])


_splitter: list[Merger] = []
"""That of this worker process."""


def _begin_worker() -> None:
    die_with_parent()
    _splitter.append(Merger())


def _split(turn: int, count: int) -> list[int]:
    return _splitter[0].split(random.Random(turn), count)


def _distance(one: Sequence[int], other: Sequence[int]) -> int:
    """How many changes make the other of one (Levenshtein), in plain Python."""
    above = list(range(len(other) + 1))
    for row, token in enumerate(one, 1):
        line = [row]
        for column, wanted in enumerate(other):
            changed = above[column] + (token != wanted)
            line.append(min(changed, above[column + 1] + 1, line[column] + 1))
        above = line
    return above[-1]


class Harness:
    """What tokenises, answers, and scores."""

    COLUMNS = 64
    """Tokens of each answer that are scored."""

    def __init__(self, pool: Any, tasks: int, tokens: int, sizes: dict[str, int]) -> None:
        """The `pool` gets so many tasks at a time; each answer has so many tokens."""
        self._pool, self._tasks, self._turns = pool, tasks, itertools.count()
        self._decoder = Decoder(**sizes)
        shape = (tokens, len(self._decoder.tokens))
        self._answers: Any = torch.zeros(shape, dtype=torch.int64, device=DEVICE)
        self._told = pinned(torch.zeros_like(self._answers, device="cpu"))
        self._sent = pinned(torch.zeros_like(self._told[0]))
        self._run = recorded(self._grow)

    def _grow(self) -> None:
        self._decoder.grow()
        self._decoder.places.add_(1).remainder_(self._decoder.positions)

    def tokenise(self, count: int) -> None:
        """So many words a task, by the pool."""
        found = self._pool.starmap(_split, [(next(self._turns), count) for _ in range(self._tasks)])
        first = np.array(found[0], np.int64) % words()
        self._sent.numpy()[:] = np.resize(first, len(self._sent))

    def answer(self) -> None:
        """All questions together, a CUDA graph a token."""
        self._decoder.tokens.copy_(self._sent, non_blocking=True)
        for place in self._answers:
            self._run()
            place.copy_(self._decoder.tokens)
        self._told.copy_(self._answers, non_blocking=True)

    def score(self, count: int) -> int:
        """So many pairs of answers."""
        columns = self._told.numpy()[: self.COLUMNS].T.tolist()
        pairs = itertools.islice(itertools.cycle(itertools.pairwise(columns)), count)
        return sum(_distance(one, other) for one, other in pairs)


def evaluation_harness(
    seconds: float, *, tokens: int, causes: tuple[float, float], workers: int, **sizes: int
) -> None:
    """In turns: processes tokenise questions, the GPU answers all at once, the main thread scores.

    `causes`: the shares of the processes and of the main thread.
    """
    with multiprocessing.get_context("fork").Pool(workers, _begin_worker) as pool, torch.no_grad():
        harness, some = Harness(pool, 2 * workers, sized(tokens, 3), sizes), sized(2000, 20)
        period = length_of(harness.answer, sized(0.8, 0.05)) / (1 - sum(causes))
        splitting = length_of(lambda: harness.tokenise(some), sized(0.4, 0.05)) / some
        scoring = length_of(lambda: harness.score(4), sized(0.3, 0.02)) / 4
        asked, scored = (
            max(1, round(share * period / each))
            for share, each in zip(causes, (splitting, scoring), strict=True)
        )

        def step(mark: Mark) -> None:
            harness.tokenise(asked)
            mark(CPU)
            harness.answer()
            mark(BUSY)
            synchronize()
            harness.score(scored)
            mark(HOST_THREAD)

        steadily(seconds, step)
