"""What the text of NCCL's RAS says below the headline of one communicator, gathered by line."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from agent.hardware.nccl_answer import (
    Communicator,
    CommunicatorGroup,
    CommunicatorKey,
    Launched,
    MissingRank,
    Rank,
    RankLoss,
    RankStatus,
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
STATUSES = {status.name: status for status in RankStatus}
MOST_RANKS = 1 << 16
"""Ranks that are not named are told by leaving the named ones out, up to this size."""


@dataclass(slots=True)
class _RankDraft:
    """What is known of one rank so far."""

    place: Mapping[str, str | None] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    status: RankStatus = RankStatus.UNKNOWN
    error: str = ""
    loss: RankLoss | None = None

    def number(self, name: str) -> int | None:
        """A number of its place: cuda, nvml, pid. NVML's is told only where it is not CUDA's."""
        told = self.place.get(name)
        if told is None and name == "nvml":
            told = self.place.get("cuda")
        return None if told is None else int(told)

    @property
    def host(self) -> str:
        return address(self.place.get("host") or "")


@dataclass(slots=True)
class _Tally:
    """Ranks with the same count of one kind."""

    kind: str
    count: int
    ranks: int
    named: list[int] = field(default_factory=list)


Note = Callable[[int, _RankDraft], None]


class CommunicatorDraft:
    """One communicator while its lines are read; `group` is its row in the table, if there is."""

    def __init__(self, name: str, group: CommunicatorGroup | None) -> None:
        self.name = name
        self.group = group
        self.missing_count = 0
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

    def communicator(self, gone: Mapping[tuple[str, int], bool]) -> Communicator | None:
        """All that was told; None where not even the size is known.

        `gone` says of processes that did not answer whether RAS considers them dead.
        """
        if self.group is None:
            return None
        self._name_the_rest(self.group.size)
        ranks = sorted(self._ranks.items())
        missing = [_missing(n, r, gone) for n, r in ranks if r.loss is not None]
        return Communicator(
            key=CommunicatorKey(self.name),
            size=self.group.size,
            ranks=tuple(_rank(n, r, self.group.status) for n, r in ranks if r.loss is None),
            missing=tuple(missing),
            missing_count=max(self.missing_count, len(missing)),
            launched=tuple(
                sorted(
                    Launched(t.kind, t.count, t.ranks, tuple(sorted(t.named)))
                    for t in self._tallies
                )
            ),
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
        rank = self._rank(int(number))
        place = found.groupdict()
        if place.get("pid"):
            rank.place = place
        note(int(number), rank)

    def lost(self, found: re.Match[str]) -> None:
        self.missing_count += int(found[1])
        self._note = _loss(RankLoss.UNRESPONSIVE)

    def lost_list(self, found: re.Match[str]) -> None:
        for number in found[1].split(","):
            self._tell(number, found, _loss(RankLoss.UNRESPONSIVE))

    def left_list(self, found: re.Match[str]) -> None:
        for number in found[1].split(","):
            self._tell(number, found, _loss(RankLoss.LEFT))

    def other_matter(self, _: re.Match[str]) -> None:
        self._kind = ""
        self._note = _nothing

    def error_group(self, found: re.Match[str]) -> None:
        self._note = _error(found[2])

    def error_rank(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, _error(found[2]))

    def status_group(self, found: re.Match[str]) -> None:
        self._strangers(found[2], int(found[1]))
        self._note = _status(found[2])

    def status_rank(self, found: re.Match[str]) -> None:
        self._strangers(found[2], 1)
        self._tell(found[1], found, _status(found[2]))

    def _strangers(self, status: str, ranks: int) -> None:
        """Count ranks that are no members; before 2.26 they may be those that did not answer."""
        if status == "NOCOMM":
            self.missing_count += ranks
        elif status in NO_MEMBER:
            self.missing_count = max(self.missing_count, ranks)

    def counts(self, found: re.Match[str]) -> None:
        self._kind = found[1]
        self._note = _nothing

    def count_group(self, found: re.Match[str]) -> None:
        self._note = self._counted(found[2], int(found[1]))

    def count_rank(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, self._counted(found[2], 1))

    def _counted(self, told: str | None, ranks: int) -> Note:
        if not self._kind:  # the line that says what is counted was lost
            return _nothing
        tally = _Tally(self._kind, int(told or 0), ranks)
        self._tallies.append(tally)

        def note(number: int, rank: _RankDraft) -> None:
            tally.named.append(number)
            rank.counts[tally.kind] = tally.count

        return note

    def plain(self, found: re.Match[str]) -> None:
        self._tell(found[1], found, self._note)


def _nothing(_: int, __: _RankDraft) -> None:
    """A rank is named, and nothing is said of it."""


def _loss(loss: RankLoss) -> Note:
    def note(_: int, rank: _RankDraft) -> None:
        rank.loss = rank.loss or loss

    return note


def _error(words: str) -> Note:
    def note(_: int, rank: _RankDraft) -> None:
        rank.error = words[0].lower() + words[1:] if words.isprintable() else ""

    return note


def _status(word: str) -> Note:
    if word in NO_MEMBER:
        return _loss(RankLoss.LEFT)

    def note(_: int, rank: _RankDraft) -> None:
        rank.status = STATUSES.get(word, RankStatus.UNKNOWN)

    return note


def _rank(number: int, draft: _RankDraft, status: RankStatus) -> Rank:
    own = draft.status is not RankStatus.UNKNOWN
    return Rank(
        rank=number,
        host=draft.host,
        pid=draft.number("pid"),
        cuda_device=draft.number("cuda"),
        nvml_device=draft.number("nvml"),
        counts=draft.counts,
        status=draft.status if own else status,
        error=draft.error,
    )


def _missing(number: int, draft: _RankDraft, gone: Mapping[tuple[str, int], bool]) -> MissingRank:
    loss = draft.loss or RankLoss.LEFT
    pid = draft.number("pid")
    if loss is RankLoss.UNRESPONSIVE and _is_dead((draft.host, pid), gone):
        loss = RankLoss.DEAD
    return MissingRank(number, loss, draft.host, pid, draft.number("cuda"), draft.number("nvml"))


def _is_dead(place: tuple[str, int | None], gone: Mapping[tuple[str, int], bool]) -> bool:
    """Whether RAS has given the rank's process up; before 2.26 it does not say which it is."""
    host, pid = place
    if pid is None:
        return bool(gone) and all(gone.values())
    return gone.get((host, pid), False)


