"""NCCL's RAS status as text: all that NCCL 2.24 to 2.28.6 speaks, and known to later ones.

The text is made for people. It lists ranks only where they differ or fail: of a healthy job it
tells how many communicators, nodes and GPUs there are, and names no process.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from agent.hardware.nccl_answer import (
    LONGEST_NAME,
    NcclAnswer,
    RankProcess,
    RasFailure,
    Unanswered,
    address,
)
from agent.hardware.nccl_draft import NUMBER, CommunicatorDraft

LONGEST_LINE = 4096
WHOLE = {"Communicators", "Errors", "Warnings"}
"""The headlines of every whole answer; the last one comes last."""


class Totals(NamedTuple):
    """The words of a heading in the job's summary, and what the numbers below it are."""

    words: str
    columns: tuple[str, ...]


TOTALS = (
    Totals("(total) per node per process (total) (total)", ("nodes", "", "", "processes", "gpus")),
    Totals("(total) (total) (total)", ("nodes", "processes", "gpus")),
)


def parse_text(text: str) -> NcclAnswer | Unanswered:
    """Read a whole status in text; never raises.

    Lines that mean nothing here are passed over: later versions may say more.
    """
    reader = _TextReader()
    for line in text.splitlines():
        reader.line(line[:LONGEST_LINE].strip())
    if not text.endswith("\n") or not reader.seen >= WHOLE:
        detail = f"the text status of {len(text)} characters is malformed, or was cut off"
        return Unanswered(RasFailure.PROTOCOL, detail)
    return reader.answer()


class _TextReader:
    """Line by line: what a line means depends on the headline that it stands below."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.version = ""
        self.totals: dict[str, int] = {}
        self.sizes: dict[int, int] = {}  # of a communicator, by row of the table
        self.silent: list[RankProcess] = []
        self.drafts: dict[str, CommunicatorDraft] = {}
        self._columns: tuple[str, ...] = ()
        self._draft: CommunicatorDraft | None = None

    def line(self, line: str) -> None:
        if not line or set(line) == {"="}:
            return
        if self._columns:
            self._total(line.split())
            return
        if self._draft is not None and self._draft.line(line):
            return
        for pattern, read in RULES:
            found = pattern.fullmatch(line)
            if found:
                read(self, found)
                return
        words = " ".join(line.split())
        self._columns = next((t.columns for t in TOTALS if t.words == words), ())

    def answer(self) -> NcclAnswer:
        found = (draft.communicator() for draft in self.drafts.values())
        return NcclAnswer(
            nccl_version=self.version,
            nodes=self.totals.get("nodes"),
            processes=self.totals.get("processes"),
            gpus=self.totals.get("gpus"),
            communicators=tuple(sorted((c for c in found if c is not None), key=lambda c: c.key)),
            silent=tuple(self.silent),
        )

    def _total(self, words: list[str]) -> None:
        """The row below a heading of totals."""
        columns, self._columns = self._columns, ()
        if len(words) == len(columns) and all(re.fullmatch(NUMBER, word) for word in words):
            self.totals |= {c: int(word) for c, word in zip(columns, words, strict=True) if c}

    def headline(self, found: re.Match[str]) -> None:
        self.seen.add(found[1])
        self._draft = None

    def nccl(self, found: re.Match[str]) -> None:
        self.version = found[1][:LONGEST_NAME] if found[1].isprintable() else ""

    def group(self, found: re.Match[str]) -> None:
        self.sizes[int(found[1])] = int(found[2])

    def notice(self, _: re.Match[str]) -> None:
        self._draft = None

    def process(self, found: re.Match[str]) -> None:
        self.silent.append(RankProcess(address(found[2]), int(found[1])))

    def communicator(self, found: re.Match[str]) -> None:
        draft = CommunicatorDraft(found[2], self.sizes.get(int(found[1])))
        self._draft = self.drafts.setdefault(found[2], draft)


RULES: tuple[tuple[re.Pattern[str], Callable[[_TextReader, re.Match[str]], None]], ...] = (
    (re.compile(rf"#{NUMBER}-\d+ \(([0-9a-f]{{1,16}})\) [A-Z]+"), _TextReader.communicator),
    (re.compile(rf"Process {NUMBER} on node (\S+) managing GPUs? .*"), _TextReader.process),
    (
        re.compile(rf"{NUMBER} +\d+ +\d+ +\d+(?:-\d+)? +{NUMBER} +\d+ +\w+ +\S+"),
        _TextReader.group,
    ),
    (re.compile(r"(Job summary|Errors|Warnings)"), _TextReader.headline),
    (re.compile(r"(Communicators)\.\.\. \(\d{1,6}\.\d{1,6}s\)"), _TextReader.headline),
    (re.compile(r"INCOMPLETE|DEAD|TIMEOUT"), _TextReader.notice),
    (re.compile(r"NCCL version (\S+) compiled with CUDA \S+"), _TextReader.nccl),
)
"""What a line outside of a communicator may be, and who reads it."""
