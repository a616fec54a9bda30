"""NCCL's RAS status in JSON, since NCCL 2.28.7."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agent.hardware.nccl_answer import (
    IN_PROGRESS,
    LONGEST_NAME,
    RESULTS,
    Communicator,
    CommunicatorKey,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
    RankStatus,
    RasFailure,
    Unanswered,
    address,
    tallies,
)

MISSING_COMMA = re.compile(r'("nvml_dev"\s*:\s*-?\d+)(\s+"status")')
"""2.28 forgets the comma between these two fields of a missing rank."""
KIND = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
LARGEST = 2**63
MOST_KINDS = 32
Entry = TypeVar("Entry")


class _Unfit(Exception):
    """An entry lacks what it must have."""


def parse_json(text: str) -> NcclAnswer | Unanswered:
    """Read a whole status in JSON; never raises.

    Entries that lack what identifies them are left out and counted in `ignored`.
    """
    try:
        document = _load(text)
    except (ValueError, RecursionError):  # ValueError also for numbers of thousands of digits
        detail = f"the JSON status of {len(text)} characters is malformed, or was cut off"
        return Unanswered(RasFailure.PROTOCOL, detail)
    entries = document.get("communicators") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
        return Unanswered(RasFailure.CHANGED, 'the JSON status has no list "communicators"')
    reader = _Entries()
    communicators = reader.each(reader.communicator, entries)
    if entries and not communicators:
        return Unanswered(RasFailure.CHANGED, "no communicator of the JSON status can be read")
    places = _places(communicators)
    ras = _mapping(document.get("ras"))
    return NcclAnswer(
        nccl_version=_text(document.get("nccl_version")),
        cuda_runtime=_count(document.get("cuda_runtime_version")),
        cuda_driver=_count(document.get("cuda_driver_version")),
        answered_at=_text(document.get("timestamp")),
        nodes=len({host for host, _, _ in places}) or None,
        processes=len({(host, pid) for host, pid, _ in places}) or None,
        gpus=len(places) or None,
        communicators=tuple(communicators),
        lists_all=True,
        seconds=_seconds(ras.get("collection_time_sec")),
        timeouts=_count(ras.get("timeouts_count")) or 0,
        ignored=reader.ignored,
    )


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(MISSING_COMMA.sub(r"\1,\2", text))


class _Entries:
    """Reads entries of lists; `ignored` counts those that cannot be read."""

    def __init__(self) -> None:
        self.ignored = 0

    def each(self, read: Callable[[Mapping[str, Any]], Entry], entries: object) -> list[Entry]:
        found: list[Entry] = []
        for entry in entries if isinstance(entries, list) else ():
            try:
                found.append(read(_mapping(entry)))
            except _Unfit:
                self.ignored += 1
        return found

    def communicator(self, fields: Mapping[str, Any]) -> Communicator:
        key = CommunicatorKey(_hash(fields.get("hash")), _text(fields.get("secondary_hash")))
        size = _needed(fields, "size")
        ranks = sorted(self.each(_rank, fields.get("ranks")), key=_number)
        missing = sorted(self.each(_missing, fields.get("missing_ranks")), key=_number)
        return Communicator(
            key=key,
            size=size,
            ranks=tuple(ranks),
            missing=tuple(missing),
            missing_count=max(_count(fields.get("missing_ranks_count")) or 0, len(missing)),
            launched=tallies(ranks),
        )


def _places(communicators: list[Communicator]) -> set[tuple[str, int | None, int | None]]:
    """Host, process and GPU of every rank, missing ones included, whose process is told."""
    found: set[tuple[str, int | None, int | None]] = set()
    for communicator in communicators:
        ranks: tuple[Rank | MissingRank, ...] = (*communicator.ranks, *communicator.missing)
        found |= {(r.host, r.pid, r.nvml_device) for r in ranks if r.pid is not None}
    return found


def _number(rank: Rank | MissingRank) -> int:
    return rank.rank


def _rank(fields: Mapping[str, Any]) -> Rank:
    status = _mapping(fields.get("status"))
    return Rank(
        rank=_needed(fields, "rank"),
        host=address(_text(fields.get("host"))),
        pid=_count(fields.get("pid")),
        cuda_device=_count(fields.get("cuda_dev")),
        nvml_device=_count(fields.get("nvml_dev")),
        counts=_counts(_mapping(fields.get("collective_counts"))),
        status=_status(status),
        error=_error(status.get("init_state")) or _error(status.get("async_error")),
    )


def _missing(fields: Mapping[str, Any]) -> MissingRank:
    status = _mapping(fields.get("status"))
    loss = RankLoss.UNRESPONSIVE if status.get("unresponsive") is True else RankLoss.LEFT
    return MissingRank(
        rank=_needed(fields, "rank"),
        loss=RankLoss.DEAD if status.get("considered_dead") is True else loss,
        host=address(_text(fields.get("host"))),
        pid=_count(fields.get("pid")),
        cuda_device=_count(fields.get("cuda_dev")),
        nvml_device=_count(fields.get("nvml_dev")),
    )


def _status(fields: Mapping[str, object]) -> RankStatus:
    """As NCCL's own text tells it from the same fields."""
    if fields.get("abort_flag") is True:
        return RankStatus.ABORT
    if fields.get("finalize_called") is True or fields.get("destroy_flag") is True:
        return RankStatus.FINALIZE
    state = _count(fields.get("init_state"))
    if state is None:
        return RankStatus.UNKNOWN
    return RankStatus.RUNNING if state == 0 else RankStatus.INIT


def _error(result: object) -> str:
    code = _count(result)
    if code in (None, 0, IN_PROGRESS):
        return ""
    return RESULTS.get(code or 0, f"error {code}")


def _counts(fields: Mapping[str, object]) -> dict[str, int]:
    """Launched collectives by kind; what is no name or no number is left out."""
    found = ((kind, _count(value)) for kind, value in list(fields.items())[:MOST_KINDS])
    return {kind: count for kind, count in found if count is not None and KIND.fullmatch(kind)}


def _hash(value: object) -> str:
    """As the text prints it: sixteen digits, without 0x."""
    name = _text(value)
    if not name:
        raise _Unfit
    return name.removeprefix("0x").rjust(16, "0")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    """A number that may be one of a rank, process or collective; NCCL's -1 is none."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST:
        return value
    return None


def _needed(fields: Mapping[str, object], name: str) -> int:
    value = _count(fields.get(name))
    if value is None:
        raise _Unfit
    return value


def _seconds(value: object) -> float | None:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return None


def _text(value: object) -> str:
    return value[:LONGEST_NAME] if isinstance(value, str) and value.isprintable() else ""
