"""Scope of the long form of the tests: `tests/run --nightly`.

Tables of systems against scenarios take minutes of simulated time; the short form takes each system
and each scenario at least once.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import pytest

NIGHTLY = pytest.mark.nightly

Case = tuple[str, ...]


def covering(cases: Iterable[Case]) -> list[Any]:
    """All cases, as parameters; marked as nightly but for some in which each word of each column
    comes at least once."""
    listed = list(cases)
    chosen: set[Case] = set()
    used: Counter[tuple[int, str]] = Counter()
    for case in sorted(listed, key=lambda case: _rarest(case, listed)):
        if any(not used[place] for place in enumerate(case)):
            best = min(_alike(case, listed, used), key=lambda one: sum(_times(one, used)))
            chosen.add(best)
            used.update(enumerate(best))
    return [pytest.param(*c) if c in chosen else pytest.param(*c, marks=NIGHTLY) for c in listed]


def shortly(names: Iterable[str], short: Collection[str]) -> list[Any]:
    """All names, as parameters; marked as nightly but for those of the short form."""
    return [name if name in short else pytest.param(name, marks=NIGHTLY) for name in names]


def _rarest(case: Case, cases: list[Case]) -> int:
    """In how many cases its rarest word comes: what has little choice chooses first."""
    return min(sum(one[at] == word for one in cases) for at, word in enumerate(case))


def _alike(case: Case, cases: list[Case], used: "Counter[tuple[int, str]]") -> list[Case]:
    """Cases that share with this one a word that has not come."""
    fresh = [(at, word) for at, word in enumerate(case) if not used[at, word]]
    return [one for one in cases if any(one[at] == word for at, word in fresh)]


def _times(case: Case, used: "Counter[tuple[int, str]]") -> Iterable[int]:
    return (used[place] for place in enumerate(case))
