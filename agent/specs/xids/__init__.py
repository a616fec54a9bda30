"""XID errors: the name of each code, its severity, and the first action.

`codes.toml` contains the table and its sources. NVLink 5 reports XIDs 144 to 150. Their action
depends on more fields of the kernel log line: the unit, whether the error was fatal, and two words.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec import Struct, convert

from agent.metrics import beside
from agent.model import Severity


class XidMeaning(Struct, frozen=True, kw_only=True):
    """An XID code. `generations` is, for example, `all`, `from ampere`, or `until volta`. `older`
    is the name on GPUs up to Volta, or empty if the name is the same."""

    code: int
    name: str
    severity: Severity
    action: str  # key of `first_step` in `codes.toml`
    generations: str
    older: str = ""
    source: str


RESET, IGNORE = "reset", "ignore"
"""Actions for NVLink 5 errors."""

OLDER = frozenset({"kepler", "maxwell", "pascal", "volta"})
"""Architectures that retire memory pages. Newer architectures remap rows."""

NVLINK5 = range(144, 151)  # NVLink 5 codes
LINK_UNITS = ("NETIR_LINK_EVT", "NETIR_LINK_DOWN")
MANAGED_UNIT = "NETIR_MFDE_EVENT"
HARMLESS_LINK_EVENTS = frozenset({38, 40})
"""Subcodes of a link-down event that require no action on the GPU, from bits 20 to 25 of the first
word. The error was reported by the remote end or the host [C]."""

HARMLESS_MANAGED = 3  # MFDE event status that has no significance


@cache
def _table() -> dict[str, Any]:
    return beside(__file__, "codes")


@cache
def first_steps(table: str = "first_step") -> Mapping[str, str]:
    """Return the first steps, or the texts in another table, by action."""
    return convert(_table()[table], dict[str, str])


@cache
def catalogue() -> Mapping[int, XidMeaning]:
    """Return the meaning of every code in the table."""
    return {
        code: convert({**row, "code": code}, XidMeaning)
        for row in _table()["xid"]
        for code in row["codes"]
    }


def meaning(code: int) -> XidMeaning:
    """Return the meaning of a code. The meaning of an unknown code is generic."""
    return catalogue().get(code) or XidMeaning(
        code=code,
        name="a code that this table does not have",
        severity=Severity.WARNING,
        action="service",
        generations="all",
        source="none",
    )


def name(code: int, architecture: str = "") -> str:
    found = meaning(code)
    return found.older if found.older and architecture in OLDER else found.name


@cache
def critical() -> tuple[int, ...]:
    """Return the sorted codes that require immediate action."""
    return tuple(sorted(c for c, m in catalogue().items() if m.severity is Severity.CRITICAL))


def nvlink5_action(unit: str, *, fatal: bool, first: int = 0, status: int = 0) -> str:
    """Return the action for an NVLink 5 XID, based on unit, severity, first word, and status.

    A nonfatal error requires no action, or is followed by XID 154 with the action. A fatal error
    requires a reset, unless the remote end of the link caused the error.
    """
    if not fatal or (unit == MANAGED_UNIT and status == HARMLESS_MANAGED):
        return IGNORE
    if unit in LINK_UNITS and (first >> 20 & 0x3F) in HARMLESS_LINK_EVENTS:
        return IGNORE
    return RESET
