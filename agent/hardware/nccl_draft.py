"""What the text of NCCL's RAS says below the headline of one communicator, gathered by line."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorKey,
    Launched,
    MissingRank,
    Rank,
    RankLoss,
    address,
)

NUMBER = r"([0-9]{1,18})"
PLACE = (
    r"(?:GPU (?P<cuda>[0-9]{1,9})(?: \(NVML (?P<nvml>[0-9]{1,9})\))? managed by process "
    r"(?P<pid>[0-9]{1,18}) on node (?P<host>\S+)|\[process information not found\])"
)
NO_MEMBER = {"NOCOMM", "UNKNOWN"}
"""The status of ranks whose process answered without knowing the communicator: after and before
2.26."""
MOST_RANKS = 1 << 16
"""Ranks that are not named are told by leaving the named ones out, up to this size."""


@dataclass(slots=True)
class _RankDraft:
    """What is known of one rank so far; the device is NVML's number."""

    host: str = ""
    pid: int | None = None
    device: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    loss: RankLoss | None = None


@dataclass(slots=True)
class _Tally:
    """Ranks with the same count of one kind."""

    kind: str
    count: int
    ranks: int
    named: list[int] = field(default_factory=list)


Note = Callable[[int, _RankDraft], None]


class CommunicatorDraft:
    """One communicator while its lines are read; `size` as its row in the table tells it."""

    def __init__(self, name: str, size: int | None) -> None:
        self.name = name
        self.size = size
        self._ranks: dict[int, _RankDraft] = {}
        self._tallies: list[_Tally] = []
        self._kind = ""
        self._note: Note = _nothing  # what a line that only names a rank says of it

    def line(self, line: str) -> bool:
        """Take one line; whether it belongs to a communicator."""
        for pattern, read in RULES:
            found = pattern.fullmatch(line)
            if found:
                read(self, found)
                return True
        return False

    def communicator(self) -> Communicator | None:
        """All that was told; None where not even the size is known."""
        if self.size is None:
            return None
        self._name_the_rest(self.size)
        ranks = sorted(self._ranks.items())
        launched = (
            Launched(t.kind, t.count, t.ranks, tuple(sorted(t.named))) for t in self._tallies
        )
        return Communicator(
            key=CommunicatorKey(self.name),
            size=self.size,
            ranks=tuple(
                Rank(n, r.host, r.pid, r.device, r.counts) for n, r in ranks if r.loss is None
            ),
            missing=tuple(
                MissingRank(n, r.loss, r.host, r.pid, r.device) for n, r in ranks if r.loss
            ),
            launched=tuple(sorted(launched)),
        )

    def _name_the_rest(self, size: int) -> None:
        """Where the ranks of one count are not listed, they are all that are not named at all."""
        missing = {number for number, rank in self._ranks.items() if rank.loss is not None}
        for kind in {tally.kind for tally in self._tallies}:
            tallies = [tally for tally in self._tallies if tally.kind == kind]
            vague = [tally for tally in tallies if len(tally.named) < tally.ranks]
            everybody = sum(tally.ranks for tally in tallies) + len(missing) == size
            if len(vague) != 1 or not everybody or size > MOST_RANKS:
                continue
            named = missing.union(*(tally.named for tally in tallies))
            vague[0].named = [number for number in range(size) if number not in named]
            for number in vague[0].named:
                self._rank(number).counts[kind] = vague[0].count

    def _rank(self, number: int) -> _RankDraft:
        return self._ranks.setdefault(number, _RankDraft())

    def _tell(self, number: str, found: re.Match[str], note: Note) -> None:
        """Keep where a rank runs, and what is said of it."""
        rank, place = self._rank(int(number)), found.groupdict()
        if place.get("pid"):
            rank.host, rank.pid = address(place["host"]), int(place["pid"])
            rank.device = int(place["nvml"] or place["cuda"])  # told only where it is not CUDA's
        note(int(number), rank)

    def lost(self, _: re.Match[str]) -> None:
        self._note = _lost

    def lost_list(self, found: re.Match[str]) -> None:
        for number in found[1].split(","):
            self._tell(number, found, _lost)

    def left_list(self, found: re.Match[str]) -> None:
        for number in found[1].split(","):
            self._tell(number, found, _left)

    def other_matter(self, _: re.Match[str]) -> None:
        self._kind = ""
        self._note = _nothing

    def status_group(self, found: re.Match[str]) -> None:
        self._note = _left if found[1] in NO_MEMBER else _nothing

    def status_rank(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, _left if found[2] in NO_MEMBER else _nothing)

    def counts(self, found: re.Match[str]) -> None:
        self._kind = found[1]
        self._note = _nothing

    def count_group(self, found: re.Match[str]) -> None:
        self._note = self._counted(found[2], int(found[1]))

    def count_rank(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, self._counted(found[2], 1))

    def _counted(self, number: str | None, ranks: int) -> Note:
        if not self._kind:  # the line that says what is counted was lost
            return _nothing
        tally = _Tally(self._kind, int(number or 0), ranks)
        self._tallies.append(tally)

        def note(number: int, rank: _RankDraft) -> None:
            tally.named.append(number)
            rank.counts[tally.kind] = tally.count

        return note

    def plain(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, self._note)

    def elsewhere(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, _nothing)


def _nothing(_: int, __: _RankDraft) -> None:
    """A rank is named, and nothing is said of it."""


def _lost(_: int, rank: _RankDraft) -> None:
    rank.loss = rank.loss or RankLoss.UNRESPONSIVE


def _left(_: int, rank: _RankDraft) -> None:
    rank.loss = rank.loss or RankLoss.LEFT


Line = Callable[[CommunicatorDraft, re.Match[str]], None]

RULES: tuple[tuple[re.Pattern[str], Line], ...] = tuple(
    (re.compile(pattern), read)
    for pattern, read in (
        (rf"Rank {NUMBER} -- {PLACE}", CommunicatorDraft.plain),
        (
            rf"Rank {NUMBER} has (?:launched up to operation {NUMBER}|not launched any operations)"
            rf" -- {PLACE}",
            CommunicatorDraft.count_rank,
        ),
        (
            rf"{NUMBER} ranks have (?:launched up to operation {NUMBER}"
            r"|not launched any operations)",
            CommunicatorDraft.count_group,
        ),
        (
            r"Communicator ranks have different ([A-Za-z][A-Za-z0-9_]{0,63}) operation counts",
            CommunicatorDraft.counts,
        ),
        (r"Missing communicator data from \d+ ranks?", CommunicatorDraft.lost),
        (r"The missing ranks?: ((?:[0-9]{1,9},)*[0-9]{1,9})", CommunicatorDraft.lost_list),
        (r"The unknown ranks?: ((?:[0-9]{1,9},)*[0-9]{1,9})", CommunicatorDraft.left_list),
        (r"\d+ ranks have status (\w+)", CommunicatorDraft.status_group),
        (rf"Rank {NUMBER} has status (\w+)(?: -- {PLACE})?", CommunicatorDraft.status_rank),
        (
            r"Communicator ranks have different status|\d+ ranks reported .*"
            r"|(?:Initialization|Asynchronous) errors? on \d+ ranks?",
            CommunicatorDraft.other_matter,
        ),
        (rf"Rank {NUMBER} reported .* -- {PLACE}", CommunicatorDraft.elsewhere),
    )
)
"""What a line below a communicator's headline may be, and who reads it."""
