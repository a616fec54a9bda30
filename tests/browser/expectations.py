"""Expected texts and marks of the page in each scenario of DESIGN: the shown of a person."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tests.browser.page import Page

ALL = -1
"""Stands for every GPU of the machine."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One scenario: words of the sentence, and what else must be marked.

    `judged` are the GPUs with `state` and `cause`; `ailing` those with a finding on their tile.
    """

    scenario: str
    says: tuple[str, ...]
    level: str
    state: str = ""
    cause: str = "none"
    judged: tuple[int, ...] = (ALL,)
    ailing: tuple[int, ...] = ()
    saturated: tuple[str, ...] = ()  # `path device direction`
    port: str = ""  # a device whose row is marked
    edge: str = ""  # `gpus: load`
    note: str = ""
    finding: str = ""

    def misses(self, page: Page) -> list[str]:
        """Return the differences from what is expected; empty if there are none."""
        seen = page.run(Path(__file__).with_name("read_page.js").read_text(encoding="utf-8"))
        tiles = {gpu: (state, cause) for gpu, state, cause in seen["tiles"]}
        judged = list(tiles) if self.judged == (ALL,) else self.judged
        wrong = [f"says {w!r}" for w in self.says if w.lower() not in seen["headline"].lower()]
        wrong += [f"level {self.level}, not {seen['level']}"] * (seen["level"] != self.level)
        if self.state:
            wrong += [
                f"GPU {gpu} {self.state} {self.cause}, not {tiles.get(gpu)}"
                for gpu in judged
                if tiles.get(gpu) != (self.state, self.cause)
            ]
            others = [gpu for gpu in tiles if gpu not in judged]
            wrong += [f"GPU {g} too" for g in others if tiles[g] == (self.state, self.cause)]
        if self.ailing:
            wrong += [f"marked {seen['faults']}"] * (tuple(seen["faults"]) != self.ailing)
        wrong += [f"saturated {s}" for s in self.saturated if s not in seen["saturated"]]
        wrong += [f"port {self.port}"] * (bool(self.port) and self.port not in seen["ports"])
        wrong += [f"edge {self.edge}"] * (bool(self.edge) and self.edge not in seen["edges"])
        wrong += [f"note {self.note}"] * (self.note not in seen["notes"])
        # An agent on a busy machine has one finding of its own in place of none.
        said = (self.finding, "s per second for a CPU, so its readings are late")
        found = any(words in line for line in seen["findings"] for words in said)
        return wrong + [f"finding {self.finding}"] * (not found)


@dataclass(frozen=True, slots=True)
class PageMachine:
    """One machine, and what it plays; what cannot be undone comes last."""

    system: str
    gpus: int
    expectations: tuple[Shown, ...] = field(default_factory=tuple)


PAGE_MACHINES = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, PageMachine]
)
"""DESIGN's scenarios over machines with 1, 4, 8 and 16 GPUs."""
