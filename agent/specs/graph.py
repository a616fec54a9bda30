"""Graphs of links compared up to renumbering: machines number their GPUs as they please."""

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

Weights = tuple[tuple[int, ...], ...]  # Links between every two nodes, as a symmetric matrix


class PairDifference(NamedTuple):
    """One pair of nodes that is not joined as it should be."""

    one: int
    other: int
    found: int
    expected: int


def weights(nodes: int, pairs: Mapping[tuple[int, int], int]) -> Weights:
    """The matrix of a graph given by the links of its pairs."""
    return tuple(
        tuple(pairs.get((min(a, b), max(a, b)), 0) if a != b else 0 for b in range(nodes))
        for a in range(nodes)
    )


@lru_cache(maxsize=8)
def differences(found: Weights, expected: Weights) -> tuple[PairDifference, ...]:
    """Return the differences under the best matching of two graphs with as many nodes; none if they
    are equal.

    Depth first: nodes of `found` take places of `expected` in turn, and a branch that is no better
    than the best so far is left. Each node's own number is tried first, so that of equally good
    matchings the usual numbering is named. Meant for eight nodes: 8! placings at the very worst.
    """
    search = _Search(found, expected)
    search.place((), 0)
    return tuple(
        PairDifference(a, b, found[a][b], expected[search.best[a]][search.best[b]])
        for a in range(len(found))
        for b in range(a + 1, len(found))
        if found[a][b] != expected[search.best[a]][search.best[b]]
    )


class _Search:
    """The best placing so far, and how many links it leaves over or short."""

    def __init__(self, found: Weights, expected: Weights) -> None:
        self._found = found
        self._expected = expected
        self._most = len(found) ** 2 * max(map(max, (*found, *expected)), default=0) + 1
        self.best: tuple[int, ...] = tuple(range(len(found)))

    def place(self, taken: tuple[int, ...], cost: int) -> None:
        """Place the next node everywhere that it fits, its own number first."""
        node = len(taken)
        if node == len(self._found):
            self.best, self._most = taken, cost
            return
        free = [place for place in range(len(self._found)) if place not in taken]
        for place in sorted(free, key=lambda place: (self._degrees_apart(node, place), place)):
            after = cost + self._apart(node, place, taken)
            if after < self._most:
                self.place((*taken, place), after)

    def _apart(self, node: int, place: int, taken: tuple[int, ...]) -> int:
        """Links by which a node, placed there, differs from those placed before."""
        return sum(
            abs(self._found[node][other] - self._expected[place][there])
            for other, there in enumerate(taken)
        )

    def _degrees_apart(self, node: int, place: int) -> tuple[int, bool]:
        links = sum(self._found[node]), sum(self._expected[place])
        return abs(links[0] - links[1]), node != place
