"""NCCL's RAS status as text: all that NCCL 2.24 to 2.28.6 speaks, and known to later ones.

The text is made for people. It lists ranks only where they differ or fail: of a healthy job it
tells how many communicators, nodes and GPUs there are, and names no process.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from agent.hardware.nccl_answer import (
    LONGEST_NAME,
    CommunicatorGroup,
    NcclAnswer,
    RankStatus,
    RasFailure,
    SilentProcess,
    Unanswered,
    address,
)
from agent.hardware.nccl_draft import NUMBER, STATUSES, CommunicatorDraft

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
QUIET = re.compile(
    r"[\d ]+|Nodes .*|Processes .*|per (?:node|process)\b.*|Group .*|# +in group .*"
    r"|The outlier nodes?:|Node \S+ running process.*|\[could not find information on .*\]"
    r"|\d+ job process.* considered dead .*|Missing communicator data from \d+ job process(?:es)?"
    r"|Communicators\.\.\."
)
"""Lines that repeat what others say better."""


def parse_text(text: str) -> NcclAnswer | Unanswered:
    """Read a whole status in text; never raises.

    Lines that mean nothing here are counted in `ignored`: later versions may say more.
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
        self.cuda: tuple[int | None, int | None] = (None, None)
        self.totals: dict[str, int] = {}
        self.seconds: float | None = None
        self.timeouts = 0
        self.ignored = 0
        self.groups: dict[int, CommunicatorGroup] = {}
        self.silent: list[SilentProcess] = []
        self.drafts: dict[str, CommunicatorDraft] = {}
        self._dead = False
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
        self.ignored += not (self._columns or QUIET.fullmatch(line))

    def answer(self) -> NcclAnswer:
        gone = {(process.host, process.pid): process.dead for process in self.silent}
        found = [draft.communicator(gone) for draft in self.drafts.values()]
        whole = sorted((c for c in found if c is not None), key=lambda c: c.key)
        return NcclAnswer(
            nccl_version=self.version,
            cuda_runtime=self.cuda[0],
            cuda_driver=self.cuda[1],
            nodes=self.totals.get("nodes"),
            processes=self.totals.get("processes"),
            gpus=self.totals.get("gpus"),
            communicators=tuple(whole),
            groups=tuple(self.groups.values()),
            silent=tuple(self.silent),
            seconds=self.seconds,
            timeouts=self.timeouts,
            ignored=self.ignored + len(found) - len(whole),
        )

    def _total(self, words: list[str]) -> None:
        """The row below a heading of totals."""
        columns, self._columns = self._columns, ()
        if len(words) != len(columns) or not all(re.fullmatch(NUMBER, word) for word in words):
            self.ignored += 1
            return
        self.totals |= {c: int(word) for c, word in zip(columns, words, strict=True) if c}

    def headline(self, found: re.Match[str]) -> None:
        self.seen.add(found[0])
        self._draft = None

    def nccl(self, found: re.Match[str]) -> None:
        self.version = found[1][:LONGEST_NAME] if found[1].isprintable() else ""

    def cuda_versions(self, found: re.Match[str]) -> None:
        runtime, driver = int(found[1]), int(found[2])
        self.cuda = (runtime if runtime > 0 else None, driver if driver > 0 else None)

    def collected(self, found: re.Match[str]) -> None:
        self.seen.add("Communicators")
        self.seconds = float(found[1])

    def group(self, found: re.Match[str]) -> None:
        number, communicators, nodes, size, ranks = (int(found[i]) for i in range(1, 6))
        status = STATUSES.get(found[6], RankStatus.UNKNOWN)
        errors = frozenset(found[7].split(",")) - {"OK"}
        self.groups[number] = CommunicatorGroup(
            number, communicators, nodes, size, ranks, status, errors
        )

    def notice(self, found: re.Match[str]) -> None:
        self._dead = found[0] == "DEAD"
        self._draft = None

    def process(self, found: re.Match[str]) -> None:
        devices = tuple(int(device) for device in found[3].split(",") if device)
        self.silent.append(SilentProcess(address(found[2]), int(found[1]), devices, self._dead))

    def open_questions(self, found: re.Match[str]) -> None:
        self.timeouts = int(found[1])

    def communicator(self, found: re.Match[str]) -> None:
        draft = CommunicatorDraft(found[2], self.groups.get(int(found[1])))
        self._draft = self.drafts.setdefault(found[2], draft)


RULES: tuple[tuple[re.Pattern[str], Callable[[_TextReader, re.Match[str]], None]], ...] = (
    (re.compile(rf"#{NUMBER}-\d+ \(([0-9a-f]{{1,16}})\) [A-Z]+"), _TextReader.communicator),
    (
        re.compile(rf"Process {NUMBER} on node (\S+) managing GPUs? ([\d,]{{1,400}})(?: \(.*\))?"),
        _TextReader.process,
    ),
    (
        re.compile(
            rf"{NUMBER} +{NUMBER} +{NUMBER} +\d+(?:-\d+)? +{NUMBER} +{NUMBER} +(\w+) +(\S+)"
        ),
        _TextReader.group,
    ),
    (re.compile(r"Job summary|Errors|Warnings"), _TextReader.headline),
    (re.compile(r"INCOMPLETE|DEAD|TIMEOUT"), _TextReader.notice),
    (re.compile(r"NCCL version (\S+) compiled with CUDA \S+"), _TextReader.nccl),
    (
        re.compile(r"CUDA runtime version (-?[0-9]{1,9}), driver version (-?[0-9]{1,9})"),
        _TextReader.cuda_versions,
    ),
    (re.compile(r"Communicators\.\.\. \((\d{1,6}\.\d{1,6})s\)"), _TextReader.collected),
    (re.compile(r"No communicator data collected!"), _TextReader.headline),
    (
        re.compile(rf"Encountered {NUMBER} communication timeouts? while gathering .*"),
        _TextReader.open_questions,
    ),
)
"""What a line outside of a communicator may be, and who reads it."""