Line = Callable[[CommunicatorDraft, re.Match[str]], None]


def _rules(rows: Iterable[tuple[str, Line]]) -> tuple[tuple[re.Pattern[str], Line], ...]:
    return tuple((re.compile(pattern), read) for pattern, read in rows)


RULES = _rules(
    (
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
        (rf"Missing communicator data from {NUMBER} ranks?", CommunicatorDraft.lost),
        (r"The missing ranks?: ((?:[0-9]{1,9},)*[0-9]{1,9})", CommunicatorDraft.lost_list),
        (r"The unknown ranks?: ((?:[0-9]{1,9},)*[0-9]{1,9})", CommunicatorDraft.left_list),
        (r"Communicator ranks have different status", CommunicatorDraft.other_matter),
        (rf"{NUMBER} ranks have status (\w+)", CommunicatorDraft.status_group),
        (rf"Rank {NUMBER} has status (\w+)(?: -- {PLACE})?", CommunicatorDraft.status_rank),
        (
            rf"(?:Initialization|Asynchronous) errors? on {NUMBER} ranks?",
            CommunicatorDraft.other_matter,
        ),
        (rf"{NUMBER} ranks reported (.{{1,64}})", CommunicatorDraft.error_group),
        (rf"Rank {NUMBER} reported (.{{1,64}}?) -- {PLACE}", CommunicatorDraft.error_rank),
    )
)
"""What a line below a communicator's headline may be, and who reads it."""
