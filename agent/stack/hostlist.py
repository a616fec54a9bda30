"""Lists of hosts as Slurm writes them: `dgx[001-124,130],login` and `r[1-2]n[01-16]`."""

import re
from itertools import product

from agent.config.decoding import Mismatch, shown

MOST = 20_000
"""Hosts of one list: more is a slip of the finger."""

BETWEEN = re.compile(r"[,\s]+(?![^\[]*\])")
HOST = re.compile(r"([A-Za-z0-9._-]|\[\d{1,9}(-\d{1,9})?(,\d{1,9}(-\d{1,9})?)*\])+", re.ASCII)
BRACKETS = re.compile(r"\[([^]]*)\]")
EXPECTED = "names of hosts such as dgx[001-124], separated by commas"


def expanded(text: str, key: str = "hosts") -> list[str]:
    """The hosts, in their order; raises Mismatch, reported of `key`."""
    found: list[str] = []
    for word in filter(None, BETWEEN.split(text)):
        if HOST.fullmatch(word) is None:
            raise Mismatch(key, shown(word), EXPECTED)
        # Names and what stands in brackets come in turn.
        parts = BRACKETS.split(word)
        choices = [_numbers(p, key) if n % 2 else [p] for n, p in enumerate(parts)]
        size = 1
        for choice in choices:
            size *= len(choice)
        if len(found) + size > MOST:
            raise Mismatch(key, shown(word), f"at most {MOST} hosts")
        found += map("".join, product(*choices))
    return found


def _numbers(inside: str, key: str) -> list[str]:
    """`001-003,7` as numbers, as wide as the first of each range."""
    found: list[str] = []
    for part in inside.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not 0 <= int(last) - int(first) < MOST:
            raise Mismatch(key, f"'{part}'", f"a range that rises, of at most {MOST} hosts")
        found += (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return found
