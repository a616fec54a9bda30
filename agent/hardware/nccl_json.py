"""NCCL's RAS status in JSON, since NCCL 2.28.7."""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from agent.hardware.nccl_answer import (
    LONGEST_NAME,
    Communicator,
    CommunicatorKey,
    MissingRank,
    NcclAnswer,
    Rank,
    RankLoss,
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
    """An entry is without what it must have."""


def parse_json(text: str) -> NcclAnswer | Unanswered:
    """Read a whole status in JSON; never raises.

    Entries that do not have what identifies them are left out.
    """
    try:
        document = _load(text)
    except (ValueError, RecursionError):  # ValueError also for numbers of thousands of digits
        detail = f"the JSON status of {len(text)} characters is malformed, or was cut off"
        return Unanswered(RasFailure.PROTOCOL, detail)
    entries = document.get("communicators") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
        return Unanswered(RasFailure.CHANGED, 'the JSON status has no list "communicators"')
    communicators = _each(_communicator, entries)
    if entries and not communicators:
        return Unanswered(RasFailure.CHANGED, "no communicator of the JSON status can be read")
    version = _text(document.get("nccl_version"))
    return NcclAnswer(version, tuple(communicators))


def _load(text: str) -> object:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return json.loads(MISSING_COMMA.sub(r"\1,\2", text))


def _each(read: Callable[[Mapping[str, Any]], Entry], entries: object) -> list[Entry]:
    """The entries of a list that can be read."""
    found: list[Entry] = []
    for entry in entries if isinstance(entries, list) else ():
        with suppress(_Unfit):
            found.append(read(_mapping(entry)))
    return found


def _communicator(fields: Mapping[str, Any]) -> Communicator:
    ranks = sorted(_each(_rank, fields.get("ranks")), key=_number)
    return Communicator(
        key=CommunicatorKey(_hash(fields.get("hash")), _text(fields.get("secondary_hash"))),
        size=_needed(fields, "size"),
        ranks=tuple(ranks),
        missing=tuple(sorted(_each(_missing, fields.get("missing_ranks")), key=_number)),
        launched=tallies(ranks),
    )


def _number(rank: Rank | MissingRank) -> int:
    return rank.rank


def _rank(fields: Mapping[str, Any]) -> Rank:
    return Rank(
        rank=_needed(fields, "rank"),
        host=address(_text(fields.get("host"))),
        pid=_count(fields.get("pid")),
        nvml_device=_count(fields.get("nvml_dev")),
        counts=_counts(_mapping(fields.get("collective_counts"))),
    )


def _missing(fields: Mapping[str, Any]) -> MissingRank:
    status = _mapping(fields.get("status"))
    lost = status.get("unresponsive") is True or status.get("considered_dead") is True
    return MissingRank(
        rank=_needed(fields, "rank"),
        loss=RankLoss.UNRESPONSIVE if lost else RankLoss.LEFT,
        host=address(_text(fields.get("host"))),
        pid=_count(fields.get("pid")),
        nvml_device=_count(fields.get("nvml_dev")),
    )


def _counts(fields: Mapping[str, object]) -> dict[str, int]:
    """Launched collectives by kind; what is no name or no number is left out."""
    found = ((kind, _count(value)) for kind, value in list(fields.items())[:MOST_KINDS])
    return {kind: count for kind, count in found if count is not None and KIND.fullmatch(kind)}


def _hash(value: object) -> str:
    """Sixteen digits, without 0x."""
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


def _text(value: object) -> str:
    return value[:LONGEST_NAME] if isinstance(value, str) and value.isprintable() else ""
