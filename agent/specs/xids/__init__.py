"""XID errors: the name of each code, its severity, and the first action.

The table is `codes.toml`, with its sources. NVLink 5 reports 144 to 150, whose action depends on
other parts of the line in the kernel's log: the unit, whether it was fatal, and two words.
"""

import tomllib
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from agent.model import Severity


class XidAction(StrEnum):
    """First action after an XID."""

    IGNORE = "ignore"
    WATCH = "watch"
    RESTART_JOB = "restart_job"
    RESTART_THEN_SERVICE = "restart_then_service"
    RESTART_THEN_RESET = "restart_then_reset"  # the job now, the GPU when it is free
    RESET_LATER = "reset_later"
    RESET = "reset"
    MEMORY = "memory"  # reset, and then look whether the memory could be fixed
    DETAILS = "details"  # of XID 48, which names the action
    REBOOT = "reboot"
    RESTART_VM = "restart_vm"
    LINKS = "links"  # look at both ends of the link, then reset
    FOLLOW = "follow"  # the error that came with it
    RECOVERY = "recovery"  # the action that the driver requests
    BY_UNIT = "by_unit"  # NVLink 5: the kernel's log says which
    CHECK_UVM = "check_uvm"  # reset if unified memory or vGPU is used
    ENABLE_ECC = "enable_ecc"
    POWER = "power"  # the board's cable
    UPDATE = "update"  # the driver
    SERVICE = "service"


class XidMeaning(Struct, frozen=True, kw_only=True):
    """A code; `generations` are `all`, `from ampere`, `until volta`, ...; `older` is its name on
    GPUs up to Volta if that differs, else empty."""

    code: int
    name: str
    severity: Severity
    action: XidAction
    generations: str
    older: str = ""
    source: str


OLDER = frozenset({"kepler", "maxwell", "pascal", "volta"})
"""Architectures whose memory retires pages; newer architectures remap rows."""

NVLINK5 = range(144, 151)  # Codes of NVLink 5
LINK_UNITS = ("NETIR_LINK_EVT", "NETIR_LINK_DOWN")
MANAGED_UNIT = "NETIR_MFDE_EVENT"
HARMLESS_LINK_EVENTS = frozenset({38, 40})
"""Sub-codes of a link that went down which need no action on the GPU: bits 20 to 25 of the first
word; the far end, or the host, was reported to [C]."""

HARMLESS_MANAGED = 3  # Status of a MFDE event that means nothing


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("codes.toml").read_text(encoding="utf-8"))


@cache
def first_steps(table: str = "first_step") -> Mapping[XidAction, str]:
    """The first steps, or another table of texts by action."""
    return convert(_table()[table], dict[XidAction, str])


@cache
def catalogue() -> Mapping[int, XidMeaning]:
    """Every code of the table."""
    return {
        code: convert({**row, "code": code}, XidMeaning)
        for row in _table()["xid"]
        for code in row["codes"]
    }


def meaning(code: int) -> XidMeaning:
    """Return the meaning of a code; a code that the table does not have gets a meaning that says
    so."""
    return catalogue().get(code) or XidMeaning(
        code=code,
        name="a code that this table does not have",
        severity=Severity.WARNING,
        action=XidAction.SERVICE,
        generations="all",
        source="none",
    )


def name(code: int, architecture: str = "") -> str:
    found = meaning(code)
    return found.older if found.older and architecture in OLDER else found.name


@cache
def critical() -> tuple[int, ...]:
    """The codes that need action now, in order."""
    return tuple(sorted(c for c, m in catalogue().items() if m.severity is Severity.CRITICAL))


def nvlink5_action(unit: str, *, fatal: bool, first: int = 0, status: int = 0) -> XidAction:
    """Return the action after an XID of NVLink 5: by unit, severity, first word and status.

    An error that is not fatal needs nothing, or else XID 154 follows and says so; a fatal error
    needs a reset, except for links whose far end is the reason.
    """
    if not fatal or (unit == MANAGED_UNIT and status == HARMLESS_MANAGED):
        return XidAction.IGNORE
    if unit in LINK_UNITS and (first >> 20 & 0x3F) in HARMLESS_LINK_EVENTS:
        return XidAction.IGNORE
    return XidAction.RESET
